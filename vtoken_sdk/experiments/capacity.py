"""How many requests a pool of a fixed number of blocks runs at once: the concurrency frontier.

A number of requests fits if all of them held blocks at once, none was preempted and none was cut short for want of blocks: nobody waited
for another's end. The frontier is the largest number of the sweep up to which all fit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from vtoken_sdk.paper import CAPACITY, CAPACITY_GAIN, Range
from vtoken_sdk.report.compare import LOAD_KEYS, key_of

from .finding import Finding, Outcome
from .runs import Run, Runs

QUESTION = "How many requests run at once in a fixed pool, nobody preempted, nobody waiting for another's end?"


def analyze(runs: Runs) -> Outcome:
    found: list[Finding] = []
    points = []
    groups = runs.groups(runs.runs, free=("seed", "requests"))
    natives = {_load(group[0]): frontier(group)[0] for _, group in groups if group[0]["runtime"] == "native"}
    for name, group in groups:
        fitting, missed = frontier(group)
        points += [{"name": name, "runtime": run["runtime"], "requests": run["requests"], "fits": fits(run)} for run in group]
        setting = CAPACITY.get((group[0]["pool_blocks"], group[0]["ctx"], group[0]["max_tokens"]))
        runtime = group[0]["runtime"]
        paper = None
        notes = []
        if setting is not None and runtime in ("native", "vtoken") and group[0]["pool_block_size"] == 16:
            paper = Range(*[float(setting[runtime == "vtoken"])] * 2)
            if setting[2].lower() not in str(group[0]["model"]).lower():
                notes.append(f"the paper's pool is that of {setting[2]}; blocks do not depend on the model")
        open_end = missed is None or missed > fitting + 1
        if missed is None:
            notes.append("the largest number tried fits; requests=... tries more")
        elif open_end:
            notes.append(f"{missed} do not fit, and nothing between was tried; requests=... does")
        found.append(Finding("requests at once", name, fitting, "requests", paper, note="; ".join(notes), at_least=open_end))
        if runtime != "native" and (native := natives.get(_load(group[0]))):
            gain = CAPACITY_GAIN if runtime == "vtoken" else None
            found.append(Finding("requests at once", f"{name}, against native", fitting / native, "times", gain, at_least=open_end))
    return Outcome(QUESTION, found, {"points": points})


def fits(run: Run) -> bool:
    return bool(run["concurrency_peak"] == run["requests"] and not run["preemptions"] and not run["cut_short"])


def frontier(group: Sequence[Run]) -> tuple[int, int | None]:
    """The frontier, 0 if even the smallest number does not fit, and the first number that does not, None if all do.

    A number fits if it does under every seed.
    """
    fitting = 0
    for number in sorted({int(run["requests"]) for run in group}):
        if not all(fits(run) for run in group if run["requests"] == number):
            return fitting, number
        fitting = number
    return fitting, None


def _load(run: Run) -> tuple[Any, ...]:
    return tuple(key_of(run.row, key) for key in LOAD_KEYS if key not in ("seed", "requests"))
