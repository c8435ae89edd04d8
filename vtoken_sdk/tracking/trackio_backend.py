"""Finished jobs in Trackio: a local database in the sweep's folder, DIR/trackio. `TRACKIO_DIR=DIR/trackio trackio show` opens it."""

from __future__ import annotations

import os

from .files import JobFolder, plain
from .mirror import Options
from .steps import numbers, read_steps

WHERE = "TRACKIO_DIR"


class Trackio:
    def __init__(self, options: Options) -> None:
        self.options = options
        os.environ[WHERE] = str(options.sweep / "trackio")  # read when trackio is imported
        os.environ.setdefault("HF_HUB_OFFLINE", "1")

    def write(self, job: JobFolder) -> None:
        import trackio

        result = job.result
        config = plain({**result.get("config", {}), **result.get("provenance", {}), **job.status})
        run = trackio.init(
            project=self.options.project,
            name=f"{result.get('label', 'job')} {job.path.name}",
            group=self.options.group,
            config=config,
            embed=False,
            auto_log_gpu=False,
            auto_log_cpu=False,
        )
        steps = read_steps(job)
        for row in steps:
            run.log(numbers({k: v for k, v in plain(row).items() if k != "step"}), step=row["step"])
        run.log({f"result/{k}": v for k, v in numbers(plain(result.get("row", {}))).items()}, step=len(steps))
        run.finish()

    def after(self, error: Exception) -> str:
        return ""

    def close(self, mirrored: int) -> str:
        folder = os.path.relpath(self.options.sweep / "trackio")
        return f"Trackio: {mirrored} run{'s' * (mirrored != 1)}; to look: {WHERE}={folder} trackio show"
