"""What compaction costs: plans, tokens and bytes moved, for blocks given back."""

from __future__ import annotations

from vtoken_sdk.report.compare import Line
from vtoken_sdk.report.document import Cell, Column, Panel, Part, Plot, Table
from vtoken_sdk.report.figures import held_ratio, megabytes_moved
from vtoken_sdk.report.plots import Curve, curves
from vtoken_sdk.report.stats import Estimate

from .view import View, mean_cell

TITLE = "Compaction cost"


def part(view: View) -> Part:
    compacting = [line for line in view.lines if line.first["plans"] is not None]
    if not compacting:
        return Part("compaction", TITLE, reason=view.why_empty or "No job ran under vtoken, the one runtime that moves tokens.")
    notes = ["Moves are counted when they are published; megabytes are read plus written, all layers. Blocks are freed by any cause."]
    if any(row["device"] == "cuda" for row in view.done):
        notes.append("Plan and copy ms are the host's; copies run on a stream of their own beside the model.")
    plots = [plot for plot in (_buys(view, compacting),) if plot is not None]
    return Part("compaction", TITLE, [*notes, *view.intervals], [table(view, compacting)], [Panel(plots)] if plots else [])


def table(view: View, compacting: list[Line]) -> Table:
    heads = (
        "plans",
        "tokens\nmoved",
        "tokens\na plan",
        "MB\nmoved",
        "blocks\nfreed",
        "MB a\nblock freed",
        "held /\nideal",
        "plan ms\na step",
        "copy ms\na step",
    )
    columns = [*view.name_columns(), *(Column(head) for head in heads)]
    return Table(columns, [[[*view.name_cells(line), *_cells(line)] for line in compacting]])


def _cells(line: Line) -> list[Cell]:
    values = [
        ([row["plans"] for row in line.rows], ",.0f"),
        ([row["moves"] for row in line.rows], ",.0f"),
        ([_share(row["moves"], row["plans"]) for row in line.rows], ",.1f"),
        ([megabytes_moved(row) for row in line.rows], ",.3g"),
        ([row["blocks_freed"] for row in line.rows], ",.0f"),
        ([_share(megabytes_moved(row), row["blocks_freed"]) for row in line.rows], ",.2g"),
        ([held_ratio(row) for row in line.rows], ".2f"),
        ([row["plan_ms"] for row in line.rows], ".2f"),
        ([row["copy_ms"] for row in line.rows], ".2f"),
    ]
    return [mean_cell(Estimate.of(known), form) for known, form in values]


def _share(part: float | None, whole: float | None) -> float | None:
    return None if part is None or not whole else part / whole


def _buys(view: View, compacting: list[Line]) -> Plot | None:
    """What is moved against what stays wasted: a color a policy."""
    colors = view.colors("policy")
    shown: dict[str, list[tuple[float, float]]] = {}
    for line in compacting:
        moved, ratio = Estimate.of(megabytes_moved(row) for row in line.rows), Estimate.of(held_ratio(row) for row in line.rows)
        if moved is not None and ratio is not None:
            shown.setdefault(str(line.first["policy"]), []).append((moved.mean, ratio.mean))
    drawn = [Curve(p, colors[p], [x for x, _ in at], [y for _, y in at], marker="o", line=False) for p, at in shown.items()]
    about = "each point a line of the table; 1.00 wastes no block"
    return curves("Moved against wasted", about, drawn, "MB moved", "held / ideal", zero=(True, False))
