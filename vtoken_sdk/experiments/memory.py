"""What reclaiming does to memory: utilization, retained blocks, and waste F = 1 - utilization over the steps.

Figures are means over the steps in which no prompt is read, so that they speak of the state that a policy settles in. The paper's change of
utilization can only be one against blocks that a policy left half dead (`naive`: same victims, no reclaiming), and its retained blocks one
against all blocks (`native`): that is how the two are put side by side here; the other pairs are given without a figure of the paper.
"""

from __future__ import annotations

from typing import Any

from vtoken_sdk.paper import RETAINED_BLOCKS, UTILIZATION

from .finding import Finding, Outcome
from .runs import SETTLED, Run, Runs, change, over_seeds

POINTS = 200  # of a series, at most
QUESTION = "How much memory do dead tokens give back?"


def analyze(runs: Runs) -> Outcome:
    found: list[Finding] = []
    for name, group in runs.groups(runs.of("vtoken")):
        found += [
            _changed("utilization", "utilization", "naive", name, group, runs, UTILIZATION, "higher"),
            _changed("retained blocks", "blocks_held", "native", name, group, runs, RETAINED_BLOCKS, "lower"),
            _changed("retained blocks", "blocks_held", "naive", name, group, runs, None, "lower"),
        ]
    for name, group in runs.groups(runs.of("naive", "refill", "vtoken", "page1")):
        waste, spread = over_seeds([run.settled_mean("waste") for run in group])
        found.append(Finding("waste F", name, waste, "share", better="lower", note=spread))
    return Outcome(QUESTION, found, {"series": {str(run["job"]): _series(run) for run in runs.runs}}, (SETTLED,))


def _changed(metric: str, column: str, base: str, name: str, group: list[Run], runs: Runs, paper: Any, better: Any) -> Finding:
    """Of `column` against the base under the same load and victims, seed by seed."""
    pairs = [(run, other) for run in group if (other := runs.partner(run, base)) is not None]
    values, spread = over_seeds([change(run.settled_mean(column), other.settled_mean(column)) for run, other in pairs])
    notes = [spread]
    if pairs and column == "utilization":
        new, old = (sum(r.settled_mean(column) for r in side) / len(pairs) for side in zip(*pairs, strict=True))
        notes.append(f"from {old:.3f} to {new:.3f}")
    if peaks := {
        (other["concurrency_peak"], run["concurrency_peak"]) for run, other in pairs if run["concurrency_peak"] != other["concurrency_peak"]
    }:
        few, many = min(peaks)
        notes.append(f"{base} held {few} requests at once, {group[0]['runtime']} {many}: use a larger pool_blocks to compare equal loads")
    return Finding(metric, f"{name}, against {base}", values, "%", paper, better, "; ".join(filter(None, notes)))


def _series(run: Run) -> dict[str, Any]:
    """Waste and blocks over the steps, thinned to POINTS."""
    stride = -(-len(run.steps["step"]) // POINTS)
    about = {key: run[key] for key in ("runtime", "policy", "budget", "seed")}
    return about | {key: run.steps[key][::stride] for key in ("step", "waste", "utilization", "blocks_held", "blocks_ideal")}
