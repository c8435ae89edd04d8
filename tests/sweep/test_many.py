"""Many jobs, and many sweeps at once."""

from __future__ import annotations

import io
import os
import random
import sys
import warnings
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

import pytest
import yaml
from rich.console import Console

from vtoken_sdk import cli
from vtoken_sdk.sweep import isolate
from vtoken_sdk.sweep.check import plan_sweep
from vtoken_sdk.sweep.folder import alone, write_plan
from vtoken_sdk.sweep.launch import launch_here
from vtoken_sdk.sweep.plan import make_folder
from vtoken_sdk.sweep.results import rows_of
from vtoken_sdk.sweep.runner import Runner
from vtoken_sdk.sweep.settings import axes_of, flatten, shipped_text
from vtoken_sdk.sweep.steering import Steering

from .conftest import SMALL, results, write_policy

# The least that still evicts.
LEAST = {"ctx": 16, "requests": 1, "output_tokens": 2, "chunk": 16, "pool_blocks": 4}
RAISE = sorted(random.Random(0).sample(range(200), 10))
CRASH = 100


@pytest.mark.slow
def test_200_jobs_of_which_some_fail_and_one_crashes() -> None:
    """The sweep as the command runs it, but for its tables and page, which a test of 200 rows would mostly wait for."""
    write_policy("mine", f"assert self.n not in {RAISE}, f'fault {{self.n}}'\nif self.n == {CRASH}:\n    ctypes.string_at(0)", "n: int = 0")
    flat = {**flatten(yaml.safe_load(shipped_text())), **LEAST, "policy": "./mine.py", "runtime": "naive", "option.n": list(range(200))}
    axes = axes_of(flat)
    plan = isolate.call(plan_sweep, [axes], False)
    folder, out = make_folder("out", plan.name), io.StringIO()
    runner = Runner(Console(file=out, width=200), folder, Steering.of(axes, None), launch_here(2))
    with alone(folder):
        write_plan(folder, plan, {})
        runner.run(plan.jobs, runner.prepare(plan))
    rows = rows_of(folder, plan.jobs, {})
    assert len(rows) == 200
    by = {int(str(row["option"]).removeprefix("n=")): row for row in rows}
    assert [n for n, row in by.items() if row["status"] == "failed"] == sorted([*RAISE, CRASH])
    assert all(row["blocks_held"] for row in rows if row["status"] == "done")
    for n in RAISE:
        assert f"fault {n} " in str(by[n]["error"])
        assert f"n={n}: failed: policy Mine" in out.getvalue()
    assert "SIGSEGV" in str(by[CRASH]["error"])
    assert out.getvalue().splitlines()[0].startswith("200 jobs, 0 already done, 200 to run in ")
    assert out.getvalue().splitlines()[-1].startswith("[200/200] ")
    assert [job.id for job in runner.prepare(plan)] == []


def test_8_sweeps_at_once_do_not_touch_each_other() -> None:
    """Started in the same second, in the same folder, by processes that share this one's fork server, for speed."""
    isolate.warm_up()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 on: this process has threads
        children = [_fork(number) for number in range(8)]
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    assert codes == [0] * 8, [Path(f"{number}.log").read_text() for number in range(8)]
    folders = sorted(Path("outputs").iterdir())
    assert len(folders) == 8
    seeds = [_only(results(folder))["seed"] for folder in folders]
    assert sorted(seeds) == list(range(8))
    assert all((folder / "report.html").is_file() for folder in folders)


def _only(rows: list[dict[str, Any]]) -> dict[str, Any]:
    (row,) = rows
    return row


def _fork(number: int) -> int:
    """A sweep of its own seed in a child; its output in a file."""
    child = os.fork()
    if child:
        return child
    code = 70
    try:
        log = os.open(f"{number}.log", os.O_WRONLY | os.O_CREAT)
        for stream in (1, 2):
            os.dup2(log, stream)
        forkserver._forkserver.ensure_running = lambda: None  # the parent's, which only the parent can wait for
        sys.argv = ["vtoken-sweep", *SMALL, "runtime=native", f"seed={number}"]
        cli.main()
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 71
    finally:
        os._exit(code)
