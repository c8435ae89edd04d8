"""What a policy costs in quality, against its budget and against the blocks that are held for it."""

from __future__ import annotations

from vtoken_sdk.report.compare import Line, Row, label
from vtoken_sdk.report.document import Cell, Column, Panel, Part, Plot, Table
from vtoken_sdk.report.figures import Figure, quality_figures
from vtoken_sdk.report.plots import MARKERS, Curve, curves
from vtoken_sdk.report.stats import Estimate

from .view import View

TITLE = "Quality against budget"


def part(view: View) -> Part:
    figures = quality_figures(view.rows)
    if not view.done:
        return Part("quality", TITLE, reason=view.why_empty)
    if not figures:
        dummy = all(row["weights"] == "dummy" for row in view.done)
        why = "dummy weights are random values and have no quality to lose; run with model=smollm2 or your own model"
        return Part("quality", TITLE, reason=f"Not judged: {why if dummy else 'quality.mode was off'}.")
    notes = [
        "Judged on text of its own, apart from the workload whose blocks and times the other parts show. NLL is compared on the same text: "
        "what is lost against the full cache. Quality is the policy's and its budget's, whatever the runtime: the same tokens die under "
        "each. Blocks are the runtime's too. Small models do not speak for large ones.",
        *view.intervals,
    ]
    drawn = [figure for figure in figures if figure.title != "NLL" or len(figures) == 1]  # what is lost says more
    panels = [Panel(_against_budget(view, drawn), "Against the budget"), Panel(_against_blocks(view, drawn), "Against the blocks held")]
    return Part("quality", TITLE, notes, [table(view)], [panel for panel in panels if panel.plots])


def table(view: View) -> Table:
    """One line a policy and budget: the runtimes' figures are the same but for rounding, so their mean is each seed's value."""
    figures = [*quality_figures(view.rows), *(f for f in view.figures if f.part == "quality" and not f.says)]
    columns = [Column("policy", text=True), Column("budget", text=True), Column("n", "seeds"), *(Column(f.head, f.about) for f in figures)]
    rows = []
    for policy, lines in _policies(view).items():
        for budget, same in _budgets(view, lines).items():
            estimates = [_over_runtimes(same, figure) for figure in figures]
            n = max((e.n for e in estimates if e), default=0)
            cells = [Cell("-") if e is None else Cell(f.write(e.mean), f.interval(e)) for f, e in zip(figures, estimates, strict=True)]
            rows.append([Cell(policy, color=_color(view, policy)), Cell(budget), Cell(str(n)), *cells])
    return Table(columns, [rows])


def _policies(view: View) -> dict[str, list[Line]]:
    """Lines of each policy with its options; those of native are the full cache's."""
    found: dict[str, list[Line]] = {}
    for line in view.lines:
        name = label(line.first, [k for k in ("policy", "option", "ctx", "setup") if k in ("policy", *view.keys)]) or "full cache (native)"
        if line.first["policy"] is None:
            name = "full cache (native)"
        found.setdefault(name, []).append(line)
    return found


def _budgets(view: View, lines: list[Line]) -> dict[str, list[Line]]:
    found: dict[str, list[Line]] = {}
    for line in lines:
        found.setdefault("-" if line.first["budget"] is None else f"{line.first['budget']:g}", []).append(line)
    return found


def _over_runtimes(lines: list[Line], figure: Figure) -> Estimate | None:
    """Over seeds, of each seed's mean over the runtimes that judged it."""
    by_seed: dict[object, list[float | None]] = {}
    for line in lines:
        for row in line.rows:
            by_seed.setdefault(row["seed"], []).append(figure.value(row))
    means = [Estimate.of(values) for values in by_seed.values()]
    return Estimate.of(m.mean for m in means if m is not None)


def _color(view: View, policy: str) -> str:
    if policy.startswith("full cache"):
        return "native"
    return view.colors("policy").get(policy.partition(",")[0], "s8")


def kept_share(row: Row) -> float | None:
    """Tokens that the budget keeps, of the prompt."""
    if row["budget_tokens"] is None or not row["ctx"]:
        return row["budget"] if isinstance(row["budget"], float) else None
    return float(row["budget_tokens"] / row["ctx"])


def _against_budget(view: View, figures: list[Figure]) -> list[Plot]:
    plots = []
    for figure in figures:
        shown = []
        for policy, lines in _policies(view).items():
            points = []
            for same in _budgets(view, lines).values():
                share, estimate = kept_share(same[0].first), _over_runtimes(same, figure)
                if share is not None and estimate is not None:
                    points.append((100 * share, estimate.mean, estimate.half or 0.0))
            points.sort()
            x, y, half = zip(*points, strict=True) if points else ((), (), ())
            shown.append(Curve(policy, _color(view, policy), x, y, half, marker="o"))
        plots.append(curves(figure.title, figure.about, shown, "budget, % of the prompt", "", zero=(True, False)))
    return [plot for plot in plots if plot is not None]


def _against_blocks(view: View, figures: list[Figure]) -> list[Plot]:
    """All policies in one plot: a color a policy, a mark a runtime."""
    made = (_blocks_plot(view, figure) for figure in figures)
    return [plot for plot in made if plot is not None]


def _blocks_plot(view: View, figure: Figure) -> Plot | None:
    shown = []
    for policy, lines in _policies(view).items():
        for runtime in dict.fromkeys(line.runtime for line in lines):
            points = []
            for line in (line for line in lines if line.runtime == runtime):
                held, value = Estimate.of(view.held(row) for row in line.rows), figure.estimate(line)
                if held is not None and value is not None:
                    points.append((held.mean, value.mean, value.half or 0.0))
            points.sort()
            x, y, half = zip(*points, strict=True) if points else ((), (), ())
            name = policy if runtime == "native" else f"{policy}: {runtime}"
            shown.append(Curve(name, _color(view, policy), x, y, half, runtime if runtime != "native" else "solid", MARKERS[runtime]))
    return curves(figure.title, f"against blocks of {view.unit} held, mean over the steps", shown, "blocks held", "", zero=(True, False))
