"""Many jobs, and many sweeps at once."""

from __future__ import annotations

import io
import os
import random
import traceback
import warnings
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

import pytest
import yaml
from rich.console import Console

from vtoken_sdk.metrics import Row
from vtoken_sdk.sweep import isolate
from vtoken_sdk.sweep.axes import axes_of
from vtoken_sdk.sweep.check import plan_sweep
from vtoken_sdk.sweep.folder import alone, write_plan
from vtoken_sdk.sweep.launch import launch_here
from vtoken_sdk.sweep.plan import Plan, make_folder
from vtoken_sdk.sweep.results import rows_of, write_results
from vtoken_sdk.sweep.runner import Runner
from vtoken_sdk.sweep.settings import flatten, shipped_text
from vtoken_sdk.sweep.steering import Steering

from .conftest import results, write_policy

# The least that still evicts.
LEAST = {"ctx": 16, "requests": 1, "output_tokens": 2, "chunk": 16, "pool_blocks": 4}
JOBS = int(os.environ.get("VTOKEN_MANY_JOBS", "60"))  # 200 take a minute
RAISE = sorted(random.Random(0).sample(range(JOBS), JOBS // 20))
CRASH = next(n for n in range(JOBS // 2, JOBS) if n not in RAISE)


def run(options: dict[str, Any], name: str) -> tuple[Runner, Plan, list[Row], str]:
    """A sweep as the command runs it, but for its tables and page, which these tests would mostly wait for; and what it says."""
    axes = axes_of({**flatten(yaml.safe_load(shipped_text())), **LEAST, **options})
    plan = isolate.call(plan_sweep, [axes], False)
    folder, out = make_folder(None, name), io.StringIO()
    runner = Runner(Console(file=out, width=200), folder, Steering.of(axes, None), launch_here(2))
    with alone(folder):
        write_plan(folder, plan, {})
        runner.run(plan.jobs, runner.prepare(plan))
        rows = rows_of(folder, plan.jobs, runner.failures)
        write_results(folder, rows)
    return runner, plan, rows, out.getvalue()


@pytest.mark.slow
def test_many_jobs_of_which_some_fail_and_one_crashes() -> None:
    write_policy("mine", f"assert self.n not in {RAISE}, f'fault {{self.n}}'\nif self.n == {CRASH}:\n    ctypes.string_at(0)", "n: int = 0")
    runner, plan, rows, said = run({"policy": "./mine.py", "runtime": "naive", "option.n": list(range(JOBS))}, "many")
    assert len(rows) == JOBS
    by = {int(str(row["option"]).removeprefix("n=")): row for row in rows}
    assert [n for n, row in by.items() if row["status"] == "failed"] == sorted([*RAISE, CRASH])
    assert all(row["blocks_held"] for row in rows if row["status"] == "done")
    for n in RAISE:
        assert f"fault {n} " in str(by[n]["error"])
        assert f"n={n}: failed: policy Mine" in said
    assert "SIGSEGV" in str(by[CRASH]["error"])
    assert said.splitlines()[0].startswith(f"{JOBS} jobs, 0 already done, {JOBS} to run in ")
    assert said.splitlines()[-1].startswith(f"[{JOBS}/{JOBS}] ")
    assert runner.prepare(plan) == []


def test_8_sweeps_at_once_do_not_touch_each_other() -> None:
    """Started in the same second with the same name, by processes that share this one's fork server, for speed."""
    isolate.warm_up()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 on: this process has threads
        children = [_fork(number) for number in range(8)]
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    assert codes == [0] * 8
    folders = sorted(Path("outputs").iterdir())
    assert len(folders) == 8
    for folder in folders:
        assert {row["status"] for row in results(folder)} == {"done"}
        assert len(list((folder / "jobs").iterdir())) == len(results(folder)) == 2
    assert sorted(results(folder)[0]["seed"] for folder in folders) == list(range(8))


def _fork(number: int) -> int:
    """A sweep of its own seed, in a child."""
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        # The server is the parent's child, which this process cannot wait for.
        forkserver.ensure_running = forkserver._forkserver.ensure_running = lambda: None
        run({"policy": "random", "runtime": "native,naive", "seed": number}, "same")
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)
