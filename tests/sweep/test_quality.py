"""The quality suites in whole sweeps, on the tiny model saved as one with real weights."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import yaml

from tests.quality_model import save_tiny, tiny, tokenizer
from vtoken_sdk.quality import FullCache, longbench
from vtoken_sdk.quality.__main__ import main
from vtoken_sdk.runtime.model_loader import load_model
from vtoken_sdk.sweep.axes import axes_of
from vtoken_sdk.sweep.job import Job
from vtoken_sdk.sweep.plan import PolicyFacts, make_plan
from vtoken_sdk.sweep.quality import quality_items
from vtoken_sdk.sweep.settings import flatten, shipped_text
from vtoken_sdk.sweep.values import UsageError
from vtoken_sdk.workloads import BUNDLED_TEXT

from .conftest import Sweep, results

SUITES = (
    "quality.texts=1",
    "quality.tokens=8",
    "quality.needles=1",
    "quality.needles4=1",
    "quality.data=data.jsonl",
    "quality.text=pages.txt",
)
LOAD = ("ctx=320", "requests=1", "output_tokens=2", "chunk=320", "pool_blocks=64")


def write_data(answer: str = "the miller", name: str = "known") -> None:
    lines = [
        {"input": "Who?", "context": "The miller came. " * 9, "answers": [text], "dataset": "hotpotqa", "_id": n}
        for n, text in ((name, answer), ("unknown", "nobody"))
    ]
    Path("data.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_a_sweep_judges_every_suite_item_by_item(
    vtoken_sweep: Sweep, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    write_data()
    prompt = longbench(tiny(), "data.jsonl", ctx=320)[0][0].prompt
    write_data(tokenizer().decode(FullCache(tiny()).write(prompt, 32), skip_special_tokens=True).strip())
    Path("pages.txt").write_text(BUNDLED_TEXT.read_text(encoding="utf-8")[:8000], encoding="utf-8")
    args = (f"model={save_tiny(Path('model'))}", "policy=streaming_llm,random", "budget=0.3", "runtime=naive", *LOAD, *SUITES, "seed=0,1")
    done = vtoken_sweep(*args, "dir=out")
    assert done.code == 0, done
    assert "a small model does not speak for large ones" in done.out
    assert "2 of 2 items, with generic prompts" in done.out
    assert "needle" in done.out and "dropped" in done.out, "the columns are on the screen"
    rows = results("out")
    assert len(rows) == 4
    for row in rows:
        assert row["nll"] > 0 and row["judged"] == 8
        assert (row["needle_items"], row["needle_dropped"], row["needle_acc"], row["needle_nll"]) == (0, 1, None, None)
        assert (row["needle4_items"], row["needle4_dropped"]) == (0, 1)
        assert (row["longbench_items"], row["longbench_dropped"], row["longbench_score_full"]) == (1, 1, 100)
        assert row["longbench_nll"] != row["longbench_nll_full"]
        assert row["quality_query"] == "aware"
        items = pq.read_table(Path("out/jobs") / row["job"] / "quality.parquet").to_pylist()
        assert [item["suite"] for item in items] == ["continuation", "needle", "needle4", "longbench", "longbench"]
        assert {item["seed"] for item in items} == {row["seed"]}
    full = [{k: v for k, v in row.items() if "full" in k} for row in rows]
    assert full[0] == full[2] and full[1] == full[3] and full[0] != full[1], "one full cache for all policies, one for each seed"
    assert not Path("out/full_cache").exists(), "nothing is left to share"

    # from the folder alone: intervals over seeds and items
    def table(*words: str) -> str:
        monkeypatch.setattr(sys, "argv", ["quality", "out", *words])
        main()
        return capfd.readouterr().out

    monkeypatch.setenv("COLUMNS", "160")
    shown = table("--against", "random")
    assert "less random" in shown and "a small model does not speak for large ones" in " ".join(shown.split())
    (kl,) = [line for line in shown.splitlines() if " kl " in line and "streaming_llm" in line]
    difference = sum(row["kl"] * (1 if row["policy"] == "streaming_llm" else -1) for row in rows) / 2
    assert f"{difference:.3f} [" in kl
    assert kl.split()[-3:] == ["2", "2", "0"]
    assert "less full cache" in table()
    with pytest.raises(SystemExit):
        table("--against", "h2o")
    assert "no finished job has this policy; use one of random, streaming_llm" in capfd.readouterr().err


def test_broken_data_stops_the_sweep_before_it_starts(vtoken_sweep: Sweep) -> None:
    Path("data.jsonl").write_text('{"input": "Who?"}\n')
    args = (f"model={save_tiny(Path('model'))}", "runtime=native", *LOAD)
    for words, message in (
        (("quality.data=data.jsonl",), "quality.data=data.jsonl, line 1: no field context; add it"),
        (("quality.tokens=900",), "an item of the quality suites needs 77 blocks of 16; use pool_blocks=77"),
    ):
        done = vtoken_sweep(*args, *words, "dir=out")
        assert (done.code, Path("out").exists()) == (2, False), done
        assert message in done.err


def jobs(**options: object) -> tuple[Job, ...]:
    given = flatten(yaml.safe_load(shipped_text())) | options
    return make_plan(axes_of(given), {"h2o": PolicyFacts((), "h2o.py", "0")}).jobs


def test_suites_that_dummy_weights_leave_out_are_told_of() -> None:
    model = load_model("tiny", device="cpu")
    (asked,) = jobs(**{"runtime": "native", "quality.needles": 2})
    assert quality_items(model, asked) == ([], ["quality is not judged: tiny has dummy weights"])
    (by_default,) = jobs(runtime="native")
    assert quality_items(model, by_default) == ([], [])


def test_an_edited_file_is_another_job(tmp_path: Path) -> None:
    def ids(**other: object) -> list[str]:
        return [job.id for job in jobs(**{"runtime": "native,naive", "quality.data": "data.jsonl", **other})]

    write_data()
    first = ids()
    assert ids() == first
    write_data("someone else")
    assert not set(ids()) & set(first)
    with pytest.raises(UsageError, match=r"quality.sha256=abc: quality.data=data.jsonl has \w{64}; restore the files"):
        ids(**{"quality.sha256": "abc"})
    with pytest.raises(UsageError, match=r"quality.prompts=none.json: cannot be read \(No such file"):
        ids(**{"quality.prompts": "none.json"})
    # keys that say nothing make no other job
    assert ids(**{"quality.data": None, "quality.items": 3}) == ids(**{"quality.data": None, "quality.query": "agnostic"})
    assert ids(**{"quality.query": "agnostic"}) != ids()
