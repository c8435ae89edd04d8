"""One try at a job, in whatever process it is: at most one at a time, none if it is done, none if the sweep was stopped."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from vtoken_sdk.tracking.files import JobFolder

from .folder import job_alone, planned, stopped
from .turn import turn

NOT_STARTED = "not started: the sweep was stopped"


def attempt(folder: Path) -> str | None:
    """None, or why the job failed. It runs where the sweep was started, so that ./mine.py means the same file on every machine."""
    sweep = folder.parent.parent
    with job_alone(folder):
        job = JobFolder(folder)
        if job.done:
            return None
        if stopped(sweep):
            return NOT_STARTED
        with contextlib.suppress(OSError):
            os.truncate(folder / "log.txt", 0)
        plan = planned(sweep)
        with contextlib.suppress(OSError):
            os.chdir(plan.get("cwd", "."))
        with turn(job, plan):
            from .run import run_job

            return run_job(folder)
