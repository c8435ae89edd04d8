"""From options to jobs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from vtoken_sdk.sweep.axes import axes_of
from vtoken_sdk.sweep.job import Job
from vtoken_sdk.sweep.plan import Plan, PolicyFacts, make_folder, make_plan
from vtoken_sdk.sweep.settings import flatten, shipped_text
from vtoken_sdk.sweep.values import UsageError

FACTS = {
    "h2o": PolicyFacts(("recent",), "h2o.py", "aa"),
    "random": PolicyFacts(("sinks", "recent"), "random.py", "bb"),
    "streaming_llm": PolicyFacts(("sinks",), "streaming_llm.py", "cc"),
}


def plan(**options: Any) -> Plan:
    flat = {**flatten(yaml.safe_load(shipped_text())), **{k.replace("__", "."): v for k, v in options.items()}}
    return make_plan(axes_of(flat), FACTS)


def test_the_default_is_five_runtimes_native_first() -> None:
    assert [job.runtime for job in plan().jobs] == ["native", "naive", "refill", "vtoken", "page1"]


def test_native_is_shared_by_policies_and_budgets() -> None:
    jobs = plan(policy="h2o,random", budget="0.25,0.5", option__recent=1).jobs
    native = [job for job in jobs if job.runtime == "native"]
    assert len(native) == 1
    assert len(jobs) == 1 + 4 * 4
    assert (native[0].policy, native[0].budget, native[0].option, native[0].evict_every) == (None, None, {}, None)


def test_what_only_vtoken_has_multiplies_only_vtoken() -> None:
    jobs = plan(threshold="0.5,1.0", reclaim__refill="true,false").jobs
    assert [job.runtime for job in jobs].count("vtoken") == 4
    assert len(jobs) == 4 + 4


def test_margin_belongs_to_fresh_packing() -> None:
    assert [job.runtime for job in plan(margin="4,8").jobs].count("vtoken") == 1
    assert [job.runtime for job in plan(margin="4,8", reclaim__packing="fresh").jobs].count("vtoken") == 2


def test_a_job_is_named_by_what_it_does() -> None:
    first, again, other = plan(ctx="4k").jobs, plan(ctx=4096, name="x", wandb__mode="disabled").jobs, plan(ctx=4097).jobs
    assert [job.id for job in first] == [job.id for job in again]
    assert not {job.id for job in first} & {job.id for job in other}


def test_an_edited_policy_is_another_job() -> None:
    before = plan(runtime="vtoken").jobs[0]
    after = Job.from_flat({**before.flat(), "policy_sha256": "dd"})
    assert before.id != after.id


def test_a_job_survives_its_file() -> None:
    for job in plan(policy="h2o", budget="0.5,64", option__recent=0.25).jobs:
        again = Job.from_config(yaml.safe_load(yaml.safe_dump(job.config())))
        assert again == job


def test_an_option_of_some_policies_passes_the_others_by() -> None:
    made = plan(policy="h2o,streaming_llm", option__sinks="2,4", runtime="vtoken")
    assert [(job.policy, dict(job.option)) for job in made.jobs] == [
        ("h2o", {}),
        ("streaming_llm", {"sinks": 2}),
        ("streaming_llm", {"sinks": 4}),
    ]
    assert made.notes == ("option.sinks does not apply to h2o, which has no such option",)


@pytest.mark.parametrize(
    ("option", "offer"),
    [("resent", "option.recent"), ("bugdet", "budget"), ("sinks", "no policy of this sweep"), ("budget", "write budget=")],
)
def test_an_option_that_no_policy_has_is_refused(option: str, offer: str) -> None:
    facts = {"h2o": FACTS["h2o"]}
    flat = {**flatten(yaml.safe_load(shipped_text())), f"option.{option}": 1}
    with pytest.raises(UsageError, match=rf"^option\.{option}.*{offer}"):
        make_plan(axes_of(flat), facts)


def test_a_recorded_policy_must_be_the_same_source() -> None:
    assert len(plan(policy_sha256="aa").jobs) == 5
    with pytest.raises(UsageError, match="policy_sha256=ff"):
        plan(policy_sha256="ff")


def test_default_folders_never_meet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert len({make_folder(None, "h2o") for _ in range(5)}) == 5


def test_a_folder_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="dir="):
        make_folder(str(tmp_path / "file" / "x"), "h2o")
