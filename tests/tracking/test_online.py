"""W&B with a server that answers, on the loopback: runs online, runs synced later, the report; and one that hangs under a report."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from vtoken_sdk.report.parts import View
from vtoken_sdk.report.record import read_record
from vtoken_sdk.report.wandb_report import share
from vtoken_sdk.report.write import view_of
from vtoken_sdk.tracking import start_trackers

from .server import ENTITY, Received, wandb_server
from .test_mirror import PATIENT, dead_server, run_mirror


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Received]:
    with wandb_server() as received:
        monkeypatch.setenv("WANDB_BASE_URL", received.url)
        monkeypatch.setenv("WANDB_API_KEY", "x" * 40)
        yield received


@pytest.fixture
def shown(job: Path) -> View:
    """The sweep of one job, as its folder says."""
    config = json.loads((job / "result.json").read_text())["config"]
    plan = {"name": "a-sweep", "provenance": {"command": "vtoken-sweep"}, "jobs": [{"job": job.name, **config}]}
    (job.parents[1] / "plan.json").write_text(json.dumps(plan))
    return view_of(read_record([job.parents[1]]))


def test_a_job_online_is_a_run_of_the_sweeps_group_with_all_of_its_steps(job: Path, server: Received) -> None:
    note, _ = run_mirror(job, "online", PATIENT)
    assert note == "W&B: 1 run uploaded"
    check_run(job, server)


def test_a_job_offline_is_the_same_run_once_it_is_synced(job: Path, server: Received) -> None:
    tracker = start_trackers(["wandb"], job.parents[1], "offline", "p", "g", PATIENT)
    tracker.add(job)
    note = tracker.close()
    assert server.asked == []
    told = note.rpartition("wandb sync ")[2]
    (run,) = Path().glob(told) if not Path(told).is_absolute() else [Path(told)]
    tool = Path(sys.executable).with_name("wandb")
    subprocess.run([tool, "sync", run], stdin=subprocess.DEVNULL, capture_output=True, check=True, timeout=PATIENT)
    check_run(job, server)


def check_run(job: Path, server: Received) -> None:
    ((_, run),) = server.runs.items()
    assert (run["groupName"], run["jobType"], run["complete"]) == ("g", "vtoken", True)
    result = json.loads((job / "result.json").read_text())
    config = {key: value["value"] for key, value in json.loads(run["config"]).items() if key != "_wandb"}
    assert config["reclaim_packing"] == "fill"
    assert config["policy_sha256"] == result["provenance"]["policy_sha256"]
    steps = pq.read_table(job / "steps.parquet").to_pylist()
    assert [step["blocks_held"] for step in run["history"]] == [step["blocks_held"] for step in steps]
    assert run["summary"]["output_tok_s"] == pytest.approx(result["row"]["output_tok_s"])


def test_the_report_is_sent_and_sent_again_in_its_place(shown: View, server: Received) -> None:
    """The same parts as in the file, panels over the sweep's runs; the same command replaces it."""
    folder = shown.record.sweeps[0].path
    said = [share(shown, folder, "online", "p", PATIENT) for _ in range(2)]
    assert said[0] == said[1]
    assert said[0].startswith(f"W&B report: {server.url}/{ENTITY}/p/reports/vtoken-sdk:-a-sweep--")
    ((name, view),) = server.views.items()
    assert json.loads((folder / "wandb_report.json").read_text())["id"] == name
    blocks = view["spec"]["blocks"]
    headings = ["".join(child["text"] for child in block["children"]) for block in blocks if block["type"] == "heading"]
    assert headings[0] == "1. Verdict and provenance"
    assert len(headings) == 12
    text = json.dumps(blocks)
    assert '["a-sweep"]' in text  # the runs are those of the sweep's group
    for word in ("blocks_held", "utilization", "output_tok_s", "Line Plot", "Scatter Plot", "dummy weights"):
        assert word in text, word


def test_a_report_to_a_hanging_server_is_given_up_and_stays_a_file(shown: View, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = shown.record.sweeps[0].path
    monkeypatch.setenv("WANDB_API_KEY", "x" * 40)
    with dead_server() as url:
        monkeypatch.setenv("WANDB_BASE_URL", url)
        began = time.monotonic()
        said = share(shown, folder, "online", "p", 3)
        assert time.monotonic() - began < 3 + 5
    assert said.startswith("warning: W&B report not sent (no answer in 3 s); ")
    assert json.loads((folder / "wandb_report.json").read_text())["title"] == "vtoken-sdk: a-sweep"


def test_a_report_without_an_account_never_asks(shown: View, monkeypatch: pytest.MonkeyPatch) -> None:
    with dead_server() as url:
        monkeypatch.setenv("WANDB_BASE_URL", url)
        said = share(shown, shown.record.sweeps[0].path, "online", "p", PATIENT)
    assert said.startswith("warning: W&B report not sent (")
    assert "no answer" not in said
    assert os.linesep not in said
