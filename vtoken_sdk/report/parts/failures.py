"""Jobs without a result, each with its error."""

from __future__ import annotations

from vtoken_sdk.report.compare import label
from vtoken_sdk.report.document import Cell, Column, Part, Table

from .view import View

TITLE = "Failed and missing jobs"


def part(view: View) -> Part:
    without = [row for row in view.rows if row["status"] != "done"]
    if not without:
        return Part("failures", TITLE, [f"None: all {len(view.rows)} jobs are done."])
    columns = [Column(head, text=True) for head in ("runtime", "job", "status", "why")]
    rows = [
        [
            Cell(row["runtime"], color=row["runtime"]),
            Cell(label(row, [*view.keys, "seed"]), f"jobs/{row['job']}"),
            Cell(row["status"], tone="bad"),
            Cell(row["error"] or "did not run"),
        ]
        for row in without
    ]
    notes = [f"{len(without)} of {len(view.rows)} jobs. Their trace is in jobs/*/error.txt, what they printed in log.txt."]
    return Part("failures", TITLE, notes, [Table(columns, [rows])])
