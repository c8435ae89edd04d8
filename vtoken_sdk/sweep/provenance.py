"""Where figures come from: commit, versions, machine, command."""

from __future__ import annotations

import importlib.metadata
import platform
import subprocess
import sys
import time
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vtoken_sdk.runtime.model_loader import LoadedModel

COMMAND: ContextVar[str] = ContextVar("command", default="")  # as the user typed it
PACKAGES = ("vtoken-sdk", "torch", "transformers", "triton", "hydra-core", "wandb", "numpy")


def of_sweep() -> dict[str, str | None]:
    """Known before any job runs."""
    return {
        "date": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "command": COMMAND.get(),
        "commit": _commit(),
        "python": platform.python_version(),
        **{f"version_{name.replace('-', '_')}": _version(name) for name in PACKAGES},
        "platform": platform.platform(),
        "host_cpu": _cpu(),
    }


def of_model(model: LoadedModel) -> dict[str, str | int | None]:
    """Known once the model is loaded. Host figures are of this machine and no other."""
    import torch

    on_gpu = model.device.type == "cuda"
    return {
        "device_name": torch.cuda.get_device_name(model.device) if on_gpu else _cpu(),
        "cpu_threads": torch.get_num_threads(),
        "model_source": model.source.location,
        "model_revision": model.source.revision,
        "model_sha256": model.source.sha256,
        "model_sha256_of": model.source.hashed,
    }


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _commit() -> str | None:
    """Of this package's own repository; a "+" marks uncommitted changes. None where it is not run from one."""
    root = Path(__file__).resolve().parents[2]

    def git(*args: str) -> str:
        return subprocess.run(["git", "-C", str(root), *args], capture_output=True, text=True, check=True, timeout=10).stdout.strip()

    try:
        if Path(git("rev-parse", "--show-toplevel")).resolve() != root:
            return None
        return git("rev-parse", "HEAD") + ("+" if git("status", "--porcelain", "--untracked-files=no") else "")
    except (OSError, subprocess.SubprocessError):
        return None


def _cpu() -> str:
    if sys.platform == "linux":
        try:
            for line in Path("/proc/cpuinfo").read_text().splitlines():
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
        except OSError:
            pass
    return platform.processor() or platform.machine()
