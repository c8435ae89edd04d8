"""What each policy costs in quality at each budget. The same victims die under every runtime, so one runtime is enough."""

from __future__ import annotations

from collections.abc import Callable

from .finding import Finding, Outcome, Unit
from .runs import Run, Runs, over_seeds

QUESTION = "What do the evictions cost in quality, against the full cache? (A small model does not speak for a large one.)"
FIGURES: tuple[tuple[str, Callable[[Run], float | None], Unit], ...] = (
    ("NLL over the full cache's", lambda run: run["nll"] - run["nll_full"] if run["nll"] is not None else None, "nats"),
    ("KL to the full cache", lambda run: run["kl"], "nats"),
    ("top-1 agreement", lambda run: run["top1"], "share"),
    ("needle answers", lambda run: run.row.get("needle_acc"), "share"),
    ("needle answers, four keys", lambda run: run.row.get("needle4_acc"), "share"),
    ("LongBench NLL", lambda run: run.row.get("longbench_nll"), "nats"),
)


def analyze(runs: Runs) -> Outcome:
    found: list[Finding] = []
    for name, group in runs.groups(runs.of("naive", "refill", "vtoken", "page1")):
        for metric, value_of, unit in FIGURES:
            known = [value for run in group if (value := value_of(run)) is not None]
            if known:
                mean, spread = over_seeds(known)
                found.append(Finding(metric, name, mean, unit, better="lower" if unit == "nats" else "higher", note=spread))
        if not any(finding.setting == name for finding in found):
            why = ": random weights have none" if group[0]["weights"] == "dummy" else ""
            found.append(Finding(FIGURES[0][0], name, None, "nats", note=f"no quality was judged{why}"))
    return Outcome(QUESTION, found)
