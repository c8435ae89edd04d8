"""How full held blocks are: a histogram of live tokens a block, where the runtime records it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from vtoken_sdk.report.compare import Line, Row
from vtoken_sdk.report.document import Cell, Column, Panel, Part, Plot, Table
from vtoken_sdk.report.plots import Curve, curves
from vtoken_sdk.report.record import Steps

from .view import GROUPS_DRAWN, View

TITLE = "Block occupancy"
COLUMN = "occupancy"  # of steps.parquet: held blocks with 0, 1, ... S live tokens at the step's end


def part(view: View) -> Part:
    if not view.done:
        return Part("occupancy", TITLE, reason=view.why_empty)
    panels = [panel for group in view.groups[: GROUPS_DRAWN + 1] if (panel := _panel(view, group)).plots]
    notes = ["Live tokens of a held block, mean over steps and blocks: slots that are live over blocks held."]
    reason = ""
    if panels:
        notes += [
            "Histograms: share of the held blocks by their live tokens, in each 17th step (on a GPU each 257th) of the first seed.",
            *view.not_drawn,
        ]
    else:
        reason = (
            f"The histogram is not recorded: steps.parquet has no column {COLUMN} (a list a step: how many held blocks have 0, 1, ... S "
            "live tokens). Means over blocks, below, do not give it."
        )
    return Part("occupancy", TITLE, notes, [table(view)], panels, reason=reason)


def table(view: View) -> Table:
    columns = [*view.name_columns(), Column("block\nsize"), Column("live tokens\na block"), Column("of\nits slots")]
    return Table(columns, [[[*view.name_cells(line), *_means(line)] for line in group] for group in view.groups])


def _means(line: Line) -> list[Cell]:
    """From the job's own means over its steps."""
    known = [row for row in line.rows if row["utilization"] is not None]
    if not known:
        return [Cell("-")] * 3
    size, share = known[0]["block_size"], float(np.mean([row["utilization"] for row in known]))
    return [Cell(str(size)), Cell(f"{share * size:.1f}"), Cell(f"{share:.1%}")]


def _panel(view: View, group: Sequence[Line]) -> Panel:
    found = [(line.first, steps) for line in group if (steps := view.record.steps(line.first["job"])) is not None and COLUMN in steps]
    plots: list[Plot] = []
    for size in dict.fromkeys(row["block_size"] for row, _ in found if row["block_size"] > 1):
        shown = [curve for row, steps in found if row["block_size"] == size and (curve := _histogram(row, steps))]
        plot = curves(
            f"Blocks of {size}", "share of the held blocks, %", shown, "live tokens in the block", "%", whole=(True, False), bins=True
        )
        plots += [plot] if plot else []
    return Panel(plots, view.name(group[0]))


def _histogram(row: Row, steps: Steps) -> Curve | None:
    counts = np.sum([step for step in steps[COLUMN] if step], axis=0, dtype=float)
    if not np.any(counts):
        return None
    share = 100 * counts / counts.sum()
    return Curve(row["runtime"], row["runtime"], list(range(len(share))), share.tolist(), dash=row["runtime"])
