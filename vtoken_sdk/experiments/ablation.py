"""What each option of reclaiming does, one at a time against the sweep's first run of vtoken, which has the shipped ones."""

from __future__ import annotations

from vtoken_sdk.report.compare import VICTIM_KEYS, key_of, label, varying

from .finding import Finding, Outcome
from .runs import SETTLED, Run, Runs, change, over_seeds, where

QUESTION = "What does each option of reclaiming do?"
COMPARED = (("blocks held, against the base", "blocks_held"), ("ITL p95, against the base", "itl_ms_p95"))
OPTIONS = ("pool_block_size", "threshold", "margin")


def analyze(runs: Runs) -> Outcome:
    groups = [group for _, group in runs.groups(runs.of("vtoken", "page1", "naive"))]
    told = [key for key in varying([run.row for run in runs.runs]) if key in VICTIM_KEYS]
    bases: dict[str, list[Run]] = {}
    for group in groups:
        if group[0]["runtime"] == "vtoken":
            bases.setdefault(_victims(group), group)
    found: list[Finding] = []
    for group in groups:
        base = bases.get(_victims(group))
        name = ", ".join(filter(None, (label(group[0].row, told), _options(group[0], base))))
        waste, spread = over_seeds([run.settled_mean("waste") for run in group])
        moved = (
            f"{sum(run['bytes_moved'] or 0 for run in group) / len(group) / 1e6:.1f} MB moved" if group[0]["runtime"] == "vtoken" else ""
        )
        found.append(Finding("waste F", name, waste, "share", better="lower", note="; ".join(filter(None, (moved, spread)))))
        if base is not None and group is not base:
            found += [_against(metric, column, name, group, base) for metric, column in COMPARED]
    return Outcome(QUESTION, found, notes=(SETTLED,))


def _victims(group: list[Run]) -> str:
    return str([key_of(group[0].row, key) for key in VICTIM_KEYS])


def _options(run: Run, base: list[Run] | None) -> str:
    """What tells a run from the base."""
    if base is None or run is base[0]:
        return f"{run['runtime']} as shipped" if base else str(run["runtime"])
    options = [f"{key.removeprefix('pool_')}={run[key]}" for key in OPTIONS if run[key] not in (None, base[0][key])]
    options += [pair for pair in (run["reclaim"] or "").split() if pair not in base[0]["reclaim"].split()]
    return ", ".join([run["runtime"], *options])


def _against(metric: str, column: str, name: str, group: list[Run], base: list[Run]) -> Finding:
    """Seed by seed. Blocks in tokens, so that block sizes can be compared."""
    by_seed = {run["seed"]: run for run in base}
    pairs = [(run, by_seed[run["seed"]]) for run in group if run["seed"] in by_seed]
    value, spread = over_seeds([change(_size(a, column), _size(b, column)) for a, b in pairs])
    note = "; ".join(filter(None, (spread, where(group) if column.endswith("p95") else "")))
    return Finding(metric, name, value, "%", better="lower", note=note)


def _size(run: Run, column: str) -> float:
    return run.settled_mean(column) * run["block_size"] if column == "blocks_held" else float(run[column])
