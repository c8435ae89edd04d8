"""The files of a sweep. Each is written whole or not at all; they are the truth that tables, reports and W&B are made of.

DIR/{plan.json, results.parquet, results.csv, report.html, jobs.jsonl, experiment.json, search.json}
DIR/jobs/<job>/{config.yaml, status.json, steps.parquet, bench.json, quality.parquet, result.json, error.txt, log.txt, wandb/}
"""

from __future__ import annotations

import contextlib
import io
import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa


def write_whole(path: Path, data: str | bytes) -> None:
    """Write beside the path, then rename: a reader sees the old file or the new one. Raises OSError."""
    part = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        part.write_bytes(data.encode() if isinstance(data, str) else data)
        os.replace(part, path)
    except BaseException:
        with contextlib.suppress(OSError):
            part.unlink()
        raise


def plain(value: Any) -> Any:
    """As JSON has it: mappings and sequences of str, int, finite float, bool and None; other numbers by their value."""
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    if hasattr(value, "tolist"):  # numpy and torch, scalars and arrays
        return plain(value.tolist())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if value is None or isinstance(value, str | int) else str(value)


def write_json(path: Path, value: Any) -> None:
    write_whole(path, json.dumps(plain(value), indent=1, allow_nan=False) + "\n")


def read_json(path: Path) -> dict[str, Any]:
    """{} if the file is missing or broken: a job without a good file is a job to run."""
    try:
        value = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def parquet_of(table: pa.Table) -> bytes:
    import pyarrow.parquet as pq

    buffer = io.BytesIO()
    pq.write_table(table, buffer)
    return buffer.getvalue()


def csv_of(table: pa.Table) -> bytes:
    import pyarrow.csv

    buffer = io.BytesIO()
    pyarrow.csv.write_csv(table, buffer)
    return buffer.getvalue()


def write_parquet(path: Path, table: pa.Table) -> None:
    write_whole(path, parquet_of(table))


class JobFolder:
    """DIR/jobs/<job>: what a job leaves, and how it stands."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def status(self) -> dict[str, Any]:
        return read_json(self.path / "status.json")

    @property
    def outcome(self) -> dict[str, Any]:
        """Columns of the results: how the job stands, and its figures if it is done. What never came to an end is missing."""
        status = self.status
        state = status.get("status")
        if state == "done" and (result := self.result):
            return {**result["row"], "status": "done"}
        if state == "failed":
            return {"status": "failed", "error": status.get("error")}
        return {"status": "missing", "error": "it was running when its sweep ended" if state == "running" else None}

    @property
    def state(self) -> str:
        """done, with a whole result; failed; killed, from outside; or missing."""
        state = str(self.outcome["status"])
        return "killed" if state == "failed" and self.status.get("killed") else state

    @property
    def done(self) -> bool:
        return self.state == "done"

    @property
    def result(self) -> dict[str, Any]:
        """{} if there is none with figures in it."""
        result = read_json(self.path / "result.json")
        return result if isinstance(result.get("row"), dict) else {}

    @property
    def log(self) -> str:
        """What the job printed; a crash's native trace, too."""
        try:
            return (self.path / "log.txt").read_text(errors="replace")
        except OSError:
            return ""

    def say(self, status: str, **more: Any) -> None:
        """Replace status.json. Raises OSError."""
        write_json(self.path / "status.json", {"status": status, **more})

    def fail(self, reason: str, trace: str = "") -> None:
        """Record a failure. A full disk must not hide it: what cannot be written is left out."""
        with contextlib.suppress(OSError):
            write_whole(self.path / "error.txt", (trace or reason).rstrip() + "\n")
        with contextlib.suppress(OSError):
            self.say("failed", error=reason)
