"""vtoken-report as a user runs it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from vtoken_sdk.report.command import run

from .made import FIVE, row, write_sweep

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("WANDB_MODE", raising=False)


def report(*args: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    try:
        code: object = run(args)
    except SystemExit as end:
        code = end.code
    assert isinstance(code, int)
    said = capsys.readouterr()
    return code, said.out, said.err


def test_formats_are_written_into_the_sweeps_folder(capsys: pytest.CaptureFixture[str]) -> None:
    write_sweep(Path("one"), FIVE, steps=0)
    code, out, _ = report("one", "--format", "md,csv,json,parquet,tex", "--strict", capsys=capsys)
    assert code == 0
    assert out.splitlines() == [f"Report: one/report.{form}" for form in ("md", "csv", "json", "parquet", "tex")]
    assert all(Path(line.removeprefix("Report: ")).stat().st_size > 500 for line in out.splitlines())
    assert "vtoken-report one --format md,csv,json,parquet,tex --strict" in Path("one/report.md").read_text()


def test_several_folders_are_one_report_here(capsys: pytest.CaptureFixture[str]) -> None:
    write_sweep(Path("one"), FIVE, steps=0)
    write_sweep(Path("two"), [FIVE[0], row("vtoken", "random")], steps=0)
    code, out, _ = report("one", "two", "--format", "json", "--baseline", "naive", capsys=capsys)
    assert (code, out) == (0, "Report: report.json\n")
    value = json.loads(Path("report.json").read_text())
    assert (value["name"], value["baseline"], len(value["rows"])) == ("one, two", "naive", 6)


@pytest.mark.parametrize(
    ("faulty", "code", "said"),
    [
        ({"status": "failed", "error": "x"}, 3, "strict: 1 of 5 jobs failed or are missing"),
        ({"status": "missing"}, 3, "strict: 1 of 5 jobs failed or are missing"),
        ({"victims_sha256": "another"}, 4, "strict: same victims: the runtimes evicted different tokens under h2o, budget=0.5, seed=0"),
    ],
)
def test_strict_fails_where_jobs_or_gates_did(faulty: dict[str, str], code: int, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    write_sweep(Path("one"), [*FIVE[:4], row("page1", **faulty)], steps=0)
    assert report("one", "--format", "csv", capsys=capsys)[0] == 0
    got, out, _ = report("one", "--format", "csv", "--strict", capsys=capsys)
    assert got == code
    assert said in out


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("nothing",), "nothing: no plan.json and no results.parquet; name the folder of a sweep (its dir=)"),
        (("onne",), "onne: no plan.json and no results.parquet; name the folder of a sweep (its dir=); did you mean one?"),
        (("one", "--fromat", "md"), "--fromat: no such option; did you mean --format?"),
        (("one", "--format", "htlm"), "one or more with commas; did you mean html?"),
        (("one", "--format", "docx"), "--format docx: use html, md, csv, json, parquet, tex"),
        (("one", "--format", ","), "--format: name at least one"),
        (("one", "--baseline", "vLLM"), "--baseline vLLM: no job has that runtime or policy; there are native, naive"),
        (("one", "--out", "one/plan.json"), "name a folder that can be written, --out PATH"),
        ((), "the following arguments are required: DIR"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_written(args: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_sweep(Path("one"), FIVE, steps=0)
    before = sorted(folder.rglob("*"))
    code, _, err = report(*args, capsys=capsys)
    assert code == 2
    assert said in err
    assert sorted(folder.rglob("*")) == before


def test_help_and_offline_specification_need_no_torch_no_network_and_no_account(tmp_path: Path) -> None:
    """The report for W&B is a file until WANDB_MODE=online; a second run keeps what it knows of the sent one."""
    write_sweep(Path("one"), FIVE, steps=0)
    (tmp_path / "one" / "wandb_report.json").write_text('{"id": "abc", "url": "http://x"}')
    code = """
import sys
import vtoken_sdk.report.command as command
code = command.run(["one", "--format", "csv", "--wandb"])
heavy = {"torch", "wandb", "wandb_workspaces", "hydra"} & set(sys.modules)
assert not heavy, heavy
sys.exit(code)
"""
    env = {**os.environ, "PYTHONPATH": str(ROOT), "HOME": "/proc"}
    done = subprocess.run([sys.executable, "-c", code], env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "W&B report: one/wandb_report.json; to send it: the same command with WANDB_MODE=online" in done.stdout
    written = json.loads(Path("one/wandb_report.json").read_text())
    assert (written["id"], written["groups"]) == ("abc", ["one"])
    assert [block["text"] for block in written["blocks"] if block["kind"] == "heading"][1] == "2. Comparison"
    assert any(panel["y"] == ["blocks_held"] for block in written["blocks"] if block["kind"] == "panels" for panel in block["panels"])
