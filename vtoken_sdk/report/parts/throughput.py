"""Throughput against the p95 of the time between tokens, with the line that the SLA draws."""

from __future__ import annotations

from collections.abc import Callable

from vtoken_sdk.paper import LATENCY_FACTOR as SLA
from vtoken_sdk.report.compare import POLICY_KEYS, Line, label
from vtoken_sdk.report.document import Cell, Column, Panel, Part, Plot, Table
from vtoken_sdk.report.figures import ms_form
from vtoken_sdk.report.plots import MARKERS, Curve, curves
from vtoken_sdk.report.stats import Estimate

from .view import View, mean_cell

TITLE = "Throughput against p95 ITL"


def part(view: View) -> Part:
    timed = [line for line in view.lines if any(r["output_tok_s"] and r["itl_ms_p95"] for r in line.rows)]
    if not timed:
        return Part("throughput", TITLE, reason=view.why_empty or "No request generated two tokens, so there is no time between tokens.")
    notes = [
        f"The SLA allows a p95 of {SLA:g} times {view.baselines.name}'s under the same load. Points left of the dashed line keep it.",
        *view.intervals,
    ]
    if any(row["device"] == "cpu" for row in view.done):
        notes.append("CPU timing: read large ratios only; whether the SLA is kept is not judged.")
    plots = [plot for plot in (_absolute(view, timed), _relative(view, timed)) if plot is not None]
    return Part("throughput", TITLE, notes, [table(view, timed)], [Panel(plots)])


def table(view: View, timed: list[Line]) -> Table:
    base = view.baselines.name
    heads = [
        Column("tok/s", "tokens generated a second, over all requests"),
        Column("ITL\np95", "ms between tokens, 95th percentile"),
        Column("SLA\nms", f"{SLA:g} times the p95 of {base}"),
        Column(f"p95 /\n{base}"),
        Column(f"tok/s /\n{base}"),
        Column("SLA", text=True),
    ]
    return Table([*view.name_columns(), *heads], [[[*view.name_cells(line), *_cells(view, line)] for line in timed]])


def _cells(view: View, line: Line) -> list[Cell]:
    speed, p95 = (Estimate.of(row[c] for row in line.rows) for c in ("output_tok_s", "itl_ms_p95"))
    bound = Estimate.of(base["itl_ms_p95"] * SLA for row in line.rows if (base := view.baselines(row)) and base["itl_ms_p95"])
    late, fast = _ratio(view, line, "itl_ms_p95"), _ratio(view, line, "output_tok_s")
    form = ms_form(row["itl_ms_p95"] for row in view.done)
    return [
        mean_cell(speed, ",.1f"),
        mean_cell(p95, form),
        mean_cell(bound, form),
        mean_cell(late, ".2f"),
        mean_cell(fast, ".2f"),
        _kept(late, line.first["device"] != "cpu"),
    ]


def _kept(late: Estimate | None, judged: bool) -> Cell:
    """An interval with the bound in it decides nothing. judged: on a CPU times are noise."""
    if late is None:
        return Cell("-")
    if not judged:
        return Cell("not judged")
    if late.half is not None and abs(late.mean - SLA) <= late.half:
        return Cell("not clear")
    return Cell("kept", tone="good") if late.mean <= SLA else Cell("missed", tone="bad")


def _ratio(view: View, line: Line, column: str) -> Estimate | None:
    """To the baseline of the same seed."""
    pairs = [(row[column], base[column]) for row in line.rows if (base := view.baselines(row)) is not None]
    return Estimate.of(ours / theirs for ours, theirs in pairs if ours is not None and theirs)


def _absolute(view: View, timed: list[Line]) -> Plot | None:
    """In milliseconds and tokens. Under several loads each combination is a curve through them, and no one line is the SLA's."""
    bases = {base["job"]: base for row in view.done if (base := view.baselines.of.get(row["job"])) is not None}
    loads = {label(base, view.keys) for base in bases.values()}
    bound = Estimate.of(base["itl_ms_p95"] for base in bases.values())
    limits = [(SLA * bound.mean, f"SLA: {SLA:g} x {view.baselines.name}")] if bound is not None and len(loads) == 1 else []

    def place(line: Line) -> tuple[Estimate | None, ...]:
        return tuple(Estimate.of(r[c] for r in line.rows) for c in ("itl_ms_p95", "output_tok_s"))

    shown = _points(view, timed, place, len(loads) > 1)
    about = "output tokens a second; " + ("a curve runs through the loads" if len(loads) > 1 else "each point a line of the table")
    return curves("Measured", about, shown, "p95 ITL, ms", "output tok/s", limits=limits)


def _relative(view: View, timed: list[Line]) -> Plot | None:
    """Each load against its own baseline, so that one line is the SLA's for all."""
    shown = _points(view, timed, lambda line: tuple(_ratio(view, line, c) for c in ("itl_ms_p95", "output_tok_s")), False)
    base = view.baselines.name
    limits = [(SLA, f"SLA: {SLA:g} x {base}")]
    return curves(f"Relative to {base}", "each job against its baseline", shown, f"p95 ITL / {base}", f"tok/s / {base}", limits=limits)


def _points(view: View, timed: list[Line], place: Callable[[Line], tuple[Estimate | None, ...]], joined: bool) -> list[Curve]:
    """A cloud for each runtime, or a curve for each combination of runtime, policy and its options through the loads.

    Beside each point of a cloud, and the last of a curve, stands its policy with what differs, loads aside.
    """
    told = [key for key in view.keys if key in POLICY_KEYS]
    shown: dict[tuple[str, str], list[tuple[float, float, str]]] = {}
    for line in timed:
        x, y = place(line)
        if x is not None and y is not None:
            curve = line.runtime, label(line.first, POLICY_KEYS) if joined else ""
            shown.setdefault(curve, []).append((x.mean, y.mean, label(line.first, told)))
    made = []
    for (runtime, _), at in shown.items():
        xs, ys, names = zip(*at, strict=True)
        notes = ["" for _ in names[:-1]] + [names[-1]] if joined else list(names)
        made.append(Curve(runtime, runtime, xs, ys, dash=runtime, marker=MARKERS[runtime], line=joined, notes=notes))
    return made
