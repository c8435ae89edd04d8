"""A record as the parts look at it: lines over seeds, what names them, what they are compared with."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from vtoken_sdk.report.compare import Baselines, Line, Row, fixed_label, key_of, label, lines, names_of, show, trimmed
from vtoken_sdk.report.document import Cell, Column
from vtoken_sdk.report.figures import Figure, Value, block_unit, figures, in_blocks_of
from vtoken_sdk.report.plots import SERIES, Bar
from vtoken_sdk.report.record import Record
from vtoken_sdk.report.stats import Estimate

GROUPS_DRAWN = 8  # combinations of load, policy and budget in one kind of plot


@dataclass(frozen=True)
class View:
    record: Record
    baselines: Baselines
    again: str = ""  # the command that made the report

    @cached_property
    def rows(self) -> list[Row]:
        """Of all jobs, with names as short as tells them apart."""
        return trimmed(self.record.rows)

    @cached_property
    def done(self) -> list[Row]:
        return [row for row in self.rows if row["status"] == "done"]

    @cached_property
    def groups(self) -> list[list[Line]]:
        """Lines of the same victims together."""
        return lines(self.done)

    @cached_property
    def lines(self) -> list[Line]:
        return [line for group in self.groups for line in group]

    @cached_property
    def keys(self) -> list[str]:
        """What tells groups and lines apart, besides the runtime."""
        return names_of(self.rows)

    @cached_property
    def figures(self) -> list[Figure]:
        return figures(self.rows)

    @cached_property
    def unit(self) -> int:
        return block_unit(self.done)

    @cached_property
    def held(self) -> Value:
        """Blocks held, in the largest blocks of the record."""
        return in_blocks_of(self.unit, "blocks_held")

    @property
    def subtitle(self) -> str:
        return fixed_label(self.done) if self.done else ""

    @cached_property
    def repeats(self) -> int:
        """The most seeds of a line."""
        return max((len(line.rows) for line in self.lines), default=0)

    @property
    def over_seeds(self) -> str:
        """How intervals are made, where there are any."""
        if self.repeats < 2:
            return "One seed a line: no intervals. Add seeds (seed=0,1,2) to get them."
        return (
            f"Means over the seeds (n of each line in its column, up to {self.repeats}), ± half the 95 % interval by Student's t; "
            "differences are paired: each job against the baseline of its own seed."
        )

    @property
    def intervals(self) -> list[str]:
        """The same in short, where the method was told."""
        return ["±: half the 95 % interval over the seeds."] if self.repeats > 1 else []

    @property
    def why_empty(self) -> str:
        return "No job is done." if not self.done else ""

    def colors(self, column: str) -> dict[str, str]:
        """A color for each value of a column, in the order of appearance; those past the last color share it."""
        values = dict.fromkeys(str(row[column]) for row in self.done if row[column] is not None)
        return {value: SERIES[min(n, len(SERIES) - 1)] for n, value in enumerate(values)}

    def name(self, line: Line) -> str:
        """What tells the line from the others but the runtime."""
        return label(line.first, self.keys)

    def name_columns(self) -> list[Column]:
        counts = [Column("n", "seeds")] if self.repeats > 1 else []
        return [Column("runtime", text=True), *(Column(key, text=True) for key in self.keys), *counts]

    def name_cells(self, line: Line) -> list[Cell]:
        counts = [Cell(str(len(line.rows)))] if self.repeats > 1 else []
        names = [Cell(show(key, key_of(line.first, key))) for key in self.keys]
        return [Cell(line.runtime, color=line.runtime), *names, *counts]

    def bar_groups(self, value: Value) -> list[tuple[str, list[Bar]]]:
        """A bar a line, in the color of its runtime, for as many groups as are drawn."""
        groups = []
        for group in self.groups[: GROUPS_DRAWN + 1]:
            bars = []
            for line in group:
                estimate = Estimate.of(value(row) for row in line.rows)
                if estimate is not None:
                    bars.append(Bar(line.runtime, [(line.runtime, estimate.mean)], estimate.half or 0.0))
            groups.append((self.name(group[0]), bars))
        return groups

    @property
    def not_drawn(self) -> list[str]:
        """A note on what plots by group leave out."""
        more = len(self.groups) - GROUPS_DRAWN - 1
        return [f"Drawn for the first {GROUPS_DRAWN + 1} combinations; {more} more are in the tables only."] if more > 0 else []


def figure_cell(figure: Figure, line: Line, baselines: Baselines) -> Cell:
    """The mean; below it the interval over seeds, and the difference to the baseline. A difference within chance has no tone."""
    estimate, change = figure.estimate(line), figure.change(line, baselines)
    if estimate is None:
        return Cell("-")
    written = figure.write(estimate.mean)
    interval = figure.interval(estimate)
    if change is None:
        return Cell(written, interval)
    if abs(change.mean) < 0.005:
        return Cell(written, interval, "=")
    half = f" ±{change.half * 100:.0f}" if change.half is not None and change.half >= 0.005 else ""
    difference = f"{change.mean:+.0%}{half}" if change.mean < 9 else f"{change.mean + 1:,.0f}x"
    good = (change.mean > 0) == (figure.better == "more")
    return Cell(written, interval, difference, ("good" if good else "bad") if change.clear else "")


def mean_cell(estimate: Estimate | None, form: str) -> Cell:
    """The mean, and its interval where there is one."""
    if estimate is None:
        return Cell("-")
    return Cell(format(estimate.mean, form), f"±{estimate.half:{form}}" if estimate.half else "")
