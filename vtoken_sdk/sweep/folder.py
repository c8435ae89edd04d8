"""A sweep's folder: who works in it, what is planned, and what keeps two processes from doing the same job."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from vtoken_sdk.tracking.files import read_json, write_json, write_whole

from .plan import Plan
from .provenance import of_sweep
from .values import UsageError

STOP = ".stop"  # no further job of this sweep is to start
OUTCOME = ("status.json", "result.json", "steps.parquet", "bench.json", "quality.parquet", "error.txt", "log.txt")


@contextlib.contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Two sweeps in one folder would run each other's jobs. The system drops the lock when its process ends, however it ends."""
    try:
        lock = (folder / ".lock").open("w")
    except OSError as error:
        raise UsageError(f"dir={folder}: {error.strerror}; name a folder that can be written, dir=PATH") from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise UsageError(f"dir={folder}: another vtoken-sweep is running there; wait for it, or name another folder") from error
        with contextlib.suppress(OSError):
            (folder / STOP).unlink()
        yield


@contextlib.contextmanager
def job_alone(job: Path) -> Iterator[None]:
    """Held by the process that does the job. A second one, such as an array task of a sweep that was resumed meanwhile, waits."""
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):  # a full disk, or a file system without locks
            lock = stack.enter_context((job / ".lock").open("w"))
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def stop(sweep: Path) -> None:
    """Jobs that have not started, here or on a cluster, end at once."""
    with contextlib.suppress(OSError):
        (sweep / STOP).touch()


def stopped(sweep: Path) -> bool:
    return (sweep / STOP).exists()


def planned(sweep: Path) -> dict[str, Any]:
    """plan.json; {} if there is none."""
    return read_json(sweep / "plan.json")


def write_plan(folder: Path, plan: Plan, how: Mapping[str, Any]) -> None:
    """plan.json and each job's config.yaml. how: what the jobs' processes must know of the sweep. Raises UsageError."""
    try:
        for job in plan.jobs:
            path = folder / "jobs" / job.id
            path.mkdir(exist_ok=True)
            write_whole(path / "config.yaml", OmegaConf.to_yaml(OmegaConf.create(job.config())))
        jobs = [{"job": job.id, **job.flat()} for job in plan.jobs]
        source = {**of_sweep(), "cluster": how.get("cluster"), "jobs_at_once": how.get("jobs_at_once")}
        what = {"name": plan.name, "experiment": plan.experiment, "provenance": source, "axes": plan.axes, "notes": plan.notes}
        write_json(folder / "plan.json", {**what, "cwd": os.getcwd(), **how, "jobs": jobs})
    except OSError as error:
        raise UsageError(f"dir={folder}: the plan cannot be written ({error.strerror}); name another folder, dir=PATH") from error


def forget(job: Path) -> None:
    """What a job left, so that it runs once more. The status goes first: half of this is a job to run."""
    for name in OUTCOME:
        with contextlib.suppress(OSError):
            (job / name).unlink()
