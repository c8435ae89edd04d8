"""The report as data: the rows of all jobs with what the parts show, for other programs."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
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


def results_table(rows: Sequence[Mapping[str, Any]]) -> pa.Table:
    """One row a job: the columns of the results in their order and types, then what else the rows have, such as what suites add."""
    import pyarrow as pa

    kinds = {str: pa.string(), int: pa.int64(), float: pa.float64(), bool: pa.bool_()}
    table = pa.table({name: pa.array([row.get(name) for row in rows], kinds[kind]) for name, kind in COLUMNS.items()})
    for name in dict.fromkeys(name for row in rows for name in row if name not in COLUMNS):
        column = pa.array([row.get(name) for row in rows])
        table = table.append_column(name, column.cast(pa.string()) if pa.types.is_null(column.type) else column)
    return table


def to_table(view: View) -> pa.Table:
    """The results of all jobs, and each one's sweep."""
    rows = view.record.rows
    return results_table(rows).append_column("sweep", [[view.record.homes[row["job"]].name for row in rows]])
