"""From what an engine said of its steps and requests to one row of figures.

Latencies are defined as `vllm bench serve` defines them: TTFT from arrival to the first token, ITL each gap between tokens of a
request (all requests pooled), TPOT a request's mean gap, E2EL from arrival to the last token. Percentiles interpolate linearly.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import fmean
from typing import TYPE_CHECKING

import numpy as np

from vtoken_sdk.paper import ADMITS

if TYPE_CHECKING:
    from vtoken_sdk.runtime import RequestOutput, StepRecord

PERCENTILES = (50, 95, 99)
LATENCIES = ("ttft_ms", "itl_ms", "tpot_ms", "e2el_ms")
PARTS = ("model_ms", "policy_ms", "table_ms", "plan_ms", "copy_ms")  # of a step, apart from each other

# Columns of the results, in order: name -> type. None in a row: does not apply.
COLUMNS: dict[str, type] = {
    **dict.fromkeys(("job", "status", "policy", "runtime"), str),
    **{"budget": float, "ctx": int, "threshold": float, "margin": int, "block_size": int},
    **dict.fromkeys(("granularity", "model", "weights", "dtype", "device", "workload"), str),
    **dict.fromkeys(("seed", "requests", "prompt_tokens", "output_tokens", "concurrency_peak", "preemptions", "evictions"), int),
    **dict.fromkeys(("live_tokens", "blocks_held", "blocks_ideal", "utilization", "waste"), float),
    **dict.fromkeys(("blocks_held_peak", "plans", "moves", "bytes_moved", "blocks_freed"), int),
    **dict.fromkeys(("output_tok_s", "total_tok_s"), float),
    **dict.fromkeys((f"{name}_p{p}" for name in LATENCIES for p in PERCENTILES), float),
    **dict.fromkeys(PARTS, float),
    **dict.fromkeys(("nll", "kl", "top1", "needle_nll", "needle_acc", "needle4_nll", "needle4_acc"), float),
    **dict.fromkeys(("longbench_nll", "longbench_top1", "longbench_score"), float),
    # what explains the others
    **{f"{suite}_nll_full": float for suite in ("needle", "needle4", "longbench")},
    **{"longbench_score_full": float, "quality_query": str, "quality_sha256": str},
    **{f"{suite}_{what}": int for suite in ("needle", "needle4", "longbench") for what in ("items", "dropped")},
    **{"nll_full": float, "judged": int, "max_tokens": int, "lengths": str, "chunk": int, "max_running": int, "prefix_cache": bool},
    **{"kept": float, "budget_tokens": int, "option": str, "evict_prefill": str, "evict_every": int, "reclaim": str},
    **dict.fromkeys(("pool_blocks", "pool_block_size", *ADMITS, "steps", "cut_short"), int),
    # the load, and what became of its requests
    **{"length_scale": float, "arrivals": str, "request_rate": float, "burstiness": float, "max_concurrency": int, "step_ms": float},
    **{"request_throughput": float, "request_goodput": float},
    **{"seconds": float, "tokens_sha256": str, "victims_sha256": str, "error": str},
}

Row = dict[str, str | int | float | None]  # bool is an int


def percentiles(name: str, values: Sequence[float]) -> Row:
    """name_p50, _p95, _p99 of values; None where there are none."""
    if not values:
        return {f"{name}_p{p}": None for p in PERCENTILES}
    return {f"{name}_p{p}": float(np.percentile(values, p)) for p in PERCENTILES}


def latency_row(outputs: Iterable[RequestOutput]) -> Row:
    """Percentiles in milliseconds, and tokens a second from the first arrival to the last token."""
    done = [o for o in outputs if o.token_times_s]
    gaps = [np.diff(o.token_times_s) * 1e3 for o in done]  # a request each: [tokens - 1]
    row: Row = {
        **percentiles("ttft_ms", [(o.token_times_s[0] - o.arrival_s) * 1e3 for o in done]),
        **percentiles("itl_ms", [float(gap) for gaps_of_one in gaps for gap in gaps_of_one]),
        **percentiles("tpot_ms", [float(g.mean()) for g in gaps if len(g)]),
        **percentiles("e2el_ms", [(o.token_times_s[-1] - o.arrival_s) * 1e3 for o in done]),
    }
    seconds = max(o.token_times_s[-1] for o in done) - min(o.arrival_s for o in done) if done else 0.0
    generated = sum(len(o.token_ids) for o in done)
    row["output_tok_s"] = generated / seconds if seconds > 0 else None
    row["total_tok_s"] = (generated + sum(o.prompt_tokens for o in done)) / seconds if seconds > 0 else None
    return row


def step_row(records: Sequence[StepRecord], *, evicts: bool, compacts: bool) -> Row:
    """Means over the steps in which a request held blocks, peaks, and sums over all steps.

    evicts, compacts: whether the runtime does; what it does not do is None.
    """
    held = [r for r in records if r.slots_held]

    def mean(name: str) -> float | None:
        return fmean(getattr(r, name) for r in held) if held else None

    def total(name: str) -> int:
        return sum(getattr(r, name) for r in records)

    idle = (() if evicts else ("policy_ms",)) + (() if compacts else ("plan_ms", "copy_ms"))
    return {
        "preemptions": total("preempted"),
        "evictions": total("evicted") if evicts else None,
        **{name: mean(name) for name in ("live_tokens", "blocks_held", "blocks_ideal", "utilization", "waste")},
        "blocks_held_peak": max((r.blocks_held for r in records), default=0),
        **{name: total(name) if compacts else None for name in ("plans", "moves", "bytes_moved")},
        "blocks_freed": total("blocks_freed"),
        **{name: None if name in idle or not records else fmean(getattr(r, name) for r in records) for name in PARTS},
        "steps": len(records),
    }
