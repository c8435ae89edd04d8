"""Finished jobs on W&B: one run a job, a group a sweep, flat keys. Offline needs no account and no network."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, cast

from .files import JobFolder, plain
from .home import writable_home
from .mirror import Options
from .steps import read_steps
from .wandb_file import becomes_whole

SETTLED = 5.0  # seconds after which the file of a finished run is what it stays


class Wandb:
    def __init__(self, options: Options) -> None:
        self.options = options
        writable_home()

    def write(self, job: JobFolder) -> None:
        import wandb

        result, status = job.result, job.status
        (job.path / "wandb").mkdir(exist_ok=True)
        run = wandb.init(
            project=self.options.project,
            group=self.options.group,
            name=result.get("label", job.path.name),
            job_type=result.get("config", {}).get("runtime"),
            config=plain({**result.get("config", {}), **result.get("provenance", {})}),
            dir=job.path,
            mode=cast(Any, self.options.mode),
            reinit="create_new",
            settings=wandb.Settings(
                silent=True,
                console="off",
                save_code=False,
                disable_git=True,
                x_disable_stats=True,
                x_disable_machine_info=True,
                init_timeout=self.options.timeout / 2,
            ),
        )
        run.define_metric("step")
        run.define_metric("*", step_metric="step")
        for row in read_steps(job):
            run.log({name: value for name, value in plain(row).items() if not isinstance(value, list)})
        run.summary.update({k: v for k, v in plain({**result.get("row", {}), **status}).items() if v is not None})
        run.finish(exit_code=0 if status.get("status") == "done" else 1)
        if self.options.mode == "offline":
            for path in Path(run.dir).parent.glob("run-*.wandb"):
                if not becomes_whole(path, SETTLED):
                    raise OSError(f"{path.name} was cut short; is the disk full?")

    def after(self, error: Exception) -> str:
        """A server that failed once is not waited for again."""
        if self.options.mode != "online":
            return ""
        self.options = self.options.of_mode("offline")
        return "the rest is offline, to be uploaded by wandb sync"

    def close(self, mirrored: int) -> str:
        runs = "run" if mirrored == 1 else "runs"
        if self.options.mode == "offline":
            where = f"{os.path.relpath(self.options.sweep)}/jobs/*/wandb/offline-run-*"
            return f"W&B: {mirrored} offline {runs}; to upload: wandb sync {where}"
        return f"W&B: {mirrored} {runs} uploaded"
