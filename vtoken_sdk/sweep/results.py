"""From the folders of a plan's jobs to one table and one page: results.parquet, results.csv, report.html."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from vtoken_sdk.metrics import COLUMNS, Row
from vtoken_sdk.report import write_page
from vtoken_sdk.report.compare import label, trimmed, varying
from vtoken_sdk.report.data import results_table
from vtoken_sdk.report.record import planned_row
from vtoken_sdk.tracking.files import JobFolder, csv_of, write_parquet, write_whole

from .job import Job


def job_row(job: Job) -> Row:
    """The columns that are known before a job runs; the loaded model and the engine replace some."""
    return planned_row(job.id, job.flat())


def rows_of(sweep: Path, jobs: Sequence[Job], failures: Mapping[str, str]) -> list[Row]:
    """One row a job of the plan, in its order. failures: job id -> reason, for jobs that could not even write theirs."""
    rows = []
    for job in jobs:
        row = {**job_row(job), **JobFolder(sweep / "jobs" / job.id).outcome}
        if row["status"] != "done" and job.id in failures:
            row |= {"status": "failed", "error": failures[job.id]}
        rows.append({name: row.get(name) for name in COLUMNS})
    return rows


def write_results(sweep: Path, rows: Sequence[Row]) -> None:
    """results.parquet and results.csv. Raises OSError."""
    table = results_table(rows)
    write_parquet(sweep / "results.parquet", table)
    write_whole(sweep / "results.csv", csv_of(table))


def write_report(sweep: Path, rows: Sequence[Row]) -> None:
    """report.html. Raises OSError."""
    write_page(sweep, rows)


def job_names(jobs: Sequence[Job]) -> list[str]:
    """For people: what tells each job from the others."""
    rows = trimmed([job_row(job) for job in jobs])
    keys = varying(rows)
    return [", ".join(filter(None, (job.runtime, label(row, keys)))) for job, row in zip(jobs, rows, strict=True)]
