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
CODE = ("runtime", "policies", "vtoken_sdk", "benchmarks/*.py")
if str(ROOT / "src") not in sys.path:  # runs without an installation, too
    sys.path.insert(0, str(ROOT / "src"))


def provenance(device: torch.device | None = None) -> dict[str, Any]:
    """Commit (the variable COMMIT where files are copied without their history, else git's), versions, device and date.

    device: None for the GPU, where there is one.
    """
    on_gpu = torch.cuda.is_available() if device is None else device.type == "cuda"

    def git(*words: str) -> str:
        return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()

    made = {
        "commit": os.environ.get("COMMIT") or git("rev-parse", "--verify", "HEAD") or None,
        # Where files are copied without their history, git would compare them with another commit.
        "changed_files": None if "COMMIT" in os.environ else git("status", "--porcelain", "--untracked-files=no", "--", *CODE).splitlines(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "device": torch.cuda.get_device_name(device) if on_gpu else processor(),
        "threads": torch.get_num_threads(),
    }
    for name in ("triton", "transformers", "vllm"):
        if name in sys.modules:
            made[name] = sys.modules[name].__version__
    return made


def need_gpu() -> None:
    """Ends the script where there is none."""
    if not torch.cuda.is_available():
        sys.exit("this measures an NVIDIA GPU, and PyTorch finds none here")


def processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


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
