"""Throughput under a latency limit: the most that a runtime gives at any load of the sweep without slower tokens than native's.

The paper's condition can be read in two ways, and both are given. Under the limit: LATENCY_FACTOR times native's 95th percentile of the gap
between tokens (ITL) at the load where native gives the most; each runtime counts with its best load within that. At equal load: against
native at the same load, where the runtime's 95th percentile is within LATENCY_FACTOR times native's there; the best such load counts.
Nothing within the limit counts as no throughput. Goodput is the rate of requests whose TTFT and TPOT are within the same factor of native's
95th percentiles at native's best load. A longer chunk of a prompt makes slower tokens beside it, so a runtime may read prompts in chunks
of its own: where native has no run with chunks of that length, the one that it has counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import Any

from vtoken_sdk.paper import LATENCY_FACTOR, THROUGHPUT

from .finding import Finding, Outcome
from .runs import Run, Runs, change, where

LOADS = ("request_rate", "burstiness", "max_concurrency", "requests")  # what makes a load heavier; arrivals follow the seed
QUESTION = f"What throughput is there with a p95 of at most {LATENCY_FACTOR} times native's?"


def analyze(runs: Runs) -> Outcome:
    found: list[Finding] = []
    points: list[dict[str, Any]] = []
    for name, group in runs.groups(runs.of("naive", "refill", "vtoken", "page1"), free=("seed", *LOADS)):
        native = _of_same_loads(runs, group)
        if not native:
            found.append(
                Finding(
                    "throughput under the limit",
                    name,
                    None,
                    "%",
                    THROUGHPUT,
                    note="no native run of the same load finished; run runtime=native under it, too",
                )
            )
            continue
        group = _of_same_seeds(group, native)
        if any(run["itl_ms_p95"] is None for side in (group, *native) for run in side):
            note = "a job has no gap between tokens: use output_tokens=2 or more"
            found.append(Finding("throughput under the limit", name, None, "%", THROUGHPUT, note=note))
            continue
        best = max(native, key=_tokens)
        limit = LATENCY_FACTOR * _mean(best, "itl_ms_p95")
        loads = _by_load(group)
        found += [_throughput(name, loads, best, limit), _at_equal_load(name, loads, native), _goodput(name, loads, native, best)]
        points += [_point(load, limit) | {"name": told} for told, side in (("native", native), (name, loads)) for load in side]
    unique = list({(p["name"], *(p[k] for k in LOADS)): p for p in points}.values())
    return Outcome(QUESTION, found, {"points": unique})


def _of_same_loads(runs: Runs, group: Sequence[Run]) -> list[list[Run]]:
    """Native at each load of the group, all seeds of a load together."""

    def partner(run: Run) -> Run | None:
        return runs.partner(run, "native") or runs.partner(run, "native", free=("chunk",))

    found = {other["job"]: other for run in group if (other := partner(run)) is not None}
    return _by_load(list(found.values()))


def _of_same_seeds(group: Sequence[Run], native: list[list[Run]]) -> list[Run]:
    """Of loads that native ran, the seeds that it finished: a mean over others would compare other arrivals."""
    seeds = {_key(load[0]): {run["seed"] for run in load} for load in native}
    return [run for run in group if run["seed"] in seeds.get(_key(run), {run["seed"]})]


def _by_load(group: Sequence[Run]) -> list[list[Run]]:
    loads: dict[tuple[Any, ...], list[Run]] = {}
    for run in group:
        loads.setdefault(_key(run), []).append(run)
    return list(loads.values())


def _key(run: Run) -> tuple[Any, ...]:
    return tuple(run[key] for key in LOADS)


def _throughput(name: str, loads: list[list[Run]], best: list[Run], limit: float) -> Finding:
    within = [load for load in loads if _mean(load, "itl_ms_p95") <= limit]
    paper = THROUGHPUT if loads[0][0]["runtime"] == "vtoken" else None
    notes = [f"limit {limit:.2f} ms", f"native {_tokens(best):.1f} tok/s at {_load(best)}", where(best)]
    if not within:
        lowest = min(_mean(load, "itl_ms_p95") for load in loads)
        return Finding("throughput under the limit", name, -100.0, "%", paper, note="; ".join([f"p95 is at least {lowest:.2f} ms", *notes]))
    top = max(within, key=_tokens)
    notes.insert(0, f"{_tokens(top):.1f} tok/s at {_load(top)}")
    return Finding("throughput under the limit", name, change(_tokens(top), _tokens(best)), "%", paper, note="; ".join(notes))


def _at_equal_load(name: str, loads: list[list[Run]], native: list[list[Run]]) -> Finding:
    paper = THROUGHPUT if loads[0][0]["runtime"] == "vtoken" else None
    theirs = {_key(load[0]): load for load in native}
    pairs = [(load, other) for load in loads if (other := theirs.get(_key(load[0]))) is not None]
    within = [(load, other) for load, other in pairs if _mean(load, "itl_ms_p95") <= LATENCY_FACTOR * _mean(other, "itl_ms_p95")]
    if not within:
        return Finding(
            "throughput at equal load", name, -100.0, "%", paper, note=f"p95 is over {LATENCY_FACTOR} times native's at every load"
        )
    top, other = max(within, key=lambda pair: _tokens(pair[0]) / _tokens(pair[1]))
    note = f"{_tokens(top):.1f} tok/s, native {_tokens(other):.1f}, at {_load(top)}; {len(within)} of {len(pairs)} loads within the limit"
    return Finding("throughput at equal load", name, change(_tokens(top), _tokens(other)), "%", paper, note=note)


def _goodput(name: str, loads: list[list[Run]], native: list[list[Run]], best: list[Run]) -> Finding:
    if not all(run.bench for load in (*loads, *native) for run in load):
        return Finding("goodput", name, None, "%", note="a job's bench.json is missing: run the sweep in a new folder")
    limits = {metric: LATENCY_FACTOR * _mean(best, f"{metric}_ms_p95") for metric in ("ttft", "tpot")}
    mine, theirs = (max(fmean(good_rate(run.bench, limits) for run in load) for load in side) for side in (loads, native))
    note = f"{mine:.2f} requests/s, native {theirs:.2f}, with " + ", ".join(f"{k} <= {v:.1f} ms" for k, v in limits.items())
    return Finding("goodput", name, change(mine, theirs), "%", note=note)


def good_rate(bench: dict[str, Any], limits_ms: dict[str, float]) -> float:
    """Requests a second whose TTFT and mean gap are within the limits. bench: a job's bench.json."""
    tpots = [fmean(gaps) if gaps else 0.0 for gaps in bench["itls"]]
    pairs = zip(bench["ttfts"], tpots, strict=True)
    good = sum(ttft * 1e3 <= limits_ms["ttft"] and tpot * 1e3 <= limits_ms["tpot"] for ttft, tpot in pairs)
    return good / bench["duration"] if bench["duration"] else 0.0


def _point(load: list[Run], limit: float) -> dict[str, Any]:
    first, p95 = load[0], _mean(load, "itl_ms_p95")
    names = ("runtime", "policy", "budget", *LOADS)
    return {key: first[key] for key in names} | {"output_tok_s": _tokens(load), "itl_ms_p95": p95, "within": p95 <= limit}


def _tokens(load: Sequence[Run]) -> float:
    return _mean(load, "output_tok_s")


def _mean(load: Sequence[Run], column: str) -> float:
    return fmean(run[column] or 0.0 for run in load)


def _load(load: Sequence[Run]) -> str:
    run = load[0]
    if run["request_rate"] is not None:
        return f"{run['request_rate']:g} requests/s"
    return f"{run['max_concurrency'] or run['requests']} at once"
