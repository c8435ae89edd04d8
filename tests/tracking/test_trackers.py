"""Trackers besides W&B, several at once, and the option that names them."""

from __future__ import annotations

import importlib.util
import json
import math
import os
import signal
import sqlite3
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from vtoken_sdk.sweep.axes import axes_of
from vtoken_sdk.sweep.values import UsageError, tracker_names
from vtoken_sdk.tracking import KINDS, Mirror, start_trackers
from vtoken_sdk.tracking.jsonl import Jsonl

from .test_mirror import PATIENT


def lines(sweep: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (sweep / "jobs.jsonl").read_text().splitlines()]


def test_a_line_a_job_is_always_written(job: Path) -> None:
    """Of failed jobs, too; a second sweep in the folder appends."""
    sweep = job.parents[1]
    for _ in range(2):
        tracker = start_trackers([], sweep, None, "p", "g", 1)
        tracker.add(job)
        assert tracker.close() == ""
    (job / "status.json").write_text('{"status": "failed", "error": "no"}')
    tracker.add(job)
    first, _, third = lines(sweep)
    row = json.loads((job / "result.json").read_text())["row"]
    assert (first["job"], first["status"], first["row"]) == (job.name, "done", row)
    assert (third["status"], third["error"]) == ("failed", "no")


def test_a_folder_that_is_gone_is_one_warning(job: Path, tmp_path: Path) -> None:
    tracker = Jsonl(tmp_path / "gone")
    tracker.add(job)
    tracker.add(job)
    assert tracker.close().startswith("warning: jobs.jsonl is not whole (No such file or directory)")


def test_tensorboard_beside_wandb_has_the_steps_and_the_result(job: Path) -> None:
    """NaN and infinity in a job's steps are no points of a curve, and no failure of either."""
    pytest.importorskip("tensorboard", reason="the extra tensorboard is not installed")
    steps = pq.read_table(job / "steps.parquet").to_pylist()
    steps[1]["waste"], steps[2]["waste"] = math.nan, math.inf
    pq.write_table(pa.Table.from_pylist(steps), job / "steps.parquet")
    tracker = start_trackers(["wandb", "tensorboard"], job.parents[1], "offline", "p", "g", PATIENT)
    tracker.add(job)
    of_wandb, of_tensorboard = tracker.close().splitlines()
    assert of_wandb.startswith("W&B: 1 offline run; to upload: wandb sync ")
    assert of_tensorboard.startswith("TensorBoard: 1 run; to look: tensorboard --logdir ")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    (folder,) = (job.parents[1] / "tensorboard").iterdir()
    assert folder.name.endswith(f"_{job.name}")
    assert " " not in folder.name
    events = EventAccumulator(str(folder))
    events.Reload()
    assert [(e.step, e.value) for e in events.Scalars("step/blocks_held")] == [(s["step"], s["blocks_held"]) for s in steps]
    known = [s["step"] for s in steps if s["waste"] is not None and math.isfinite(s["waste"])]
    assert [e.step for e in events.Scalars("step/waste")] == known
    row = json.loads((job / "result.json").read_text())["row"]
    assert events.Scalars("result/output_tok_s")[0].value == pytest.approx(row["output_tok_s"])


@pytest.mark.skipif(importlib.util.find_spec("trackio") is None, reason="the extra trackio is not installed")
def test_trackio_has_the_steps_in_the_sweeps_folder(job: Path) -> None:
    tracker = start_trackers(["trackio"], job.parents[1], None, "p", "g", PATIENT)
    tracker.add(job)
    assert tracker.close().startswith("Trackio: 1 run; to look: TRACKIO_DIR=")
    (file,) = (job.parents[1] / "trackio").glob("p*.db")
    with sqlite3.connect(file) as base:
        logged = [json.loads(metrics) for (metrics,) in base.execute("select metrics from metrics order by step")]
    steps = pq.read_table(job / "steps.parquet").to_pylist()
    assert [m["blocks_held"] for m in logged[:-1]] == [s["blocks_held"] for s in steps]
    assert "result/output_tok_s" in logged[-1]


def test_several_trackers_share_one_patience(job: Path) -> None:
    """Two that hang cost no more than one."""
    tracker = start_trackers(["wandb", "tensorboard"], job.parents[1], "offline", "p", "g", 1.5)
    for part in tracker.parts:
        if isinstance(part, Mirror):
            os.kill(part.process.pid or 0, signal.SIGSTOP)
    tracker.add(job)
    began = time.monotonic()
    said = tracker.close().splitlines()
    assert time.monotonic() - began < 1.5 + 1
    assert [line.partition(" was")[0] for line in said] == ["warning: W&B", "warning: TensorBoard"]
    assert lines(job.parents[1])[0]["job"] == job.name


def test_what_was_asked_for_and_is_not_installed_is_told_before_anything_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"tracker=tensorboard: tensorboard is not installed; pip install 'vtoken-sdk\[tensorboard\]'"):
        axes_of({"tracker": "tensorboard"})
    assert axes_of({"tracker": "wandb"}) == {"tracker": ["wandb"]}  # the default: a notice at the end
    with pytest.raises(UsageError, match=r"tracker=wandbb: wandbb is none of jsonl, wandb, trackio, tensorboard; did you mean wandb\?"):
        axes_of({"tracker": "wandbb"})


@pytest.mark.parametrize("value", ["wandb,jsonl", ["wandb", "jsonl"]])
def test_several_trackers_are_one_value(value: object) -> None:
    """Hydra reads a comma as a sweep; this key takes a list."""
    assert axes_of({"tracker": value}) == {"tracker": ["wandb,jsonl"]}
    assert tracker_names("wandb,jsonl") == ["wandb"]
    assert tracker_names(None) == []
    assert set(KINDS) == {"wandb", "trackio", "tensorboard"}
