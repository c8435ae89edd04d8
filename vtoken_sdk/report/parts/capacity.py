"""How many requests a pool of fixed size holds at once: measured in the run's own pool, estimated in the paper's two."""

from __future__ import annotations

from operator import itemgetter

from vtoken_sdk.paper import ADMITS, ADMITS_SMALLER
from vtoken_sdk.report.compare import Line, label
from vtoken_sdk.report.document import Cell, Column, Panel, Part, Plot, Table
from vtoken_sdk.report.plots import MARKERS, Curve, bars, curves
from vtoken_sdk.report.stats import Estimate

from .quality import kept_share
from .view import View

TITLE = "Capacity frontier"


def part(view: View) -> Part:
    if not view.done:
        return Part("capacity", TITLE, reason=view.why_empty)
    notes = [
        "Measured: the most requests that held blocks at one time in this pool. Requests may have been too few to fill it: then it is not "
        "the pool's limit. Estimates: requests of ctx tokens and max_tokens more, all alike, by the blocks that the runtime promises them, "
        "no run behind them; a threshold below 1 and packing=fresh promise none of those that reclaiming frees.",
        *view.not_drawn,
    ]
    drawn = [
        bars("Measured", "most requests that held blocks at once, in the run's pool", view.bar_groups(itemgetter("concurrency_peak"))),
        *(
            bars(f"Estimate: {n:,} blocks", "requests of ctx + max_tokens that the pool holds", view.bar_groups(itemgetter(column)))
            for column, n in ADMITS.items()
        ),
        _over(view, "pool_blocks", "Measured over pools", "blocks in the pool"),
        _frontier(view),
    ]
    return Part("capacity", TITLE, notes, [table(view)], [Panel([plot for plot in drawn if plot is not None])])


def table(view: View) -> Table:
    columns = [
        *view.name_columns(),
        *(Column(head) for head in ("requests", "blocks\nin the pool", "at once,\nmeasured")),
        *(Column(f"estimate:\nin {n:,}") for n in ADMITS.values()),
    ]
    return Table(columns, [[[*view.name_cells(line), *_cells(line)] for line in group] for group in view.groups])


def _cells(line: Line) -> list[Cell]:
    names = ("requests", "pool_blocks", "concurrency_peak", *ADMITS)
    means = [Estimate.of(row[name] for row in line.rows) for name in names]
    return [Cell("-") if m is None else Cell(f"{m.mean:,.0f}" if m.mean.is_integer() else f"{m.mean:,.1f}") for m in means]


def _over(view: View, column: str, title: str, axis: str) -> Plot | None:
    """Concurrency over a key that varies; None where it does not."""
    if column not in view.keys:
        return None
    others = [key for key in view.keys if key != column]
    shown: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for line in view.lines:
        peak = Estimate.of(row["concurrency_peak"] for row in line.rows)
        if peak is not None:
            shown.setdefault((line.runtime, label(line.first, others)), []).append((line.first[column], peak.mean))
    drawn = [
        Curve(runtime, runtime, [x for x, _ in sorted(at)], [y for _, y in sorted(at)], dash=runtime, marker=MARKERS[runtime])
        for (runtime, _), at in shown.items()
    ]
    return curves(title, "most requests at once", drawn, axis, "requests", zero=(True, True), whole=(True, True))


def _frontier(view: View) -> Plot | None:
    """Requests that the paper's smaller pool holds, over the budget; None with one budget."""
    if "budget" not in view.keys:
        return None
    shown: dict[str, dict[float, list[float]]] = {}
    for line in view.lines:
        share, admitted = kept_share(line.first), Estimate.of(row[ADMITS_SMALLER] for row in line.rows)
        if share is not None and admitted is not None:
            shown.setdefault(line.runtime, {}).setdefault(100 * share, []).append(admitted.mean)
    drawn = []
    for runtime, at in shown.items():
        x = sorted(at)
        drawn.append(Curve(runtime, runtime, x, [sum(at[s]) / len(at[s]) for s in x], dash=runtime, marker=MARKERS[runtime]))
    about = f"requests of ctx + max_tokens in {ADMITS[ADMITS_SMALLER]:,} blocks, mean over policies"
    return curves("Estimate over the budget", about, drawn, "budget, % of the prompt", "requests", zero=(True, True), whole=(False, True))
