"""Runs the jobs of a plan that have no result yet, and tells the user how far it is."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from vtoken_sdk.tracking import NoTracker, Trackers
from vtoken_sdk.tracking.files import JobFolder

from .folder import forget, stop, stopped
from .job import Job
from .launch import Launch
from .plan import Plan
from .progress import Follower
from .results import job_names
from .steering import Steering

if TYPE_CHECKING:
    from .search import Search


class Runner:
    """Of one sweep. failures: reasons that jobs could not write into their files. interrupted: by the user."""

    def __init__(self, console: Console, folder: Path, how: Steering, launch: Launch) -> None:
        self.console, self.folder, self.how, self.launch = console, folder, how, launch
        self.tracker = Trackers([NoTracker("")], 0)
        self.failures: dict[str, str] = {}
        self.interrupted = False

    @property
    def halted(self) -> bool:
        """Nothing more is to be started."""
        return self.interrupted or stopped(self.folder)

    @property
    def elsewhere_note(self) -> str:
        return " Jobs that run on the cluster go on to their end; those that wait there end at once." if self.how.elsewhere else ""

    def prepare(self, plan: Plan) -> list[Job]:
        """The jobs to run, their old files gone; says what is planned.

        Seed by seed: a machine that gets slower meanwhile then slows all that is compared within a seed alike.
        """
        states = {job.id: JobFolder(self.folder / "jobs" / job.id).state for job in plan.jobs}
        todo = sorted((job for job in plan.jobs if runs(states[job.id], self.how.rerun)), key=lambda job: job.seed)
        for job in todo:
            forget(self.folder / "jobs" / job.id)
        self.say(headline(plan, states, self.how.rerun, self.folder))
        if self.how.search is None:  # a search does not know its jobs beforehand
            for note in notes_on_others(self.folder, plan):
                self.say(f"Note: {note}")
        sharing = self.how.on_this_machine or 1
        if sharing > 1 and len(todo) > 1:
            self.say(f"Note: {sharing} jobs at once share this machine, and so disturb each other's times")
        for note in plan.notes:
            self.say(f"Note: {note}")
        return todo

    def run(self, jobs: Sequence[Job], todo: Sequence[Job]) -> None:
        """Run `todo`, which is named by what tells it from the other `jobs`."""
        if not todo:
            return
        names = dict(zip((job.id for job in jobs), job_names(jobs), strict=True))
        try:
            with Follower(self.console, self.folder, todo, self.tracker, names, bar=not self.how.in_process):
                self.failures |= self.launch(self.folder, todo)
        except KeyboardInterrupt:
            self.interrupted = True
            stop(self.folder)
        except Exception as error:  # a launcher that fails leaves jobs missing; what is done stays
            text = f"The launcher failed: {type(error).__name__}: {error}"
            self.console.print(text, style="red", highlight=False, markup=False)

    def say(self, line: str) -> None:
        self.console.print(line, highlight=False, markup=False, soft_wrap=True)


def runs(state: str, rerun: str | None) -> bool:
    """Whether a job in this state is to run. What failed by its own fault would fail again: only on demand."""
    return rerun == "all" or state in ("missing", "killed") or (rerun == "failed" and state == "failed")


def notes_on_others(folder: Path, plan: Plan) -> list[str]:
    """What else the folder holds."""
    here = {path.name for path in (folder / "jobs").iterdir() if path.is_dir()} if (folder / "jobs").is_dir() else set()
    others = len(here - {job.id for job in plan.jobs})
    return (
        [f"{short(folder)}/jobs has {count(others, 'job')} of another command or an edited policy, not in these results"] if others else []
    )


def headline(plan: Plan, states: dict[str, str], rerun: str | None, folder: Path | None) -> str:
    """5 jobs, 3 already done, 2 to run in outputs/x"""
    again = sum(runs(state, rerun) for state in states.values())
    done = sum(state == "done" for state in states.values())
    kept = sum(state == "failed" and not runs(state, rerun) for state in states.values())
    parts = [count(len(plan.jobs), "job"), f"{done} already done", *([f"{kept} failed (rerun=failed runs them again)"] if kept else [])]
    return f"{', '.join(parts)}, {again} to run{f' in {short(folder)}' if folder else ''}"


def print_plan(console: Console, folder: Path | None, plan: Plan, how: Steering, search: Search | None) -> None:
    """For dry_run: each job with its name, its folder's, and what would become of it."""
    states = {job.id: JobFolder(folder / "jobs" / job.id).state if folder else "missing" for job in plan.jobs}
    lines = [headline(plan, states, how.rerun, folder)]
    for job, name in zip(plan.jobs, job_names(plan.jobs), strict=True):
        lines.append(f"  {job.id}  {'run' if runs(states[job.id], how.rerun) else states[job.id]:6}  {name}")
    lines += [search.described] if search else []
    lines += [f"Note: {note}" for note in [*(notes_on_others(folder, plan) if folder and search is None else []), *plan.notes]]
    for line in [*lines, "Dry run: nothing was run or written."]:
        console.print(line, highlight=False, markup=False, soft_wrap=True)


def count(n: int, what: str) -> str:
    return f"{n} {what}{'s' * (n != 1)}"


def short(path: Path) -> str:
    """Relative where that is shorter."""
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)
