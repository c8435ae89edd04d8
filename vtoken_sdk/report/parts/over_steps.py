"""Blocks held, utilization, waste and concurrency over the steps: each combination with its baseline."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from vtoken_sdk.report.compare import Line, Row
from vtoken_sdk.report.document import Cell, Column, Panel, Part, Table
from vtoken_sdk.report.figures import in_blocks_of
from vtoken_sdk.report.plots import Curve, curves, shares, thin
from vtoken_sdk.report.record import Steps
from vtoken_sdk.report.stats import Estimate

from .view import GROUPS_DRAWN, View, mean_cell

TITLE = "Utilization and waste over the steps"


def part(view: View) -> Part:
    evicting = [group for group in view.groups if group[0].runtime != "native"] or view.groups
    if not view.done:
        return Part("steps", TITLE, reason=view.why_empty)
    panels = [panel for group in evicting[:GROUPS_DRAWN] if (panel := _panel(view, group)).plots]
    notes = [
        "Utilization: live slots of all slots in held blocks; waste F = 1 - utilization. In the table: means over seeds and all steps, "
        "those that read prompts too; the paper's experiments leave these out."
    ]
    more = len(evicting) - GROUPS_DRAWN
    if panels:
        notes.append("The first seed of each line is drawn.")
        notes += [f"{more} more combinations are not drawn; their steps are in jobs/*/steps.parquet."] if more > 0 else []
    reason = "" if panels else "Not drawn: no job's steps are here, jobs/*/steps.parquet is missing."
    return Part("steps", TITLE, notes, [table(view)], panels, reason=reason)


def table(view: View) -> Table:
    """The figures that a paper gives of these curves."""
    heads = (f"blocks of {view.unit}\nretained", f"of\n{view.baselines.name}", "fewest\npossible", "utilization", "waste F")
    columns = [*view.name_columns(), *(Column(head) for head in heads)]
    return Table(columns, [[[*view.name_cells(line), *_cells(view, line)] for line in group] for group in view.groups])


def _cells(view: View, line: Line) -> list[Cell]:
    ideal = in_blocks_of(view.unit, "blocks_ideal")
    shares = ((view.held(row), view.held(base)) for row in line.rows if (base := view.baselines(row)) is not None)
    return [
        mean_cell(Estimate.of(map(view.held, line.rows)), ",.0f"),
        mean_cell(Estimate.of(ours / theirs for ours, theirs in shares if ours is not None and theirs), ".2f"),
        mean_cell(Estimate.of(map(ideal, line.rows)), ",.0f"),
        *(mean_cell(Estimate.of(row[name] for row in line.rows), ".1%") for name in ("utilization", "waste")),
    ]


def _panel(view: View, group: Sequence[Line]) -> Panel:
    base = view.baselines.of.get(group[0].first["job"])
    rows = [line.first for line in group]
    if base is not None and base["job"] not in {row["job"] for row in rows}:
        rows.insert(0, base)
    found = [(row, steps) for row in rows if (steps := view.record.steps(row["job"])) is not None]
    plots = [
        curves("Blocks held", f"blocks of {view.unit} tokens retained", _blocks(found, view.unit), "step", "blocks", whole=(True, False)),
        shares("Utilization and waste", "live slots of all slots in held blocks", _lines(found, "utilization", 100), "step"),
        curves("Concurrency", "requests running", _lines(found, "running"), "step", "requests", whole=(True, True)),
    ]
    return Panel([plot for plot in plots if plot is not None], view.name(group[0]))


def _lines(found: Sequence[tuple[Row, Steps]], column: str, scale: float = 1.0) -> list[Curve]:
    return [_curve(row["runtime"], row["runtime"], row["runtime"], steps, column, scale) for row, steps in found if column in steps]


def _blocks(found: Sequence[tuple[Row, Steps]], unit: int) -> list[Curve]:
    """In blocks of one size; and the fewest that could hold the live tokens."""
    shown = [_curve(r["runtime"], r["runtime"], r["runtime"], steps, "blocks_held", r["block_size"] / unit) for r, steps in found]
    evicting = [(row, steps) for row, steps in found if row["runtime"] not in ("native", "page1")]
    if evicting:
        row, steps = evicting[-1]
        shown.append(_curve("fewest possible", "ink", "dotted", steps, "blocks_ideal", row["block_size"] / unit))
    return shown


def _curve(name: str, color: str, dash: str, steps: Steps, column: str, scale: float) -> Curve:
    values: Any = np.asarray([np.nan if v is None else v for v in steps[column]], float) * scale
    x, y = thin(np.asarray(steps["step"], float), values)
    return Curve(name, color, x.tolist(), y.tolist(), dash=dash)
