"""Finished jobs for TensorBoard: event files in DIR/tensorboard/<job>, one folder a job."""

from __future__ import annotations

import json
import os
import re

from .files import JobFolder, plain
from .mirror import Options
from .steps import numbers, read_steps


class Tensorboard:
    def __init__(self, options: Options) -> None:
        self.options = options

    def write(self, job: JobFolder) -> None:
        from torch.utils.tensorboard import SummaryWriter

        result = job.result
        about = plain({**result.get("config", {}), **result.get("provenance", {}), **job.status})
        name = re.sub(r"[^\w.-]+", "_", f"{result.get('label', 'job')}_{job.path.name}")
        folder = self.options.sweep / "tensorboard" / name
        with SummaryWriter(str(folder)) as writer:
            writer.add_text("config", f"```json\n{json.dumps(about, indent=1)}\n```")
            for row in read_steps(job):
                for name, value in numbers(plain(row)).items():
                    writer.add_scalar(f"step/{name}", value, row["step"])
            for name, value in numbers(plain(result.get("row", {}))).items():
                writer.add_scalar(f"result/{name}", value, 0)

    def after(self, error: Exception) -> str:
        return ""

    def close(self, mirrored: int) -> str:
        folder = os.path.relpath(self.options.sweep / "tensorboard")
        return f"TensorBoard: {mirrored} run{'s' * (mirrored != 1)}; to look: tensorboard --logdir {folder}"
