"""From the folders of a plan's jobs to one table and one page: results.parquet, results.csv, report.html."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from vtoken_sdk.metrics import COLUMNS, Row
from vtoken_sdk.report import write_page
from vtoken_sdk.report.compare import label, varying
from vtoken_sdk.report.record import planned_row
from vtoken_sdk.tracking.files import JobFolder, write_parquet, write_whole

from .job import Job

if TYPE_CHECKING:
    import pyarrow as pa


def job_row(job: Job) -> Row:
    """The columns that are known before a job runs; the loaded model and the engine replace some."""
    return planned_row(job.id, job.flat())


def rows_of(sweep: Path, jobs: Sequence[Job], failures: Mapping[str, str]) -> list[Row]:
    """One row a job of the plan, in its order. failures: job id -> reason, for jobs that could not even write theirs."""
    rows = []
    for job in jobs:
        folder = JobFolder(sweep / "jobs" / job.id)
        status = folder.status
        if folder.done:
            row = {**job_row(job), **folder.result["row"], "status": "done"}
        elif status.get("status") == "failed" or job.id in failures:
            row = {**job_row(job), "status": "failed", "error": failures.get(job.id) or status.get("error")}
        else:
            row = job_row(job)
        rows.append({name: row.get(name) for name in COLUMNS})
    return rows


def results_table(rows: Sequence[Row]) -> pa.Table:
    import pyarrow as pa

    kinds = {str: pa.string(), int: pa.int64(), float: pa.float64(), bool: pa.bool_()}
    return pa.table({name: pa.array([row[name] for row in rows], kinds[kind]) for name, kind in COLUMNS.items()})


def write_results(sweep: Path, rows: Sequence[Row]) -> None:
    """results.parquet and results.csv. Raises OSError."""
    import pyarrow.csv

    table = results_table(rows)
    write_parquet(sweep / "results.parquet", table)
    buffer = io.BytesIO()
    pyarrow.csv.write_csv(table, buffer)
    write_whole(sweep / "results.csv", buffer.getvalue())


def write_report(sweep: Path, rows: Sequence[Row]) -> None:
    """report.html. Raises OSError."""
    write_page(sweep, rows)


def job_names(jobs: Sequence[Job]) -> list[str]:
    """For people: what tells each job from the others."""
    rows = [job_row(job) for job in jobs]
    keys = varying(rows)
    return [", ".join(filter(None, (job.runtime, label(row, keys)))) for job, row in zip(jobs, rows, strict=True)]
