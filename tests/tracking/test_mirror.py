"""W&B mirrors finished jobs; whatever is wrong with it, only `close` waits, for a bounded time, and says so in one line."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from vtoken_sdk.tracking import Mirror, NoTracker, Trackers, start_trackers

from .conftest import ROOT

PATIENT = 120.0  # seconds, for a machine with other work


def read_back(job: Path) -> list[dict[str, Any]]:
    """The records of a job's offline run, as W&B's own tool reads them."""
    (run,) = job.glob("wandb/offline-run-*")
    tool = Path(sys.executable).with_name("wandb")
    done = subprocess.run([tool, "leet", "inspect", "--json", run], capture_output=True, text=True, check=True)
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def test_offline_is_the_default_and_holds_everything(job: Path) -> None:
    tracker = start_trackers(["wandb"], job.parents[1], None, "vtoken-sdk", "a-sweep", PATIENT)
    began = time.monotonic()
    tracker.add(job)
    assert time.monotonic() - began < 0.5
    assert tracker.close().startswith("W&B: 1 offline run; to upload: wandb sync ")
    text = json.dumps(read_back(job))
    steps = pq.read_table(job / "steps.parquet").num_rows
    for word in ("a-sweep", "reclaim_packing", "policy_sha256", "vtoken"):
        assert word in text, word
    assert text.count("blocks_held") >= steps


def test_disabled_and_unknown_modes_start_nothing(job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert start_trackers(["wandb"], job.parents[1], "disabled", "p", "g", 1).close() == "W&B: disabled"
    monkeypatch.setenv("WANDB_MODE", "disabled")
    assert start_trackers(["wandb"], job.parents[1], None, "p", "g", 1).close() == "W&B: disabled"
    monkeypatch.setenv("WANDB_MODE", "sometimes")
    assert "WANDB_MODE=sometimes" in start_trackers(["wandb"], job.parents[1], None, "p", "g", 1).close()
    assert not (job / "wandb").exists()


def test_without_wandb_there_is_one_line_of_notice(tmp_path: Path) -> None:
    """In an interpreter without installed packages; a folder called wandb beside the user is not it."""
    (tmp_path / "wandb").mkdir()
    code = """
import sys
sys.path[:] = [p for p in sys.path if "site-packages" not in p]
from pathlib import Path
from vtoken_sdk.tracking import start_trackers
print(start_trackers(["wandb"], Path(), None, "p", "g", 1).close())
"""
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=env, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "W&B is not installed (pip install wandb): results are in the files only"


@contextlib.contextmanager
def dead_server() -> Iterator[str]:
    """Accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


def run_mirror(job: Path, mode: str, timeout: float, first: str = "", **env: str) -> tuple[str, float]:
    """In an interpreter of its own, so that the helper sees `env`: the note, and how long `close` took. first: what it does first."""
    code = """
import sys, time
from pathlib import Path
from vtoken_sdk.tracking import start_trackers
if __name__ == "__main__":
    job = Path(sys.argv[1])
    tracker = start_trackers(["wandb"], job.parents[1], sys.argv[2], "p", "g", float(sys.argv[3]))
    tracker.add(job)
    began = time.monotonic()
    note = tracker.close()
    print(time.monotonic() - began, note)
"""
    script = job.parents[1] / "script.py"
    script.write_text(f"{first}\n{code}")
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **env}
    command = [sys.executable, script, job, mode, str(timeout)]
    done = subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    seconds, _, note = done.stdout.strip().partition(" ")
    return note, float(seconds)


def test_a_dead_endpoint_is_given_up_in_time(job: Path) -> None:
    with dead_server() as url:
        note, seconds = run_mirror(job, "online", 4, WANDB_BASE_URL=url, WANDB_API_KEY="x" * 40)
    assert note.startswith("warning: W&B"), note
    assert "\n" not in note
    assert seconds < 10


def test_online_without_an_account_never_asks(job: Path) -> None:
    with dead_server() as url:
        note, _ = run_mirror(job, "online", PATIENT, WANDB_BASE_URL=url)
    assert note.startswith("warning: W&B has 0 of 1 jobs"), note


def test_no_home_does_not_matter(job: Path) -> None:
    note, _ = run_mirror(job, "offline", PATIENT, HOME="/nonexistent")
    assert note.startswith("W&B: 1 offline run;"), note


def test_a_folder_that_cannot_be_written_is_one_warning(job: Path) -> None:
    (job / "wandb").write_text("a file where W&B wants a folder")
    second = job.with_name("second")
    shutil.copytree(job, second)
    (second / "wandb").unlink()
    tracker = start_trackers(["wandb"], job.parents[1], "offline", "p", "g", PATIENT)
    tracker.add(job)
    tracker.add(second)
    note = tracker.close()
    assert note.startswith("warning: W&B has 1 of 2 jobs (FileExistsError"), note


def test_a_killed_helper_is_one_warning(job: Path) -> None:
    tracker = start_trackers(["wandb"], job.parents[1], "offline", "p", "g", PATIENT)
    os.kill(mirror_of(tracker).process.pid or 0, signal.SIGKILL)
    mirror_of(tracker).process.join()
    tracker.add(job)
    assert tracker.close() == "warning: the W&B helper process died; results are in the files, unaffected"


def mirror_of(tracker: Trackers) -> Mirror:
    (mirror,) = [part for part in tracker.parts if isinstance(part, Mirror)]
    return mirror


def children(pid: int) -> list[int]:
    return [int(p) for p in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_a_killed_service_of_wandb_is_one_warning(job: Path) -> None:
    second = job.with_name("second")
    shutil.copytree(job, second)
    tracker = start_trackers(["wandb"], job.parents[1], "offline", "p", "g", 10)
    tracker.add(job)
    deadline = time.monotonic() + PATIENT
    while not (service := children(mirror_of(tracker).process.pid or 0)):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    for pid in service:
        os.kill(pid, signal.SIGKILL)
    tracker.add(second)
    began = time.monotonic()
    assert tracker.close().startswith("warning: W&B")
    assert time.monotonic() - began < 15


def test_a_stuck_helper_delays_nothing_but_the_end(job: Path) -> None:
    tracker = start_trackers(["wandb"], job.parents[1], "offline", "p", "g", 0.5)
    os.kill(mirror_of(tracker).process.pid or 0, signal.SIGSTOP)
    began = time.monotonic()
    for _ in range(3_000):  # more than the pipe holds
        tracker.add(job)
    note = tracker.close()
    assert time.monotonic() - began < 10
    assert note.startswith("warning: W&B was given up after 0.5 s")
    mirror_of(tracker).process.join()


def test_no_tracker_says_its_note(tmp_path: Path) -> None:
    tracker = NoTracker("nothing")
    tracker.add(tmp_path)
    assert tracker.close() == "nothing"
