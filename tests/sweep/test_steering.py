"""How a sweep goes about its jobs: what runs again, what stops it, who runs it, what is shown meanwhile."""

from __future__ import annotations

import fcntl
import io
import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from vtoken_sdk.sweep.job import Job
from vtoken_sdk.sweep.progress import Follower, duration
from vtoken_sdk.tracking import NoTracker

from .conftest import SMALL, Sweep, results, write_policy

ONCE = (*SMALL, "runtime=native,naive,refill", "policy=./mine.py", "dir=out")


def states(folder: str = "out") -> list[Any]:
    return [row["status"] for row in results(folder)]


def test_what_runs_again(vtoken_sweep: Sweep) -> None:
    """What failed by its own fault on demand only (here the fault lies outside the policy's file, so it is the same job once mended);
    what was killed from outside by itself, since the system's out-of-memory killer may have meant another process."""
    write_policy("mine", "assert not Path('broken').exists(), 'broken'")
    write_policy("shot", "if not Path('shot').exists():\n    Path('shot').touch()\n    os.kill(os.getpid(), signal.SIGKILL)")
    Path("broken").touch()
    args = (*SMALL, "runtime=native,naive", "policy=./mine.py,./shot.py", "dir=out")
    first = vtoken_sweep(*args)
    assert first.code == 3
    assert states() == ["done", "failed", "failed"]
    assert first.out.splitlines()[-1] == f"To try the failed jobs again: vtoken-sweep {' '.join(args)} rerun=failed"
    Path("broken").unlink()

    resumed = vtoken_sweep(*args)
    assert "3 jobs, 1 already done, 1 failed (rerun=failed runs them again), 1 to run in out" in resumed.out
    assert resumed.code == 3
    assert states() == ["done", "failed", "done"]
    assert "broken" in results("out")[1]["error"]

    again = vtoken_sweep(*args, "rerun=failed")
    assert "3 jobs, 2 already done, 1 to run" in again.out
    assert again.code == 0
    assert states() == ["done"] * 3
    assert not list(Path("out").glob("jobs/*/error.txt"))

    stamps = {path: path.stat().st_mtime_ns for path in Path("out").glob("jobs/*/result.json")}
    assert "3 to run" in vtoken_sweep(*args, "rerun=all").out
    assert states() == ["done"] * 3
    assert all(path.stat().st_mtime_ns > stamp for path, stamp in stamps.items())


def test_what_a_policy_started_ends_with_its_job(vtoken_sweep: Sweep) -> None:
    """A child that it forked would hold the job's lock, its pipe, and the sweep's output, for ever."""
    body = """
if self.crash is not None and os.fork() == 0:
    Path("child").write_text(str(os.getpid()))
    signal.pause()
while self.crash is not None and not Path("child").exists():
    pass
if self.crash:
    os._exit(1)
"""
    write_policy("mine", body, options="crash: bool | None = None")
    for crash, code in (("true", 3), ("false", 0)):
        args = (*SMALL, "policy=./mine.py", f"option.crash={crash}", "runtime=naive", "evict.every=0", "dir=out")
        assert vtoken_sweep(*args).code == code
        Path("child").unlink()
    locks = list(Path("out/jobs").glob("*/.lock"))
    assert len(locks) == 2
    signal.alarm(20)  # instead of waiting for ever, as the next sweep would
    for lock in locks:
        with lock.open() as file:
            fcntl.flock(file, fcntl.LOCK_EX)
    signal.alarm(0)


def test_fail_fast_starts_nothing_after_a_failure(vtoken_sweep: Sweep) -> None:
    write_policy("mine", "raise ValueError('no')")
    done = vtoken_sweep(*ONCE, "fail_fast=true")
    assert done.code == 3
    assert states() == ["done", "failed", "missing"]
    assert "1 job did not run" in done.out
    assert "1 failed (rerun=failed runs them again), 1 to run" in vtoken_sweep(*ONCE).out
    assert states() == ["done", "failed", "failed"]  # a stop is of one sweep, not of its folder


def test_a_dry_run_shows_the_plan_and_leaves_nothing(vtoken_sweep: Sweep) -> None:
    dry = vtoken_sweep(*SMALL, "policy=random", "runtime=native,naive", "dry_run=true", "dir=out")
    assert dry.code == 0, dry
    assert "2 jobs, 0 already done, 2 to run in out" in dry.out
    assert not list(Path().iterdir())
    os.makedirs("out/jobs")
    jobs = [line.split()[0] for line in dry.out.splitlines()[1:3]]
    Path("out/jobs", jobs[0]).mkdir()
    Path("out/jobs", jobs[0], "status.json").write_text('{"status": "failed"}')
    before = sorted(Path().rglob("*"))
    dry = vtoken_sweep(*SMALL, "policy=random", "runtime=native,naive", "dry_run=true", "dir=out")
    assert [line.split() for line in dry.out.splitlines()[1:3]] == [[jobs[0], "failed", "native"], [jobs[1], "run", "naive"]]
    assert sorted(Path().rglob("*")) == before


def test_breakpoints_are_told_where_they_work(vtoken_sweep: Sweep) -> None:
    write_policy("mine", "breakpoint()")
    done = vtoken_sweep(*SMALL, "policy=./mine.py", "runtime=naive", "dir=out")
    assert done.code == 3
    assert "run the sweep with in_process=true" in results("out")[0]["error"]


def test_in_process_a_breakpoint_has_the_terminal(vtoken_sweep: Sweep, monkeypatch: pytest.MonkeyPatch) -> None:
    write_policy(
        "mine", "if not Path('seen').exists():\n    Path('seen').touch()\n    breakpoint()\ntorch.set_default_dtype(torch.float64)"
    )
    monkeypatch.setattr("sys.stdin", io.StringIO("p 'here', cache.budget.tolist()\ncontinue\n"))
    monkeypatch.setattr("sys.breakpointhook", lambda: __import__("pdb").Pdb(nosigint=True).set_trace(__import__("sys")._getframe(1)))
    try:
        done = vtoken_sweep(*SMALL, "policy=./mine.py", "runtime=naive,refill", "dir=out", "in_process=true")
    finally:
        torch.set_default_dtype(torch.float32)
    assert done.code == 0, done
    assert "('here', [" in done.out
    assert states() == ["done"] * 2
    assert len({row["tokens_sha256"] for row in results("out")}) == 1  # what the first job left behind is not the second's


def test_jobs_at_once(vtoken_sweep: Sweep) -> None:
    """Each waits for the other, so that one after the other would never end."""
    os.mkfifo("a")
    os.mkfifo("b")
    write_policy("mine", "if not getattr(self, 'met', False):\n    self.met = True\n    self.meet()", "me: str = 'a'")
    source = Path("mine.py").read_text()
    meet = """
    def meet(self):
        mine, other = ("a", "b") if self.me == "a" else ("b", "a")
        first, second = (mine, "w"), (other, "r")
        for name, how in (first, second) if self.me == "a" else (second, first):
            with open(name, how) as pipe:
                pipe.write("x") if how == "w" else pipe.read()
"""
    Path("mine.py").write_text(source + meet)
    done = vtoken_sweep(*SMALL, "policy=./mine.py", "option.me=a,b", "runtime=naive", "workers=2", "dir=out")
    assert done.code == 0, done
    assert states() == ["done", "done"]
    assert "2 jobs at once share this machine, and so disturb each other's times" in done.out
    (result, _) = Path("out/jobs").glob("*/result.json")
    assert json.loads(result.read_text())["provenance"]["jobs_at_once"] == 2


def test_what_excludes_each_other_is_refused(vtoken_sweep: Sweep) -> None:
    done = vtoken_sweep(*SMALL, "in_process=true", "workers=2")
    assert done.code == 2
    assert "leave out cluster, hydra/launcher and workers" in done.err


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_piped_sweep_says_now_and_then_how_long_it_takes(tmp_path: Path) -> None:
    jobs = [_job(seed) for seed in range(4)]
    for job in jobs:
        (tmp_path / "jobs" / job.id).mkdir(parents=True)
    out, clock = io.StringIO(), Clock()
    names = {job.id: f"job {job.seed}" for job in jobs}
    follower = Follower(Console(file=out, width=200), tmp_path, jobs, NoTracker(""), names, clock=clock)

    def say(number: int, **status: object) -> None:
        (tmp_path / "jobs" / jobs[number].id / "status.json").write_text(json.dumps(status))
        follower.look()

    clock.now = 100.0
    say(0, status="done", seconds=100.0)
    assert out.getvalue() == "[1/4] job 0: done in 100.0 s, about 5 min left\n"
    clock.now = 120.0
    say(1, status="running", share=0.5, phase="engine")
    assert len(out.getvalue().splitlines()) == 1
    clock.now = 150.0
    follower.look()
    assert out.getvalue().splitlines()[1] == "[1/4] job 1 (engine) for about 30 s, about 4 min left"
    follower.look()
    assert len(out.getvalue().splitlines()) == 2
    say(1, status="failed", error="ValueError: no")
    assert out.getvalue().splitlines()[2] == "[2/4] job 1: failed: ValueError: no, about 2 min left"


@pytest.mark.parametrize(("seconds", "text"), [(3, "about 3 s"), (89, "about 89 s"), (90, "about 2 min"), (5400, "about 1.5 h")])
def test_durations_are_for_people(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def _job(seed: int) -> Job:
    import yaml

    from vtoken_sdk.sweep.axes import axes_of
    from vtoken_sdk.sweep.settings import flatten, shipped_text

    axes = axes_of({**flatten(yaml.safe_load(shipped_text())), "runtime": "native", "seed": seed})
    return Job.from_flat({key: values[0] for key, values in axes.items()})
