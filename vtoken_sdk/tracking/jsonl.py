"""The tracker that always runs: DIR/jobs.jsonl, a line for each job as it ends, for `tail -f` and for other programs."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

from .files import JobFolder, plain

FILE = "jobs.jsonl"


class Jsonl:
    """A line is written by one call, so that lines stay whole when a sweep is killed. A sweep that goes on appends."""

    def __init__(self, sweep: Path) -> None:
        self.path = sweep / FILE
        self.problem = ""

    def add(self, folder: Path) -> None:
        job = JobFolder(folder)
        line = json.dumps(plain({"time": time.time(), "job": folder.name, **job.status, "row": job.result.get("row", {})}))
        try:
            file = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
            try:
                os.write(file, f"{line}\n".encode())
            finally:
                os.close(file)
        except OSError as error:
            self.problem = f"warning: {self.path.name} is not whole ({error.strerror}); results are in the jobs' files, unaffected"

    def finish(self) -> None:
        pass

    def close(self, patience: float = 0.0) -> str:
        return self.problem
