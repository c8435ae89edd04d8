"""Hands jobs to whoever runs them: processes of this machine, a terminal's debugger, or one of Hydra's launchers."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Sequence
from multiprocessing import connection
from pathlib import Path

from hydra.core.utils import JobStatus
from hydra.plugins.launcher import Launcher

from .attempt import NOT_STARTED, attempt
from .folder import planned, stop
from .isolate import Running, run_isolated
from .job import Job

Failures = dict[str, str]  # job id -> reason
Launch = Callable[[Path, Sequence[Job]], Failures]  # of a sweep's folder and the jobs to run


def launch_here(workers: int) -> Launch:
    """At most `workers` jobs at once, each in a process of its own, in the order given."""

    def launch(folder: Path, jobs: Sequence[Job]) -> Failures:
        failures: Failures = {}
        waiting, running = list(reversed(jobs)), list[tuple[Job, Running]]()
        try:
            while waiting or running:
                while waiting and len(running) < workers:
                    job = waiting.pop()
                    running.append((job, Running(folder / "jobs" / job.id)))
                ready = connection.wait([end for _, one in running for end in one.ends])
                for job, ended in [(job, one) for job, one in running if any(end in ready for end in one.ends)]:
                    _note(failures, folder, job.id, ended.end())
                    running.remove((job, ended))
        finally:
            for _, left in running:
                left.kill()
        return failures

    return launch


def launch_in_process(folder: Path, jobs: Sequence[Job]) -> Failures:
    """One after another in this process: its terminal, its debugger, and its end if a job crashes."""
    failures: Failures = {}
    for job in jobs:
        _note(failures, folder, job.id, attempt(folder / "jobs" / job.id))
    return failures


def launch_by_hydra(launcher: Launcher) -> Launch:
    """Through a launcher of Hydra's. Raises what it raises: jobs that it did not start are missing then."""

    def launch(folder: Path, jobs: Sequence[Job]) -> Failures:
        batch = [[f"hydra.sweep.dir={quoted(str(folder))}", f"hydra.sweep.subdir=jobs/{job.id}"] for job in jobs]
        failures: Failures = {}
        with _stops_on_interrupt(folder):
            for job, result in zip(jobs, launcher.launch(batch, initial_job_idx=0), strict=True):
                if result.status is not JobStatus.COMPLETED:
                    failures[job.id] = f"{type(result._return_value).__name__}: {result._return_value}"
                elif result.return_value not in (None, NOT_STARTED):
                    failures[job.id] = result.return_value
        return failures

    return launch


def run_launched(folder: Path) -> str | None:
    """What a launcher runs for each job, on whatever machine: None, or why it failed."""
    reason = run_isolated(folder)
    _note({}, folder.parent.parent, folder.name, reason)
    return reason


def quoted(text: str) -> str:
    """As Hydra's command line reads it back: it takes a backslash for an escape only in front of a quote."""
    return "'" + re.sub(r"(\\*)('|$)", lambda m: m[1] * 2 + ("\\'" if m[2] else ""), text) + "'"


def _note(failures: Failures, sweep: Path, job: str, reason: str | None) -> None:
    if reason is None or reason == NOT_STARTED:
        return
    failures[job] = reason
    if planned(sweep).get("fail_fast"):
        stop(sweep)


@contextlib.contextmanager
def _stops_on_interrupt(folder: Path) -> Iterator[None]:
    """Jobs of a cluster that have not started must not do so once nobody waits for them."""
    try:
        yield
    except KeyboardInterrupt:
        stop(folder)
        raise
