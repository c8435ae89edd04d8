"""The quality of a sweep's jobs, item by item over all of its seeds, with intervals."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vtoken_sdk.bootstrap import Interval, interval, paired
from vtoken_sdk.tracking.files import JobFolder, read_json

NOT_OF_A_CASE = ("seed",)  # jobs that differ in nothing else are one case with several seeds
# suite -> figure -> the same of the full cache, or None where the figure is a difference already
FIGURES: dict[str, dict[str, str | None]] = {
    "continuation": {"nll": "nll_full", "kl": None, "top1": None},
    "needle": {"nll": "nll_full", "found": "found_full"},
    "needle4": {"nll": "nll_full", "found": "found_full"},
    "longbench": {"nll": "nll_full", "top1": None, "score": "score_full"},
}

Values = dict[Hashable, dict[Hashable, float]]  # seed -> item -> value


@dataclass(frozen=True)
class Case:
    """Jobs that differ in their seed alone. config: what they share. items: rows of their quality.parquet."""

    config: dict[str, Any]
    items: list[dict[str, Any]]

    def values(self, suite: str, figure: str) -> Values:
        """Of items that the full cache does not fail."""
        found: Values = {}
        for row in self.items:
            if row["suite"] == suite and not row["dropped"] and row[figure] is not None:
                found.setdefault(row["seed"], {})[row["item"]] = float(row[figure])
        return found

    def dropped(self, suite: str) -> int:
        return sum(row["suite"] == suite and row["dropped"] for row in self.items)


@dataclass(frozen=True)
class Line:
    """One figure of one case. label: what tells the case from the others. difference: to the full cache or to another policy."""

    suite: str
    figure: str
    label: str
    mean: Interval
    difference: Interval | None
    dropped: int


def read_cases(sweep: Path) -> list[Case]:
    """Of the finished jobs of a sweep's last plan that judged quality, in the order of their folders' names."""
    import pyarrow.parquet as pq

    cases: dict[tuple[Any, ...], Case] = {}
    planned = {job["job"] for job in read_json(sweep / "plan.json").get("jobs", ())}  # others are of an edited policy, or another command
    for path in sorted((sweep / "jobs").glob("*/quality.parquet")):
        folder = JobFolder(path.parent)
        if folder.done and (path.parent.name in planned or not planned):
            config = {k: v for k, v in folder.result["config"].items() if k not in NOT_OF_A_CASE}
            case = cases.setdefault(tuple(sorted((k, str(v)) for k, v in config.items())), Case(config, []))
            case.items.extend(pq.read_table(path).to_pylist())
    return list(cases.values())


def table(cases: Sequence[Case], against: str | None = None) -> list[Line]:
    """Every figure of every case. against: the policy whose cases the others are paired with; None: the full cache."""
    varying = [k for k in _keys(cases) if len({str(c.config.get(k)) for c in cases if c.config.get(k) is not None}) > 1]
    lines, cases = [], sorted(cases, key=lambda case: _label(case, varying))
    for suite, figures in FIGURES.items():
        for figure, full in figures.items():
            for case in cases:
                values = case.values(suite, figure)
                if values:
                    base = case.values(suite, full) if full else None
                    if against is not None:
                        other = _partner(case, cases, against)
                        base = other.values(suite, figure) if other is not None else None
                    lines.append(Line(suite, figure, _label(case, varying), _over(values), _against(values, base), case.dropped(suite)))
    return lines


def _keys(cases: Iterable[Case]) -> list[str]:
    return list(dict.fromkeys(key for case in cases for key in case.config if not key.endswith("sha256")))


def _label(case: Case, varying: Sequence[str]) -> str:
    shown = [case.config["runtime"]] if case.config["policy"] is None else []
    shown += [f"{k}={v}" for k in varying if (v := case.config.get(k)) is not None and (k, v) != ("runtime", "native")]
    return " ".join(shown) or str(case.config["policy"])


def _partner(case: Case, cases: Sequence[Case], policy: str) -> Case | None:
    """The case of `policy` that is the same but for the policy and its options; None for itself and for cases without a policy."""

    def rest(config: dict[str, Any]) -> dict[str, Any]:
        return {k: v for k, v in config.items() if k not in ("policy", "policy_sha256") and not k.startswith("option")}

    others: Iterator[Case] = (c for c in cases if c.config["policy"] == policy != case.config["policy"])
    return next((c for c in others if rest(c.config) == rest(case.config)), None)


def _over(values: Values) -> Interval:
    return interval({seed: list(items.values()) for seed, items in values.items()})


def _against(values: Values, base: Values | None) -> Interval | None:
    differences = paired(values, base) if base is not None else {}
    return interval(differences) if differences else None
