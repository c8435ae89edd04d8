"""A whole sweep: plan, run what is missing, collect, compare. The exit code is the experiment's alone."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, cast

from hydra.core.hydra_config import HydraConfig
from hydra.plugins.launcher import Launcher
from omegaconf import DictConfig
from rich.console import Console

from vtoken_sdk.metrics import Row
from vtoken_sdk.report import print_comparison, width_of_output
from vtoken_sdk.tracking import NoTracker, Trackers, start_trackers

from . import cluster, isolate
from .answer import answer
from .axes import axes_of, intervals_of
from .check import plan_sweep
from .folder import alone, write_plan
from .launch import launch_by_hydra, launch_here, launch_in_process, quoted, run_launched
from .options import options_of, recorded_options
from .plan import Plan, make_folder
from .provenance import COMMAND
from .quality import FULL_CACHE
from .record import Record, compare
from .results import rows_of, write_report, write_results
from .runner import Runner, print_plan, short
from .search import Search
from .steering import Steering
from .values import UsageError, tracker_names

FAILED, DIFFERS, INTERRUPTED = 3, 4, 130


def sweep(config: DictConfig, overrides: Sequence[str], make_launcher: Callable[[], Launcher]) -> int:
    """Returns 0, 3 (some jobs failed or are missing), 4 (other figures than the record's) or 130 (interrupted).

    Raises UsageError before anything has run.
    """
    flats = [options_of(config, overrides)]
    records: list[Record] = []
    if flats[0]["from"] is not None:
        flats, records = recorded_options(config, overrides, str(flats[0]["from"]))
    axes, intervals = [axes_of(flat) for flat in flats], intervals_of(flats[0])
    how = Steering.of(axes[0], cluster.cluster_of(config, str(axes[0]["cluster"][0])))
    search = Search.of(how, axes[0], intervals)
    check_names(str(spec) for one in axes for spec in one["policy"])
    console = _Console(width=width_of_output())
    with _busy(console, "planning"):
        plan = isolate.call(plan_sweep, search.borders() if search else axes, how.elsewhere)
        if search:
            plan = search.baselines(plan)
    wanted = cast(str | None, axes[0]["dir"][0])
    if how.dry_run:
        print_plan(console, Path(wanted).expanduser() if wanted else None, plan, how, search)
        return 0
    folder = make_folder(wanted, plan.name)
    if how.launcher:
        cluster.set_up(config, how.launcher, how.workers, str(axes[0]["device"][0]))
        config.hydra.sweep.dir = str(folder)  # launchers make this folder
    launch = launch_by_hydra(make_launcher()) if how.launcher else launch_in_process if how.in_process else launch_here(how.workers or 1)
    with alone(folder):
        write_plan(folder, plan, how.facts())
        runner = Runner(console, folder, how, launch)
        try:
            code = _run(runner, plan, search, records)
        except KeyboardInterrupt:  # not in a job, which the runner takes care of: while results were collected
            _say(console, f"Interrupted. To go on: {_resume(folder)}")
            return INTERRUPTED
        if code == 0:
            shutil.rmtree(folder / FULL_CACHE, ignore_errors=True)
        return code


def run_here(config: DictConfig) -> str | None:
    """What a launcher runs for each job: None, or why it failed. The job is what the plan wrote into its folder."""
    return run_launched(Path(HydraConfig.get().runtime.output_dir))


def check_names(specs: Iterable[str]) -> None:
    """A misspelt name is told at once; anything else waits until torch is there. Raises UsageError."""
    from vtoken_sdk.registry import RegistryError, available_policies, load_policy_class

    for spec in specs:
        if spec.isidentifier() and spec not in available_policies() and not Path(f"{spec}.py").is_file():
            try:
                load_policy_class(spec)
            except RegistryError as error:
                raise UsageError(str(error)) from error


def _run(runner: Runner, plan: Plan, search: Search | None, records: Sequence[Record]) -> int:
    console, folder = runner.console, runner.folder
    todo = runner.prepare(plan)
    idle = not todo and search is None
    tracker = (
        Trackers([NoTracker("W&B: nothing new")], 0)
        if idle
        else start_trackers(tracker_names(plan.tracker), folder, plan.wandb_mode, plan.wandb_project, plan.name, plan.wandb_timeout)
    )
    runner.tracker = tracker
    runner.run(plan.jobs, todo)
    found = search.run(runner, plan) if search and not runner.halted else None
    plan = found.plan if found else plan
    rows = rows_of(folder, plan.jobs, runner.failures)
    results = _written("Results", folder / "results.parquet", write_results, rows)
    print_comparison(console, rows)
    lines, answered = answer(console, folder, plan.experiment, rows) if plan.experiment is not None else ([], True)
    with _busy(console, "writing the report"):
        report = _written("Report", folder / "report.html", write_report, rows)
    compared, same = compare(records, plan.jobs, rows, folder)
    for line in [*(found.lines if found else []), *compared, *lines, report[0], results[0], tracker.close()]:
        _say(console, line)
    if runner.interrupted:
        _say(console, f"Interrupted.{runner.elsewhere_note} To go on: {_resume(folder)}")
        return INTERRUPTED
    if any(row["status"] == "failed" for row in rows):
        _say(console, f"To try the failed jobs again: {_resume(folder, 'rerun=failed')}")
    if not (report[1] and results[1] and answered and (found is None or found.good) and all(row["status"] == "done" for row in rows)):
        return FAILED
    return 0 if same else DIFFERS


def _say(console: Console, line: str) -> None:
    console.print(line, highlight=False, markup=False, soft_wrap=True)


def _written(what: str, path: Path, write: Callable[[Path, Sequence[Row]], None], rows: Sequence[Row]) -> tuple[str, bool]:
    """A line for the user, and whether it worked."""
    try:
        write(path.parent, rows)
    except Exception as error:  # the jobs' files are whole, and vtoken-report makes the rest of them
        said = error if isinstance(error, OSError) else f"{type(error).__name__}: {error}"
        return f"{path.name} could not be written: {said}", False
    return f"{what}: {short(path)}", True


def _resume(folder: Path, *more: str) -> str:
    """The command that goes on in this folder."""
    words = [w for w in shlex.split(COMMAND.get()) if not w.lstrip("+").startswith(("dir=", "rerun="))]
    path = short(folder)
    return shlex.join([*words, f"dir={path if re.fullmatch(r'[A-Za-z0-9_./-]+', path) else quoted(path)}", *more])


def _busy(console: Console, doing: str) -> contextlib.AbstractContextManager[Any]:
    return console.status(doing) if console.is_terminal else contextlib.nullcontext()


class _Console(Console):
    def print(self, *objects: Any, **options: Any) -> None:
        """A full disk under our output costs the output, not the sweep."""
        try:
            super().print(*objects, **options)
        except OSError:
            self.on_broken_pipe()

    def on_broken_pipe(self) -> None:
        """Whoever read our output left (`| head`): the sweep goes on without it."""
        self.quiet = True
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
