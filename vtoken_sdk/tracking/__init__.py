"""W&B as a mirror of finished jobs. The files are the truth; a run neither waits for the mirror nor fails with it.

`Mirror` is the sweep's end: it hands job folders to one helper process (`wandb_mirror`), which reads the jobs' files and writes
them to W&B at the lowest priority. Only `close` waits, for at most `timeout` seconds; then the helper is killed.
"""

from __future__ import annotations

import contextlib
import importlib.util
import multiprocessing
import os
import signal
from pathlib import Path
from typing import Protocol

MODES = ("offline", "online", "disabled")


class Tracker(Protocol):
    """Takes finished jobs. No method raises or waits, but `close`, which waits for a bounded time and says how it went."""

    def add(self, folder: Path) -> None: ...

    def close(self) -> str: ...


class NoTracker:
    """Only the files."""

    def __init__(self, note: str) -> None:
        self.note = note

    def add(self, folder: Path) -> None:
        pass

    def close(self) -> str:
        return self.note


class Mirror:
    """Jobs to W&B by a helper process. timeout: seconds that `close` waits."""

    def __init__(self, sweep: Path, mode: str, project: str, group: str, timeout: float) -> None:
        from .wandb_mirror import mirror

        self.sweep, self.mode, self.timeout = sweep, mode, timeout
        context = multiprocessing.get_context("forkserver")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=mirror, args=(theirs, mode, project, group, timeout), daemon=True)
        self.process.start()
        theirs.close()
        os.set_blocking(self.pipe.fileno(), False)
        self.sent = 0

    def add(self, folder: Path) -> None:
        with contextlib.suppress(OSError):  # a dead or stuck helper is told of by close
            self.pipe.send(str(folder))
            self.sent += 1

    def close(self) -> str:
        """One line on how it went."""
        try:
            return self._close()
        finally:
            self._kill()

    def _close(self) -> str:
        with contextlib.suppress(OSError):
            self.pipe.send(None)
        os.set_blocking(self.pipe.fileno(), True)
        try:
            if not self.pipe.poll(self.timeout):
                return f"warning: W&B was given up after {self.timeout:g} s (wandb.timeout); results are in the files, unaffected"
            mirrored, problem = self.pipe.recv()
        except (EOFError, OSError):
            return "warning: the W&B helper process died; results are in the files, unaffected"
        if problem is not None:
            return f"warning: W&B has {mirrored} of {self.sent} jobs ({problem}); results are in the files, unaffected"
        runs = "run" if mirrored == 1 else "runs"
        if self.mode == "offline":
            where = f"{os.path.relpath(self.sweep)}/jobs/*/wandb/offline-run-*"
            return f"W&B: {mirrored} offline {runs}; to upload: wandb sync {where}"
        return f"W&B: {mirrored} {runs} uploaded"

    def _kill(self) -> None:
        """The helper leads its own process group, which W&B's service may have left; that one ends with its parent."""
        with contextlib.suppress(OSError):
            os.killpg(self.process.pid or 0, signal.SIGKILL)
        self.process.kill()


def start_tracker(sweep: Path, mode: str | None, project: str, group: str, timeout: float) -> Tracker:
    """mode: of the options; None takes $WANDB_MODE, or offline."""
    mode = mode or os.environ.get("WANDB_MODE") or "offline"
    mode = {"dryrun": "offline", "run": "online", "shared": "online"}.get(mode, mode)
    if mode == "disabled":
        return NoTracker("W&B: disabled")
    if mode not in MODES:
        return NoTracker(f"warning: W&B is off: $WANDB_MODE={mode} is none of {', '.join(MODES)}")
    found = importlib.util.find_spec("wandb")
    if found is None or found.origin is None:  # a folder called wandb is none
        return NoTracker("W&B is not installed (pip install wandb): results are in the files only")
    return Mirror(sweep, mode, project, group, timeout)
