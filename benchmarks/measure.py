"""Shared by the benchmarks: where a figure came from, and how it is timed on a GPU."""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parent.parent
if str(ROOT / "src") not in sys.path:  # runs without an installation, too
    sys.path.insert(0, str(ROOT / "src"))


def provenance() -> dict[str, Any]:
    """Commit (the variable COMMIT where files are copied without their history, else git's), versions, device and date."""

    def git(*words: str) -> str:
        return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()

    made = {
        "commit": os.environ.get("COMMIT") or git("rev-parse", "--verify", "HEAD") or None,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else platform.processor(),
    }
    for name in ("triton", "transformers", "vllm"):
        if name in sys.modules:
            made[name] = sys.modules[name].__version__
    return made


def write(path: Path, results: Any, **about: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"provenance": provenance(), **about, "results": results}, indent=1) + "\n", encoding="utf-8")
    print(f"written to {path}", flush=True)


def graph_us(act: Callable[[], Any], repeat: int = 10, rep_ms: int = 60) -> float:
    """Median microseconds of one call, replayed `repeat` times in a CUDA graph: no launch gaps but the device's own."""
    from triton.testing import do_bench

    act()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(repeat):
            act()
    return do_bench(graph.replay, warmup=10, rep=rep_ms, return_mode="median") / repeat * 1e3


def quantile(values: list[float], q: float) -> float:
    """The value below which a share q lies, 0 < q < 1."""
    return statistics.quantiles(values, n=1000, method="inclusive")[round(q * 1000) - 1]
