"""A whole sweep: plan, run what is missing, collect, compare. The exit code is the experiment's alone."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shlex
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, cast

from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import QuotedString
from hydra.core.utils import JobStatus
from hydra.plugins.launcher import Launcher
from omegaconf import DictConfig, OmegaConf
from rich.console import Console

from vtoken_sdk.metrics import Row
from vtoken_sdk.report import print_comparison, width_of_output
from vtoken_sdk.tracking import NoTracker, Tracker, start_tracker
from vtoken_sdk.tracking.files import JobFolder, write_json, write_whole

from . import isolate
from .check import plan_sweep
from .job import Job
from .plan import Plan, make_folder
from .progress import Follower
from .provenance import COMMAND, of_sweep
from .quality import FULL_CACHE
from .results import job_names, rows_of, write_report, write_results
from .settings import KEYS, UsageError, axes_of, check_keys, flatten, shipped_text

FAILED, INTERRUPTED = 3, 130


def options_of(config: DictConfig, overrides: Sequence[str]) -> dict[str, Any]:
    """Flat: shipped values, then the composed configuration, then what the command line sweeps. Raises UsageError on unknown keys."""
    ours = OmegaConf.masked_copy(config, [str(key) for key in config if key != "hydra"])
    given = flatten(cast(dict[str, Any], OmegaConf.to_container(ours, resolve=True)))
    for override in OverridesParser.create().parse_overrides(list(overrides)):
        if override.is_sweep_override():
            if not override.is_discrete_sweep():
                raise UsageError(f"{override.input_line}: list the values, separated by commas")
            given[override.get_key_element().lstrip("+")] = [
                v.text if isinstance(v, QuotedString) else v for v in override.sweep_iterator()
            ]
    check_keys(given)
    shipped = flatten(cast(dict[str, Any], OmegaConf.to_container(OmegaConf.create(shipped_text()))))
    return shipped | {key: value for key, value in given.items() if value is not None or key not in KEYS}


def sweep(config: DictConfig, overrides: Sequence[str], launcher: Launcher) -> int:
    """Returns 0, 3 (some jobs failed or are missing) or 130 (interrupted). Raises UsageError before anything has run."""
    axes = axes_of(options_of(config, overrides))
    check_names(str(spec) for spec in axes["policy"])
    console = _Console(width=width_of_output())
    with _busy(console, "planning"):
        plan = isolate.call(plan_sweep, axes)
    folder = make_folder(cast(str | None, axes["dir"][0]), plan.name)
    config.hydra.sweep.dir = str(folder)  # launchers make this folder
    with _alone(folder):
        _write_plan(folder, plan)
        code = _run(console, folder, plan, launcher)
        if code == 0:
            shutil.rmtree(folder / FULL_CACHE, ignore_errors=True)
        return code


def run_here(config: DictConfig) -> str | None:
    """What a launcher runs for each job: None, or why it failed. The job is what the plan wrote into its folder."""
    return isolate.run_isolated(Path(HydraConfig.get().runtime.output_dir))


def check_names(specs: Iterable[str]) -> None:
    """A misspelt name is told at once; anything else waits until torch is there. Raises UsageError."""
    from vtoken_sdk.registry import RegistryError, available_policies, load_policy_class

    for spec in specs:
        if spec.isidentifier() and spec not in available_policies() and not Path(f"{spec}.py").is_file():
            try:
                load_policy_class(spec)
            except RegistryError as error:
                raise UsageError(str(error)) from error


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Two sweeps in one folder would run each other's jobs. The system drops the lock when its process ends, however it ends."""
    try:
        lock = (folder / ".lock").open("w")
    except OSError as error:
        raise UsageError(f"dir={folder}: {error.strerror}; name a folder that can be written, dir=PATH") from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise UsageError(f"dir={folder}: another vtoken-sweep is running there; wait for it, or name another folder") from error
        yield


def _write_plan(folder: Path, plan: Plan) -> None:
    try:
        for job in plan.jobs:
            path = folder / "jobs" / job.id
            path.mkdir(exist_ok=True)
            write_whole(path / "config.yaml", OmegaConf.to_yaml(OmegaConf.create(job.config())))
        jobs = [{"job": job.id, **job.flat()} for job in plan.jobs]
        write_json(
            folder / "plan.json", {"name": plan.name, "provenance": of_sweep(), "axes": plan.axes, "notes": plan.notes, "jobs": jobs}
        )
    except OSError as error:
        raise UsageError(f"dir={folder}: the plan cannot be written ({error.strerror}); name another folder, dir=PATH") from error


def _run(console: Console, folder: Path, plan: Plan, launcher: Launcher) -> int:
    todo = [job for job in plan.jobs if not JobFolder(folder / "jobs" / job.id).done]
    done = len(plan.jobs) - len(todo)
    console.print(
        f"{_count(len(plan.jobs), 'job')}, {done} already done, {len(todo)} to run in {_short(folder)}", highlight=False, markup=False
    )
    others = sum(path.is_dir() for path in (folder / "jobs").iterdir()) - len(plan.jobs)
    if others:
        said = f"{_short(folder)}/jobs has {_count(others, 'job')} of another command or an edited policy, not in these results"
        console.print(f"Note: {said}", highlight=False, markup=False, soft_wrap=True)
    for note in plan.notes:
        console.print(f"Note: {note}", highlight=False, markup=False, soft_wrap=True)
    tracker = (
        start_tracker(folder, plan.wandb_mode, plan.wandb_project, plan.name, plan.wandb_timeout) if todo else NoTracker("W&B: nothing new")
    )
    failures, stopped = _launch(console, folder, plan, todo, launcher, tracker)
    rows = rows_of(folder, plan.jobs, failures)
    results = _written("Results", folder / "results.parquet", write_results, rows)
    print_comparison(console, rows)
    with _busy(console, "writing the report"):
        report = _written("Report", folder / "report.html", write_report, rows)
    for line, _ in (report, results):
        console.print(line, highlight=False, markup=False, soft_wrap=True)
    console.print(tracker.close(), highlight=False, markup=False, soft_wrap=True)
    if stopped:
        console.print(f"Interrupted. To go on: {_resume(folder)}", highlight=False, markup=False, soft_wrap=True)
        return INTERRUPTED
    return 0 if report[1] and results[1] and all(row["status"] == "done" for row in rows) else FAILED


def _launch(
    console: Console, folder: Path, plan: Plan, todo: Sequence[Job], launcher: Launcher, tracker: Tracker
) -> tuple[dict[str, str], bool]:
    """Failures that are not in the jobs' files, and whether the user stopped it."""
    names = dict(zip((job.id for job in plan.jobs), job_names(plan.jobs), strict=True))
    batch = [[f"hydra.sweep.dir={_quoted(str(folder))}", f"hydra.sweep.subdir=jobs/{job.id}"] for job in todo]
    failures: dict[str, str] = {}
    try:
        with Follower(console, folder, todo, tracker, names):
            for job, result in zip(todo, launcher.launch(batch, initial_job_idx=0) if batch else [], strict=True):
                if result.status is not JobStatus.COMPLETED:
                    failures[job.id] = f"{type(result._return_value).__name__}: {result._return_value}"
                elif result.return_value is not None:
                    failures[job.id] = result.return_value
    except KeyboardInterrupt:
        return failures, True
    except Exception as error:  # a launcher that fails leaves jobs missing; what is done stays
        console.print(f"The launcher failed: {type(error).__name__}: {error}", style="red", highlight=False, markup=False)
    return failures, False


def _written(what: str, path: Path, write: Callable[[Path, Sequence[Row]], None], rows: Sequence[Row]) -> tuple[str, bool]:
    """A line for the user, and whether it worked."""
    try:
        write(path.parent, rows)
    except OSError as error:
        return f"{path.name} could not be written: {error}", False
    return f"{what}: {_short(path)}", True


def _count(n: int, what: str) -> str:
    return f"{n} {what}{'s' * (n != 1)}"


def _resume(folder: Path) -> str:
    words = [w for w in shlex.split(COMMAND.get()) if not w.startswith("dir=")]
    path = _short(folder)
    return shlex.join([*words, f"dir={path if re.fullmatch(r'[A-Za-z0-9_./-]+', path) else _quoted(path)}"])


def _short(path: Path) -> str:
    """Relative where that is shorter."""
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)


def _busy(console: Console, doing: str) -> contextlib.AbstractContextManager[object]:
    return console.status(doing) if console.is_terminal else contextlib.nullcontext()


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Whoever read our output left (`| head`): the sweep goes on without it."""
        self.quiet = True
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _quoted(text: str) -> str:
    """As Hydra's command line reads it back: it takes a backslash for an escape only in front of a quote."""
    return "'" + re.sub(r"(\\*)('|$)", lambda m: m[1] * 2 + ("\\'" if m[2] else ""), text) + "'"
