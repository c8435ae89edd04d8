"""The helper process that writes finished jobs to W&B: one run a job, a group a sweep, flat keys."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, cast

from .files import JobFolder, plain

GRACE = 5.0  # seconds beyond the sweep's own patience, in case the sweep is gone


def mirror(pipe: Connection, mode: str, project: str, group: str, timeout: float) -> None:
    """Serve until the sweep says None or is gone; answer (jobs mirrored, problem or None)."""
    os.setsid()
    os.nice(19)
    _silence()
    mirrored, problem = 0, None
    for folder in _folders(pipe, timeout):
        try:
            _write_run(JobFolder(folder), mode, project, group, timeout)
            mirrored += 1
        except Exception as error:  # whatever W&B raises stays here
            problem = f"{type(error).__name__}: {error}".partition("\n")[0]
            if mode == "online":
                mode, problem = "offline", f"{problem}; the rest is offline, to be uploaded by wandb sync"
    with contextlib.suppress(OSError):
        pipe.send((mirrored, problem))


def _folders(pipe: Connection, timeout: float) -> Any:
    while True:
        try:
            folder = pipe.recv()
        except (EOFError, OSError):
            folder = None
        if folder is None:
            break
        yield Path(folder)
    clock = threading.Timer(timeout + GRACE, os.killpg, (0, signal.SIGKILL))
    clock.daemon = True
    clock.start()


def _silence() -> None:
    null = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(null, stream)
    home = Path("~").expanduser()
    if not os.access(home, os.W_OK):  # W&B wants folders of its own there
        scratch = os.path.join(os.environ.get("TMPDIR", "/tmp"), f"vtoken-wandb-{os.getuid()}")
        for name in ("WANDB_CACHE_DIR", "WANDB_CONFIG_DIR", "WANDB_DATA_DIR"):
            os.environ.setdefault(name, scratch)


def _write_run(job: JobFolder, mode: str, project: str, group: str, timeout: float) -> None:
    import wandb

    result, status = job.result, job.status
    (job.path / "wandb").mkdir(exist_ok=True)
    run = wandb.init(
        project=project,
        group=group,
        name=result.get("label", job.path.name),
        job_type=result.get("row", {}).get("runtime"),
        config=plain({**result.get("config", {}), **result.get("provenance", {})}),
        dir=job.path,
        mode=cast(Any, mode),
        reinit="create_new",
        settings=wandb.Settings(
            silent=True,
            console="off",
            save_code=False,
            disable_git=True,
            x_disable_stats=True,
            x_disable_machine_info=True,
            init_timeout=timeout / 2,
        ),
    )
    run.define_metric("step")
    run.define_metric("*", step_metric="step")
    for row in _steps(job.path / "steps.parquet"):
        run.log(plain(row))
    run.summary.update({k: v for k, v in plain({**result.get("row", {}), **status}).items() if v is not None})
    run.finish(exit_code=0 if status.get("status") == "done" else 1)


def _steps(path: Path) -> list[dict[str, Any]]:
    import pyarrow.parquet as pq

    rows: list[dict[str, Any]] = pq.read_table(path).to_pylist() if path.exists() else []
    return rows
