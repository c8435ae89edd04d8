"""What each policy costs in quality at each budget. The same victims die under every runtime, so one runtime is enough."""

from __future__ import annotations

from .finding import Finding, Outcome, Unit
from .runs import Runs, over_seeds

QUESTION = "What do the evictions cost in quality, against the full cache? (A small model does not speak for a large one.)"
FIGURES: tuple[tuple[str, str, Unit], ...] = (
    ("KL to the full cache", "kl", "nats"),
    ("top-1 agreement", "top1", "share"),
    ("needle answers", "needle_acc", "share"),
)


def analyze(runs: Runs) -> Outcome:
    found: list[Finding] = []
    for name, group in runs.groups(runs.of("naive", "refill", "vtoken", "page1")):
        if all(run["nll"] is None for run in group):
            found.append(Finding("NLL over the full cache's", name, None, "nats", note="no quality was judged: random weights have none"))
            continue
        costs = [run["nll"] - run["nll_full"] for run in group if run["nll"] is not None]
        value, spread = over_seeds(costs)
        found.append(Finding("NLL over the full cache's", name, value, "nats", better="lower", note=spread))
        for metric, column, unit in FIGURES:
            known = [run.row[column] for run in group if run.row.get(column) is not None]
            if known:
                value, spread = over_seeds(known)
                found.append(Finding(metric, name, value, unit, better="lower" if unit == "nats" else "higher", note=spread))
    return Outcome(QUESTION, found)
