"""From folders of sweeps to files of a report, one a format."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

from vtoken_sdk.tracking.files import csv_of, parquet_of, write_whole

from .compare import Baselines, Row
from .data import to_json, to_table
from .document import Document
from .html import to_html
from .latex import to_latex
from .markdown import to_markdown
from .parts import View, document
from .record import Record, read_record

FORMATS = ("html", "md", "csv", "json", "parquet", "tex")


def view_of(record: Record, baseline: str = "native", again: str = "") -> View:
    """Raises BaselineError."""
    return View(record, Baselines.among(record.rows, baseline), again)


def render(view: View, report: Callable[[], Document], form: str) -> str | bytes:
    """form: one of FORMATS. report: made where it is needed; rows alone need none."""
    match form:
        case "html":
            return to_html(report())
        case "md":
            return to_markdown(report())
        case "tex":
            return to_latex(report())
        case "json":
            return to_json(view, report())
        case "csv":
            return csv_of(to_table(view))
    return parquet_of(to_table(view))


def write_reports(view: View, folder: Path, formats: Sequence[str]) -> list[Path]:
    """report.<format> in the folder. Raises OSError."""
    report = cache(lambda: document(view))
    paths = [folder / f"report.{form}" for form in formats]
    for path, form in zip(paths, formats, strict=True):
        write_whole(path, render(view, report, form))
    return paths


def write_page(sweep: Path, rows: Sequence[Row]) -> None:
    """report.html of a sweep that has just ended. rows: of its jobs, with failures that are in no file. Raises OSError, RecordError."""
    write_reports(view_of(read_record([sweep]).with_rows(rows)), sweep, ["html"])
