"""From the scores of a job's items to columns of its row."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import fmean

from vtoken_sdk.metrics import Row

from .item import Score

NEEDLES = ("needle", "needle4")


def summary(scores: Sequence[Score]) -> Row:
    """Columns of the suites that were run. Means over items, of those that the full cache does not fail; None where it fails all.

    `longbench_score` is in percent, the mean over datasets of the means over their items, as LongBench's own tables have it.
    """
    row: Row = {}
    texts = [s for s in scores if s.suite == "continuation"]
    if texts:
        row |= {"judged": sum(s.judged for s in texts), **{name: _mean(texts, name) for name in ("nll", "nll_full", "kl", "top1")}}
    for suite in (*NEEDLES, "longbench"):
        of_suite = [s for s in scores if s.suite == suite]
        if not of_suite:
            continue
        kept = [s for s in of_suite if not s.dropped]
        figures: Row = {"nll": _mean(kept, "nll"), "nll_full": _mean(kept, "nll_full")}
        if suite in NEEDLES:
            figures["acc"] = _mean(kept, "found")
        else:
            figures["top1"] = _mean(kept, "top1")
            figures |= {name: _percent_over_datasets(kept, name) for name in ("score", "score_full")}
        figures |= {"items": len(kept), "dropped": len(of_suite) - len(kept)}
        row |= {f"{suite}_{name}": value for name, value in figures.items()}
    return row


def _mean(scores: Iterable[Score], name: str) -> float | None:
    values = [float(value) for s in scores if (value := getattr(s, name)) is not None]
    return fmean(values) if values else None


def _percent_over_datasets(scores: Sequence[Score], name: str) -> float | None:
    means = [_mean([s for s in scores if s.dataset == dataset], name) for dataset in dict.fromkeys(s.dataset for s in scores)]
    known = [mean for mean in means if mean is not None]
    return 100 * fmean(known) if known else None
