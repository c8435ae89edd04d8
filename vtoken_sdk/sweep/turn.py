"""Jobs on one machine take turns on its GPUs, one job a GPU, whoever starts them: workers, other sweeps, other users of this tool.

Two at once would share the memory that one of them measures. Slurm hands out GPUs by itself.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from vtoken_sdk.tracking.files import JobFolder

LOOK_EVERY = 0.2  # seconds


@contextlib.contextmanager
def turn(job: JobFolder, plan: Mapping[str, Any]) -> Iterator[None]:
    """Until a GPU is free, if the job may use one; it then sees no other. plan: plan.json."""
    device = next((known["device"] for known in plan.get("jobs", []) if known["job"] == job.path.name), "auto")
    with contextlib.ExitStack() as stack:
        if device != "cpu" and plan.get("cluster") not in ("slurm", "submitit_slurm"):
            gpus = visible_gpus()
            if gpus:
                waiting = lambda: job.say("running", phase="waiting for a GPU", share=0.0)  # noqa: E731
                os.environ["CUDA_VISIBLE_DEVICES"] = stack.enter_context(one_of(gpus, waiting))
        yield


def visible_gpus() -> list[str]:
    """As CUDA_VISIBLE_DEVICES names them. Does not initialize CUDA, after which that variable would mean nothing."""
    import torch

    count = torch.cuda.device_count()
    named = [name.strip() for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.strip()]
    return (named or [str(number) for number in range(count)])[:count]


def _shared(path: Path) -> IO[str]:
    """A file that another user's jobs lock as well. What is there is opened, not created, which many systems refuse there."""
    try:
        return path.open("r+")
    except FileNotFoundError:
        made = path.open("a")
        with contextlib.suppress(OSError):
            path.chmod(0o666)
        return made


@contextlib.contextmanager
def one_of(names: Sequence[str], waiting: Callable[[], None]) -> Iterator[str]:
    """The first of these that nobody on this machine holds; it is held to the end, or until the process ends. waiting: if all are taken."""
    said = False
    while True:
        for name in names:
            path = Path(tempfile.gettempdir()) / f"vtoken-gpu-{re.sub(r'[^A-Za-z0-9-]', '_', name)}.lock"
            with _shared(path) as lock:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    continue
                yield name
                return
        if not said:
            waiting()
            said = True
        time.sleep(LOOK_EVERY)
