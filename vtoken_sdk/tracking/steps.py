"""The steps of a job, as trackers log them."""

from __future__ import annotations

from typing import Any

from .files import JobFolder


def read_steps(job: JobFolder) -> list[dict[str, Any]]:
    """One mapping a step: column -> value. [] for a job that has none. Raises what a broken file raises."""
    import pyarrow.parquet as pq

    path = job.path / "steps.parquet"
    rows: list[dict[str, Any]] = pq.read_table(path).to_pylist() if path.exists() else []
    return rows


def numbers(row: dict[str, Any]) -> dict[str, float]:
    """Those values that a curve can show."""
    return {k: v for k, v in row.items() if isinstance(v, int | float) and not isinstance(v, bool)}
