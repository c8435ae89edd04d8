"""Where a step's time goes: the model, the policy, Token Table and pool, planner, copies."""

from __future__ import annotations

from vtoken_sdk.report.compare import Line
from vtoken_sdk.report.document import Cell, Column, Key, Panel, Part, Table
from vtoken_sdk.report.figures import ms_form
from vtoken_sdk.report.plots import PARTS_OF_A_STEP, Bar, bars
from vtoken_sdk.report.stats import Estimate

from .view import GROUPS_DRAWN, View, mean_cell

TITLE = "Overhead"
COLORS = dict(zip(PARTS_OF_A_STEP, ("native", "s2", "s3", "s4", "s5"), strict=True))


def part(view: View) -> Part:
    timed = [[line for line in group if line.first["model_ms"] is not None] for group in view.groups]
    if not any(timed):
        return Part("overhead", TITLE, reason=view.why_empty or "No job recorded the times of its steps.")
    notes = [
        "Milliseconds of the host a step, exclusive of each other. Added: all but the model, of the whole.",
        *view.intervals,
        *view.not_drawn,
    ]
    if any(row["device"] == "cuda" for row in view.done):
        notes.append("On a GPU these are the host's times, not the device's: what runs beside the model costs less than it says.")
    groups = [(view.name(group[0]), [_bar(line) for line in group]) for group in timed[: GROUPS_DRAWN + 1] if group]
    keys = [Key(name, color) for name, color in COLORS.items()]
    drawn = bars("A step", "mean ms of the host", groups, 2, keys)
    return Part("overhead", TITLE, notes, [table(view, timed)], [Panel([drawn])] if drawn else [])


def _bar(line: Line) -> Bar:
    means = [(COLORS[name], estimate.mean) for name in PARTS_OF_A_STEP if (estimate := _ms(line, name)) is not None]
    return Bar(line.runtime, means)


def _ms(line: Line, name: str) -> Estimate | None:
    return Estimate.of(row[f"{name}_ms"] for row in line.rows)


def table(view: View, timed: list[list[Line]]) -> Table:
    columns = [*view.name_columns(), *(Column(f"{name}\nms") for name in PARTS_OF_A_STEP), Column("sum\nms"), Column("added")]
    forms = [ms_form(row[f"{name}_ms"] for row in view.done) for name in PARTS_OF_A_STEP]
    return Table(columns, [[[*view.name_cells(line), *_cells(line, forms)] for line in group] for group in timed])


def _cells(line: Line, forms: list[str]) -> list[Cell]:
    """forms: of each part's column; the model's, the largest, is the sum's too."""
    means = [_ms(line, name) for name in PARTS_OF_A_STEP]
    total = sum(m.mean for m in means if m is not None)
    cells = [mean_cell(mean, form) for mean, form in zip(means, forms, strict=True)]
    model = means[0].mean if means[0] is not None else 0.0
    return [*cells, Cell(format(total, forms[0])), Cell(f"{1 - model / total:.1%}" if total else "-")]
