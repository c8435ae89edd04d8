"""Variations: several options changed together, one variation a job."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from vtoken_sdk.sweep.axes import axes_of
from vtoken_sdk.sweep.check import plan_sweep
from vtoken_sdk.sweep.plan import Plan, PolicyFacts, make_plan
from vtoken_sdk.sweep.settings import flatten, shipped_text
from vtoken_sdk.sweep.values import UsageError


def plan(**options: Any) -> Plan:
    flat = flatten(yaml.safe_load(shipped_text())) | {key.replace("__", "."): value for key, value in options.items()}
    return make_plan(axes_of(flat), {"h2o": PolicyFacts((), "h2o.py", "aa")})


def test_each_variation_is_a_job_and_what_does_not_apply_makes_none() -> None:
    jobs = plan(runtime="native,vtoken", vary=["", "threshold=0.5", "reclaim.packing=fresh margin=0", "seed=3"]).jobs
    vtoken = [(j.threshold, j.reclaim_packing, j.margin, j.seed) for j in jobs if j.runtime == "vtoken"]
    assert vtoken == [(1.0, "fill", None, 0), (0.5, "fill", None, 0), (1.0, "fresh", 0, 0), (1.0, "fill", None, 3)]
    assert [j.seed for j in jobs if j.runtime == "native"] == [0, 3]


def test_another_block_size_keeps_the_pools_memory() -> None:
    jobs = plan(runtime="native", pool_blocks=100, vary=["block_size=64", "block_size=8", "block_size=8 pool_blocks=7"]).jobs
    assert [(j.block_size, j.pool_blocks) for j in jobs] == [(64, 25), (8, 200), (8, 7)]


def test_a_variation_may_name_a_policy_of_its_own() -> None:
    changes = ["runtime=native", "runtime=vtoken policy=random chunk=64"]
    flat = flatten(yaml.safe_load(shipped_text())) | {"policy": "h2o", "runtime": "vtoken", "vary": changes}
    made = plan_sweep([axes_of(flat)], elsewhere=False)
    assert [(j.runtime, j.policy, j.chunk) for j in made.jobs] == [("native", None, 2048), ("vtoken", "random", 64)]
    assert made.name == "h2o-random"


def test_a_variation_may_change_an_option_of_a_policy() -> None:
    changes = ["", "option.recent=0.1", "option.recent=0.3 runtime=naive"]
    flat = flatten(yaml.safe_load(shipped_text())) | {"policy": "h2o", "runtime": "vtoken", "vary": changes}
    jobs = plan_sweep([axes_of(flat)], elsewhere=False).jobs
    assert [(j.runtime, j.option.get("recent")) for j in jobs] == [("vtoken", None), ("vtoken", 0.1), ("naive", 0.3)]


@pytest.mark.parametrize(
    ("vary", "said"),
    [
        ("threshhold=1", "vary=threshhold=1: there is no key threshhold; did you mean threshold=...?"),
        ("chunk=1 chunk=2", "vary=chunk=1 chunk=2: chunk is given twice; write a change each"),
        ("0.5", "vary=0.5: use KEY=VALUE pairs"),
        ("margin=-1", "margin=-1: use a whole number >= 0"),
        ("dir=x", "vary=dir=x: vary changes options of jobs, not of the sweep"),
        ("runtime=vtoken option.sinks=4", "vary=runtime=vtoken option.sinks=4: h2o has no option sinks .it has no options."),
    ],
)
def test_a_variation_that_cannot_be_is_told(vary: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        plan(vary=[vary])
