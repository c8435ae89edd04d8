"""Follows the jobs of a sweep by their status files, whoever runs them: shows progress and hands what is finished to the tracker."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from vtoken_sdk.tracking import Tracker
from vtoken_sdk.tracking.files import JobFolder

from .job import Job

LOOK_EVERY = 0.25  # seconds


class Follower:
    """A context: follows `jobs` from a thread while they run elsewhere."""

    def __init__(self, console: Console, sweep: Path, jobs: Sequence[Job], tracker: Tracker, names: dict[str, str]) -> None:
        self.console, self.tracker, self.names = console, tracker, names
        self.open = {job.id: JobFolder(sweep / "jobs" / job.id) for job in jobs}
        self.total, self.shares = len(jobs), dict.fromkeys(self.open, 0.0)
        self.bar = Progress(
            TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn(),
            TextColumn("left"), TimeRemainingColumn(), console=console, transient=True, disable=not console.is_terminal,
        )  # fmt: skip
        self.task = self.bar.add_task("starting", total=self.total)
        self.ended = threading.Event()
        self.thread = threading.Thread(target=self._follow, daemon=True)

    def __enter__(self) -> Follower:
        self.bar.start()
        self.thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.ended.set()
        self.thread.join()
        self.look()
        self.bar.stop()

    def _follow(self) -> None:
        while not self.ended.wait(LOOK_EVERY):
            self.look()

    def look(self) -> None:
        """Read the status of every job that is not known to have ended."""
        for job_id, folder in list(self.open.items()):
            status = folder.status
            name, state = self.names[job_id], status.get("status")
            if state == "running":
                self.shares[job_id] = float(status.get("share", 0.0))
                self.bar.update(self.task, description=f"{name} ({status.get('phase')})")
            elif state in ("done", "failed"):
                del self.open[job_id]
                self.shares[job_id] = 1.0
                how = f"done in {status['seconds']:.1f} s" if state == "done" else f"failed: {status.get('error')}"
                self.console.print(
                    f"[{self.total - len(self.open)}/{self.total}] {name}: {how}", markup=False, highlight=False, soft_wrap=True
                )
                self.tracker.add(folder.path)
        with contextlib.suppress(ZeroDivisionError):
            self.bar.update(self.task, completed=sum(self.shares.values()))
