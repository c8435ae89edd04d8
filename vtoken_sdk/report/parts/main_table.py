"""The main table: a line for each combination, means over seeds, differences to the baseline."""

from __future__ import annotations

from vtoken_sdk.report.document import Column, Part, Table

from .view import View, figure_cell


def part(view: View) -> Part:
    title = "Comparison"
    if not view.done:
        return Part("comparison", title, reason=view.why_empty)
    shown = [f for f in view.figures if f.part != "cost" and (f.part != "quality" or f.says)]  # these are in parts of their own
    columns = [*view.name_columns(), *(Column(f.head, f.about) for f in shown)]
    groups = [[[*view.name_cells(line), *(figure_cell(f, line, view.baselines) for f in shown)] for line in group] for group in view.groups]
    against = f"Below a figure: its difference to {view.baselines.name} under the same load. " if view.baselines.of else ""
    tones = "Green and red: better and worse, where the interval leaves out 0. " if against else ""
    notes = [
        f"{against}{tones}Blocks are counted in blocks of {view.unit} tokens, for page1 too.",
        view.over_seeds,
    ]
    return Part("comparison", title, notes, [Table(columns, groups)])
