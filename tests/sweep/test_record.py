"""A finished job's record is enough to have its figures again."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from vtoken_sdk.metrics import COLUMNS
from vtoken_sdk.sweep.record import Record, is_figure

from .conftest import SMALL, Sweep, results, write_policy

TIMES = {
    name for name in COLUMNS if name.endswith(("_ms", "_p50", "_p95", "_p99", "_tok_s", "_throughput", "_goodput")) or name == "seconds"
}


def test_a_run_rebuilt_from_its_record_alone(vtoken_sweep: Sweep, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its folder in another place, the policy's file moved away and back: the same figures; another one's are told."""
    write_policy("mine", "pass")
    args = ("ctx=100", *SMALL[1:], "policy=./mine.py", "budget=0.4", "seed=3", "runtime=native,vtoken")
    assert vtoken_sweep(*args, "dir=out").code == 0
    _, row = results("out")
    record = Path(shutil.copytree(Path("out/jobs") / row["job"], "elsewhere/record"))
    facts = json.loads((record / "result.json").read_text())["provenance"]
    assert len(facts["policy_sha256"]) == 64
    assert {"commit", "version_torch", "device_name", "model_sha256"} <= set(facts)

    again = vtoken_sweep(f"from={record}", "dir=again")
    assert again.code == 0, again
    assert f"Record {record}: the same figures (" in again.out
    (new,) = results("again")
    assert new["job"] == row["job"]
    assert {k: v for k, v in new.items() if k not in TIMES} == {k: v for k, v in row.items() if k not in TIMES}

    both = vtoken_sweep("from=out", "seed=4", "dir=other")  # a whole sweep's, with a key changed: nothing to compare with
    assert both.code == 0
    assert [(r["runtime"], r["seed"], r["ctx"], r["budget"]) for r in results("other")] == [
        ("native", 4, 100, None),
        ("vtoken", 4, 100, 0.4),
    ]
    assert "Record" not in both.out

    result = json.loads((record / "result.json").read_text())
    result["row"]["blocks_held"] += 1
    result["provenance"]["version_torch"] = "0.1"
    (record / "result.json").write_text(json.dumps(result))
    differs = vtoken_sweep(f"from={record}", "dir=again")  # which is done: only compared
    assert differs.code == 4
    assert "1 figures differ: blocks_held" in differs.out
    assert "Not as it was: torch 0.1 -> " in differs.out

    Path("mine.py").rename("moved.py")
    assert "mine.py" in vtoken_sweep(f"from={record}").err
    monkeypatch.chdir("elsewhere")
    moved = vtoken_sweep("from=record", "policy=../moved.py", "dir=moved")
    assert "1 figures differ: blocks_held" in moved.out  # compared, although the policy lies elsewhere
    Path("../moved.py").write_text(Path("../moved.py").read_text() + "\n")
    edited = vtoken_sweep("from=record", "policy=../moved.py")
    assert edited.code == 2
    assert "restore the policy of the record" in edited.err


def test_an_edited_trace_is_another_job(vtoken_sweep: Sweep, monkeypatch: pytest.MonkeyPatch) -> None:
    """Named by its content: a resumed sweep must not mix two loads. A policy that changes the folder does not lose it."""
    write_policy("mine", 'os.chdir("/")')

    def trace(tokens: int) -> None:
        line = {"timestamp": 0, "input_length": tokens, "output_length": 20}
        Path("load.jsonl").write_text(f"{json.dumps(line)}\n" * 2)

    trace(60)
    args = (*SMALL, "policy=./mine.py", "workload=load.jsonl", "runtime=vtoken", "request_rate=1000")
    assert vtoken_sweep(*args, "dir=out").code == 0
    (row,) = results("out")
    assert row["prompt_tokens"] == 120
    assert "1 to run" in vtoken_sweep("from=out", "dir=out", "request_rate=null", "dry_run=true").out  # null takes a key back
    trace(90)
    assert "0 already done, 1 to run" in vtoken_sweep(*args, "dir=out", "dry_run=true").out
    edited = vtoken_sweep("from=out", "dir=again")
    assert edited.code == 2
    assert "workload_sha256" in edited.err
    assert "1 to run" in vtoken_sweep("from=out", "dir=again", "workload_sha256=null", "dry_run=true").out

    trace(60)
    Path("load.jsonl").rename("moved.jsonl")
    assert ": the same figures" in vtoken_sweep("from=out", "dir=again", "workload=moved.jsonl").out


@pytest.mark.parametrize("source", ["nosuch", "empty", "broken"])
def test_no_record_no_run(source: str, vtoken_sweep: Sweep) -> None:
    Path("empty").mkdir()
    Path("broken").mkdir()
    Path("broken/config.yaml").write_text("a: [")
    done = vtoken_sweep(f"from={source}")
    assert done.code == 2
    assert done.err.startswith(f"vtoken-sweep: from={source}: ")


def test_times_are_no_figures() -> None:
    assert {name for name in COLUMNS if is_figure(name)} == set(COLUMNS) - TIMES - {"job", "status", "error", "policy"}


def test_a_difference_is_one_to_the_last_digit() -> None:
    row = dict.fromkeys(COLUMNS)
    record = Record(Path("x"), {}, {**row, "waste": 0.1}, {})
    assert record.differences({**row, "waste": 0.1}) == []
    assert record.differences({**row, "waste": 0.1 + 2e-17 + 1e-16}) != []
