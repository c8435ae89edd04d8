"""The report as data: the rows of all jobs with what the parts show, for other programs."""

from __future__ import annotations

import dataclasses
import io
import json
from typing import TYPE_CHECKING, Any

from vtoken_sdk.metrics import COLUMNS
from vtoken_sdk.tracking.files import plain

from .document import Document, Table
from .gates import gates
from .parts import View

if TYPE_CHECKING:
    import pyarrow as pa


def to_json(view: View, document: Document) -> str:
    """rows: of the jobs; gates; parts: their text and tables, as they are shown."""
    value = {
        "name": document.name,
        "subtitle": document.subtitle,
        "verdict": document.verdict,
        "caveats": document.caveats,
        "baseline": view.baselines.name,
        "gates": [dataclasses.asdict(gate) for gate in gates(view.record.rows, view.baselines, view.record)],
        "parts": [
            {"id": p.id, "title": p.title, "notes": p.notes, "reason": p.reason, "tables": [_table(t) for t in p.tables], "code": p.code}
            for p in document.parts
        ],
        "sweeps": [{"name": s.name, "command": s.command, "provenance": s.plan.get("provenance", {})} for s in view.record.sweeps],
        "rows": view.record.rows,
    }
    return json.dumps(plain(value), indent=1, allow_nan=False) + "\n"


def _table(table: Table) -> dict[str, Any]:
    rows = [[cell.flat for cell in row] for row in table.rows]
    return {"title": table.title, "columns": [column.title for column in table.columns], "rows": rows}


def to_table(view: View) -> pa.Table:
    """One row a job: the columns of results.parquet in their order and types, then those that suites add, then the job's sweep."""
    import pyarrow as pa

    kinds = {str: pa.string(), int: pa.int64(), float: pa.float64(), bool: pa.bool_()}
    columns = {name: pa.array([row.get(name) for row in view.record.rows], kinds[kind]) for name, kind in COLUMNS.items()}
    for name in dict.fromkeys(name for row in view.record.rows for name in row if name not in COLUMNS):
        columns[name] = pa.array([row.get(name) for row in view.record.rows])
    columns["sweep"] = pa.array([view.record.homes[row["job"]].name for row in view.record.rows])
    return pa.table({name: column.cast(pa.string()) if pa.types.is_null(column.type) else column for name, column in columns.items()})


def to_csv(view: View) -> bytes:
    import pyarrow.csv

    buffer = io.BytesIO()
    pyarrow.csv.write_csv(to_table(view), buffer)
    return buffer.getvalue()


def to_parquet(view: View) -> bytes:
    import pyarrow.parquet as pq

    buffer = io.BytesIO()
    pq.write_table(to_table(view), buffer)
    return buffer.getvalue()
