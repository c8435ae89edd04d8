"""search=optuna: the best of a few keys, over the same jobs, files and resume as a grid."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from vtoken_sdk.sweep.axes import intervals_of
from vtoken_sdk.sweep.interval import Interval
from vtoken_sdk.sweep.search import direction_of
from vtoken_sdk.sweep.values import UsageError

from .conftest import SMALL, Sweep, results, write_policy

SEARCH = (
    *SMALL,
    "search=optuna",
    "policy=./mine.py",
    "runtime=native,vtoken",
    "dir=out",
    "option.x=interval(0,9)",
    "budget=interval(0.3,0.7)",
)


def trials() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(Path("out/search.json").read_text())["trials"]
    return found


def test_a_search_finds_goes_on_and_repeats_nothing(vtoken_sweep: Sweep) -> None:
    write_policy("mine", "assert self.x != 9 and not Path('broken').exists()", "x: int = 0")
    done = vtoken_sweep(*SEARCH, "trials=3")
    assert done.code in (0, 3), done
    assert "1 job, 0 already done, 1 to run" in done.out  # native, which nothing searched applies to
    first = trials()
    assert len(first) == 3
    rows = {row["job"]: row for row in results("out")}
    assert [row["runtime"] for row in rows.values()].count("native") == 1
    for trial in first:
        (job,) = trial["jobs"]
        assert 0.3 <= trial["values"]["budget"] <= 0.7
        assert isinstance(trial["values"]["option.x"], int)
        if trial["error"] is None:
            assert trial["value"] == rows[job]["waste"]
            assert trial["values"]["budget"] == rows[job]["budget"]
    best = min(trial["value"] for trial in first if trial["error"] is None)
    assert f"best waste {best:.6g} at budget=" in done.out

    stamps = {path: path.stat().st_mtime_ns for path in Path("out/jobs").glob("*/result.json")}
    more = vtoken_sweep(*SEARCH, "trials=4")
    assert trials()[:3] == first
    assert len(trials()) == 4
    assert all(path.stat().st_mtime_ns == stamp for path, stamp in stamps.items())
    assert "trial 4/4" in more.out
    assert "another command" not in more.out


def test_a_search_that_finds_no_value_says_so(vtoken_sweep: Sweep) -> None:
    write_policy("mine", "pass", "x: int = 0")
    done = vtoken_sweep(*SEARCH, "trials=1", "objective=kl", "workers=1")
    assert done.code == 3
    assert "kl is empty: it does not apply to vtoken here" in done.out
    assert "1 of 1 trial, 1 without a value" in done.out


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["search=optuna"], "nothing to search"),
        (["threshold=interval(0.3,1.0)"], "threshold=interval(0.3,1.0): list the values"),
        (["search=optuna", "threshold=interval(0.3,1.0)", "objective=wast"], "did you mean waste?"),
        (["search=optuna", "threshold=interval(0.3,1.0)", "objective=model"], "objective=model"),
        (["search=optuna", "threshold=interval(0.3,1.0)", "objective=ctx"], "direction=minimize or direction=maximize"),
        (["search=optuna", "threshold=interval(1.0,0.3)"], "LOW below HIGH"),
        (["search=optuna", "budget=interval(0.3,5)"], "write both ends alike"),
        (["search=optuna", "trials=interval(1,2)"], "only keys of a job with numbers"),
        (["search=optuna", "threshold=interval(0,1.0)"], "threshold=0"),
        (["search=random"], "use one of optuna"),
    ],
)
def test_refused(args: list[str], says: str, vtoken_sweep: Sweep) -> None:
    done = vtoken_sweep(*SMALL, *args)
    assert done.code == 2, done
    assert says in done.err
    assert not list(Path().iterdir())


def test_intervals_are_read_as_their_key_is() -> None:
    flat = {"threshold": "interval(0.3, 1)", "margin": "tag(log, interval(1,64))", "ctx": "interval(1k,16k)", "seed": 3}
    assert intervals_of(flat) == {
        "threshold": Interval(0.3, 1.0), "margin": Interval(1, 64, log=True), "ctx": Interval(1024, 16384)
    }  # fmt: skip
    assert not Interval.written_in("tag(log,interval(1,2)")
    with pytest.raises(UsageError, match="above 0"):
        intervals_of({"margin": "tag(log,interval(0,64))"})


def test_the_direction_follows_from_the_objective() -> None:
    assert [direction_of(name, "auto") for name in ("waste", "output_tok_s", "ttft_ms_p95", "blocks_freed", "blocks_held")] == [
        "minimize", "maximize", "minimize", "maximize", "minimize"
    ]  # fmt: skip
    assert direction_of("seed", "maximize") == "maximize"
