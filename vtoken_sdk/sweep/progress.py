"""Follows the jobs of a sweep by their status files, whoever runs them: shows progress and hands what is finished to the tracker."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

from vtoken_sdk.tracking import Tracker
from vtoken_sdk.tracking.files import JobFolder

from .job import Job

LOOK_EVERY = 0.25  # seconds
SAY_EVERY = 30.0  # seconds between two lines where there is no terminal for a bar


class Follower:
    """A context: follows `jobs` from a thread while they run elsewhere. bar: on a terminal, where nothing else wants to write."""

    def __init__(
        self,
        console: Console,
        sweep: Path,
        jobs: Sequence[Job],
        tracker: Tracker,
        names: dict[str, str],
        *,
        bar: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.console, self.tracker, self.names, self.clock = console, tracker, names, clock
        self.open = {job.id: JobFolder(sweep / "jobs" / job.id) for job in jobs}
        self.total, self.shares = len(jobs), dict.fromkeys(self.open, 0.0)
        self.bar = Progress(
            TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn(), TextColumn("{task.fields[left]}"),
            console=console, transient=True, disable=not (bar and console.is_terminal),
        )  # fmt: skip
        self.task = self.bar.add_task("starting", total=self.total, left="")
        self.began = self.said = clock()
        self.seen: dict[str, float] = {}  # running jobs: since when
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

    @property
    def left(self) -> str:
        """How long it will still take if jobs go on as fast as so far: "about 3 min left", or nothing yet known."""
        share = sum(self.shares.values())
        seconds = (self.clock() - self.began) / share * (self.total - share) if share else 0.0
        return f"{duration(seconds)} left" if seconds else ""

    def look(self) -> None:
        """Read the status of every job that is not known to have ended."""
        doing, spent = "", 0.0
        for job_id, folder in list(self.open.items()):
            status = folder.status
            name, state = self.names[job_id], status.get("status")
            if state == "running":
                self.shares[job_id] = float(status.get("share", 0.0))
                since = self.seen.setdefault(job_id, self.clock())
                doing, spent = f"{name} ({status.get('phase')})", self.clock() - since
            elif state in ("done", "failed"):
                del self.open[job_id]
                self.shares[job_id] = 1.0
                how = f"done in {status['seconds']:.1f} s" if state == "done" else f"failed: {status.get('error')}"
                self.say(f"{name}: {how}")
                self.tracker.add(folder.path)
        if self.bar.disable and doing and self.clock() - self.said > SAY_EVERY:
            self.say(f"{doing} for {duration(spent)}")
        self.bar.update(self.task, completed=sum(self.shares.values()), left=self.left, description=doing or None)

    def say(self, what: str) -> None:
        """A line, with what is done of all and the estimate."""
        self.said = self.clock()
        left = f", {self.left}" if self.left and self.open else ""
        line = f"[{self.total - len(self.open)}/{self.total}] {what}{left}"
        self.console.print(line, markup=False, highlight=False, soft_wrap=True)


def duration(seconds: float) -> str:
    """about 40 s, 3 min, 2.5 h"""
    if seconds < 90:
        return f"about {seconds:.0f} s"
    return f"about {seconds / 60:.0f} min" if seconds < 5400 else f"about {seconds / 3600:.1f} h"
