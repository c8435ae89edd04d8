"""vtoken-replay as a user types it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from vtoken_sdk.replay.cli import main

POLICY = """
from dataclasses import dataclass
from vtoken_sdk import CacheView, EvictionPolicy

@dataclass
class Mine(EvictionPolicy):
    recent: int = 8

    def evict_token(self, cache: CacheView):
        return cache.evict_lowest(cache.positions, last=self.recent)
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    (tmp_path / "mine.py").write_text(POLICY)
    return tmp_path


def call(monkeypatch: pytest.MonkeyPatch, command: str) -> int | str | None:
    monkeypatch.setattr(sys, "argv", ["vtoken-replay", *command.split()])
    with pytest.raises(SystemExit) as end:
        main()
    return end.value.code


def test_record_once_and_compare_policies(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(monkeypatch, "record run.parquet ctx=96 requests=2 output_tokens=20") == 0
    out = capsys.readouterr().out
    assert out.startswith("2 requests, ") and "vtoken-replay run run.parquet" in out
    assert call(monkeypatch, "run run.parquet policy=./mine.py,h2o,oracle budget=0.25,0.5 evict.every=4 option.recent=0.2") == 2
    assert call(monkeypatch, "run run.parquet policy=./mine.py,h2o,oracle budget=0.25,0.5 evict.every=4") == 0
    out = capsys.readouterr().out
    assert "Open-loop" in out
    assert [line.split()[:3] for line in out.splitlines() if line.strip().startswith("h2o")] == [
        ["h2o", budget, runtime] for budget in ("0.25", "0.5") for runtime in ("naive", "vtoken")
    ]
    assert call(monkeypatch, "run run.parquet policy=snapkv,h2o") == 3
    out = capsys.readouterr().out
    assert "failed: snapkv (2 times): policy SnapKV: it" in out and "reads queries" in out and "h2o" in out


def test_no_figure_is_cut_and_what_varies_is_named(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "50")
    assert call(monkeypatch, "record run.parquet ctx=96 requests=1 output_tokens=20") == 0
    assert capsys.readouterr().out.startswith("1 request, ")
    assert call(monkeypatch, "run run.parquet policy=./mine.py budget=0.5 evict.every=2,8 policy.recent=2,4 runtime=vtoken") == 0
    out = capsys.readouterr().out
    assert "…" not in out and max(map(len, out.splitlines())) <= 50
    assert "./mine.py, budget=0.5" in out
    heads = [line.split() for line in out.splitlines() if line.startswith("option")]
    assert [head[:3] for head in heads] == [["option", "evict_every", "runtime"]] * len(heads)
    assert {name for head in heads for name in head[3:]} == {"kept", "held", "ideal", "waste", "moves", "ms"}
    assert [line.split()[:2] for line in out.splitlines() if line.startswith("recent=")] == [
        [f"recent={recent}", every] for recent in "24" for every in "28"
    ] * len(heads)


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("play run.parquet", "use record or run"),
        ("record", "name the file"),
        ("record ctx=96", "name the file"),
        ("record run.parquet ctx=96,128", "ctx: a recording has one value"),
        ("record run.parquet ctxx=96", "did you mean ctx?"),
        ("record run.parquet budget=0.5", "budget: vtoken-sweep has it, not vtoken-replay record"),
        ("record nowhere/run.parquet", "no folder nowhere"),
        ("record run.parquet ctx=9m", "ctx="),
        ("run gone.parquet", "gone.parquet: there is no such file"),
        ("run run.parquet runtime=native", "runtime=native evicts nothing"),
        ("run run.parquet policy=h3o", "h2o"),
        ("run run.parquet budget=0", "budget=0"),
        ("run run.parquet budget=0.5 budget=0.25", "budget is given twice"),
        ("run run.parquet policy", "KEY=VALUE"),
    ],
)
def test_mistakes_are_told_before_anything_runs(
    command: str, said: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(monkeypatch, command) == 2
    assert said in capsys.readouterr().err
    assert not list(folder.glob("*.parquet"))


def test_a_recording_is_not_written_over(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "run.parquet").write_text("an hour's work")
    assert call(monkeypatch, "record run.parquet ctx=96") == 2
    assert "run.parquet: there already; remove it, or name another file" in capsys.readouterr().err
    assert (folder / "run.parquet").read_text() == "an hour's work"


def test_help_names_every_key(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(monkeypatch, "--help") == 0
    out = capsys.readouterr().out
    for key in ("output_tokens", "evict.prefill", "reclaim.packing", "Open-loop"):
        assert key in out
