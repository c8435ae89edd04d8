"""Made-up rows and sweeps' folders: shapes that a sweep can have, without running one."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from vtoken_sdk.metrics import COLUMNS
from vtoken_sdk.report.compare import RUNTIMES, Row
from vtoken_sdk.report.parts import View
from vtoken_sdk.report.record import read_record
from vtoken_sdk.report.write import view_of

CONFIG = (
    *("policy", "budget", "runtime", "threshold", "margin", "pool_blocks", "prefix_cache", "model", "weights", "dtype", "device"),
    *("workload", "ctx", "lengths", "requests", "chunk", "max_running", "seed"),
)
FACTS = {"commit": "abc123", "python": "3.11", "version_torch": "2.13", "device_name": "a CPU"}


def row(runtime: str, policy: str = "h2o", budget: float = 0.5, **more: Any) -> Row:
    size = 1 if runtime == "page1" else 16
    evicts = runtime != "native"
    ideal = 500.0 if evicts else 1000.0
    held = {"native": 1000, "naive": 990, "refill": 950, "vtoken": 510, "page1": 500}[runtime] * 16 / size
    name = f"{runtime} {policy} {budget} {more}" if evicts else f"native {more}"
    known: Row = {
        **dict.fromkeys(COLUMNS),
        **{"job": f"{zlib.crc32(name.encode()):012x}", "status": "done", "runtime": runtime},
        **({"policy": policy, "budget": budget, "evict_prefill": "end", "evict_every": 16, "kept": 1.0, "evictions": 9} if evicts else {}),
        **{"model": "tiny", "weights": "dummy", "dtype": "float32", "device": "cpu", "workload": "synthetic", "requests": 8, "ctx": 16384},
        **{"lengths": "fixed", "max_tokens": 32, "chunk": 2048, "max_running": 64, "pool_blocks": 5427, "pool_block_size": 16, "seed": 0},
        **{"block_size": size, "blocks_held": held, "blocks_ideal": ideal * 16 / size, "blocks_held_peak": int(held * 1.1)},
        **{"waste": 1 - ideal * 16 / size / held, "utilization": ideal * 16 / size / held, "concurrency_peak": 8},
        **{"admits_5427": 10 if evicts else 5, "admits_11519": 22 if evicts else 11},
        **{"output_tok_s": 812.3, "ttft_ms_p50": 1200.0, "itl_ms_p50": 9.1, "itl_ms_p95": 12.2},
        **{"model_ms": 7.0, "table_ms": 0.4, "cut_short": 0, "tokens_sha256": f"{policy}{budget}", "victims_sha256": f"{policy}{budget}"},
        **(
            {"plans": 4, "moves": 100, "bytes_moved": 10**6, "blocks_freed": 50, "plan_ms": 0.2, "copy_ms": 0.1}
            if runtime == "vtoken"
            else {}
        ),
    }
    return known | more


def steps_of(row: Row, count: int = 300, **more: list[Any]) -> dict[str, list[Any]]:
    return {
        "step": list(range(count)),
        "blocks_held": [int(row["blocks_held"] * min(1, i / 50)) for i in range(count)],
        "blocks_ideal": [int(row["blocks_ideal"] * min(1, i / 50)) for i in range(count)],
        "utilization": [None if i == 0 else row["utilization"] for i in range(count)],
        "running": [8] * count,
        **more,
    }


def write_sweep(
    folder: Path,
    rows: Sequence[Row],
    command: str = "vtoken-sweep policy=h2o 'a<b'",
    facts: Mapping[str, Any] = FACTS,
    *,
    steps: int = 300,
    occupancy: bool = False,
    config: Mapping[str, Mapping[str, Any]] | None = None,
) -> Path:
    """As vtoken-sweep leaves it, without results.parquet. config: further keys of a job's configuration. steps: of a job; 0 writes none."""
    extra = config or {}
    jobs = [{"job": r["job"], **{k: r[k] for k in CONFIG}, "block_size": 16, "output_tokens": 32, **extra.get(r["job"], {})} for r in rows]
    folder.mkdir(parents=True)
    (folder / "plan.json").write_text(json.dumps({"name": folder.name, "provenance": {"command": command, **facts}, "jobs": jobs}))
    for job, r in zip(jobs, rows, strict=True):
        path = folder / "jobs" / r["job"]
        path.mkdir(parents=True)
        if r["status"] == "missing":
            continue
        (path / "status.json").write_text(json.dumps({"status": r["status"], "error": r["error"]}))
        if r["status"] == "done":
            facts_of_job = {**facts, "policy_source": f"/home/you/{r['policy']}.py", "policy_sha256": f"sha-of-{r['policy']}"}
            figures = {k: v for k, v in r.items() if v is not None}
            (path / "result.json").write_text(json.dumps({"row": figures, "config": job, "provenance": facts_of_job}))
            if steps:
                more = {"occupancy": [[0, *[3] * r["block_size"]]] * steps} if occupancy else {}
                pq.write_table(pa.table(steps_of(r, steps, **more)), path / "steps.parquet")
    return folder


def view(folder: Path, *rows: Row, baseline: str = "native", **more: Any) -> View:
    """Of a sweep that is written for it."""
    return view_of(read_record([write_sweep(folder / "sweep", rows, **more)]), baseline)


FIVE = [row(name) for name in RUNTIMES]
MANY = [
    row("native"),
    *(
        row(n, p, b)
        for p in ("h2o", "random", "streaming_llm", "scissorhands", "./mine.py")
        for b in (0.1, 0.25, 0.5, 0.75, 64)
        for n in RUNTIMES[1:]
    ),
]
