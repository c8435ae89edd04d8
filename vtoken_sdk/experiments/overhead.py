"""What the machinery costs: hooks alone (a policy that evicts nothing, against native), the planner's host time, the copies."""

from __future__ import annotations

from vtoken_sdk.paper import HOOKS

from .finding import Finding, Outcome
from .runs import Run, Runs, change, over_seeds, where

QUESTION = "What do the hooks, the planner and the copies cost?"
IDLE_POLICY = "full"  # evicts nothing


def analyze(runs: Runs) -> Outcome:
    hooks = [run for run in runs.of("vtoken") if run["policy"] == IDLE_POLICY]
    busy = [run for run in runs.of("vtoken") if run["policy"] != IDLE_POLICY]
    found: list[Finding] = []
    for name, group in runs.groups(hooks):
        found += [
            _hooks("gap between tokens, p50", "itl_ms_p50", name, group, runs),
            _hooks("time a token", "output_tok_s", name, group, runs),
        ]
    for name, group in runs.groups(busy):
        found += [_cost(metric, column, name, group) for metric, column in (("planner, a step", "plan_ms"), ("copies, a step", "copy_ms"))]
        moved, spread = over_seeds([run["bytes_moved"] / 1e6 for run in group])
        found.append(Finding("bytes moved", name, moved, "MB", better="lower", note=spread))
    return Outcome(QUESTION, found)


def _hooks(metric: str, column: str, name: str, group: list[Run], runs: Runs) -> Finding:
    """In per cent of native's time, seed by seed."""
    pairs = [(run, other) for run in group if (other := runs.partner(run, "native")) is not None]
    costs = [change(a[column], b[column]) if column.endswith("p50") else change(b[column], a[column]) for a, b in pairs]
    value, spread = over_seeds(costs)
    return Finding(metric, f"{name}, against native", value, "%", HOOKS, "lower", "; ".join(filter(None, (spread, where(group)))))


def _cost(metric: str, column: str, name: str, group: list[Run]) -> Finding:
    value, spread = over_seeds([run[column] for run in group])
    parts = [sum(run[part] or 0.0 for part in ("model_ms", "policy_ms", "table_ms", "plan_ms", "copy_ms")) for run in group]
    share = sum(run[column] for run in group) / sum(parts) if sum(parts) else 0.0
    note = "; ".join(filter(None, (f"{share:.1%} of the step's host time", spread, where(group))))
    return Finding(metric, name, value, "ms", better="lower", note=note)
