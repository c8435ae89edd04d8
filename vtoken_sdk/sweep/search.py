"""search=optuna: looks for the best values of a few numeric keys, instead of running a grid.

By Optuna's ask and tell inside our own sweeper. hydra-optuna-sweeper would be a Hydra sweeper in our place: no plan, no shared baseline, no
resume by result, and it pins Optuna below 3. There is no study file: the jobs' results are the memory. Asked again in the same order
with the same seed, Optuna proposes the same values, whose jobs are done, so a search that was interrupted catches up and goes on.
"""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import TYPE_CHECKING, Any, Literal, cast

from vtoken_sdk.metrics import COLUMNS
from vtoken_sdk.nearest import did_you_mean
from vtoken_sdk.tracking.files import JobFolder, write_json

from . import isolate
from .check import plan_sweep
from .folder import forget, write_plan
from .interval import Interval
from .job import Job
from .plan import Plan
from .progress import duration
from .results import rows_of
from .runner import Runner, count, runs
from .steering import Steering
from .values import UsageError, Value

if TYPE_CHECKING:
    import optuna

DIGITS = 4  # of a value proposed: what is beyond makes no difference, and a name that nobody can read
AT_RANDOM = 5  # trials before the sampler learns; not of `trials`, or a search with more of them would begin otherwise
LESS = ("waste", "blocks_", "nll", "kl", "preemptions", "moves", "plans", "bytes_moved", "seconds", "cut_short")
MORE = ("output_tok_s", "total_tok_s", "utilization", "top1", "concurrency_peak", "admits_", "blocks_freed", "needle_acc")


@dataclass
class Trial:
    """value: of the objective; None if it failed, and `error` says why."""

    asked: optuna.trial.Trial
    values: dict[str, Value]
    jobs: tuple[Job, ...] = ()
    value: float | None = None
    error: str | None = None

    @property
    def where(self) -> str:
        return " ".join(f"{key}={value}" for key, value in self.values.items())


@dataclass(frozen=True)
class Found:
    """plan: with the jobs of all trials. good: whether all trials ran and at least one gave a value."""

    plan: Plan
    lines: list[str]
    good: bool


@dataclass(frozen=True)
class Search:
    """axes: the keys that are not searched; several values of those make several jobs a trial, and the objective is their mean."""

    how: Steering
    axes: Mapping[str, list[Value]]
    intervals: Mapping[str, Interval]
    direction: Literal["minimize", "maximize"]

    @classmethod
    def of(cls, how: Steering, axes: Mapping[str, list[Value]], intervals: Mapping[str, Interval]) -> Search | None:
        """None where nothing is searched. Raises UsageError."""
        if how.search is None:
            if intervals:
                key, interval = next(iter(intervals.items()))
                raise UsageError(f"{key}={interval}: list the values, separated by commas, or look for the best one with search=optuna")
            return None
        if not intervals:
            raise UsageError("search=optuna: nothing to search; write a key as interval(LOW,HIGH), such as threshold=interval(0.3,1.0)")
        if COLUMNS.get(how.objective) not in (int, float):
            meant = did_you_mean(how.objective, [name for name, kind in COLUMNS.items() if kind in (int, float)])
            raise UsageError(f"objective={how.objective}: use a column of the results with numbers{meant}")
        if importlib.util.find_spec("optuna") is None:
            raise UsageError("search=optuna: Optuna is not installed; pip install 'vtoken-sdk[optuna]'")
        return cls(how, axes, intervals, direction_of(how.objective, how.direction))

    @property
    def described(self) -> str:
        keys = " ".join(f"{key}={interval}" for key, interval in self.intervals.items())
        return f"Then {count(self.how.trials, 'trial')} of {keys}, to {self.direction} {self.how.objective}."

    def borders(self) -> list[dict[str, list[Value]]]:
        """The ends of all intervals: if these can be planned, so can most of what lies between them."""
        ends = ("low", "high")
        return [{**self.axes, **{key: [getattr(interval, end)] for key, interval in self.intervals.items()}} for end in ends]

    def baselines(self, plan: Plan) -> Plan:
        """The jobs of a plan that no searched key changes: they run once. Raises UsageError if there are no others."""
        if not any(map(self.changes, plan.jobs)):
            key, interval = next(iter(self.intervals.items()))
            raise UsageError(
                f"{key}={interval}: applies to no job of this search; look for the best of a key that one of its runtimes reads"
            )
        return replace(plan, jobs=tuple(job for job in plan.jobs if not self.changes(job)))

    def changes(self, job: Job) -> bool:
        """Whether a searched key applies to the job."""
        return any(job.flat().get(key) is not None for key in self.intervals)

    def run(self, runner: Runner, plan: Plan) -> Found:
        """All trials, as many at once as there are workers. Writes search.json."""
        study, trials, began = self._study(), list[Trial](), time.monotonic()
        runner.say(self.described)
        while len(trials) < self.how.trials and not runner.halted:
            batch = [self._ask(study) for _ in range(min(self.how.at_once, self.how.trials - len(trials)))]
            before = {job.id for job in plan.jobs}
            plan = replace(
                plan, jobs=tuple({job.id: job for job in (*plan.jobs, *(job for trial in batch for job in trial.jobs))}.values())
            )
            write_plan(runner.folder, plan, runner.how.facts())
            self._launch(runner, plan, [job for job in plan.jobs if job.id not in before])
            if runner.interrupted:
                break
            for trial in batch:
                self._tell(study, trial, runner)
                trials.append(trial)
                left = (time.monotonic() - began) / len(trials) * (self.how.trials - len(trials))
                got = trial.error if trial.value is None else f"{self.how.objective} {trial.value:.6g}"
                runner.say(f"trial {len(trials)}/{self.how.trials}: {trial.where}: {got}" + (f", {duration(left)} left" if left else ""))
        return self._found(runner, plan, trials)

    def _launch(self, runner: Runner, plan: Plan, jobs: Sequence[Job]) -> None:
        """What has no result of an earlier sweep in this folder."""
        folders = {job.id: runner.folder / "jobs" / job.id for job in jobs}
        todo = [job for job in jobs if runs(JobFolder(folders[job.id]).state, self.how.rerun)]
        for job in todo:
            forget(folders[job.id])
        runner.run(plan.jobs, todo)

    def _study(self) -> optuna.Study:
        import optuna

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        seed = int(self.axes.get("seed", [0])[0] or 0)  # it may be what is searched
        sampler = optuna.samplers.TPESampler(seed=seed, n_startup_trials=AT_RANDOM)
        return optuna.create_study(direction=self.direction, sampler=sampler)

    def _ask(self, study: optuna.Study) -> Trial:
        """A trial with its jobs. One that cannot be planned has none, and an error."""
        asked = study.ask()
        values: dict[str, Value] = {}
        for key, i in self.intervals.items():
            if i.whole:
                values[key] = asked.suggest_int(key, i.low, i.high, log=i.log)
            else:
                values[key] = min(max(float(f"{asked.suggest_float(key, i.low, i.high, log=i.log):.{DIGITS}g}"), i.low), i.high)
        trial = Trial(asked, values)
        try:
            planned: Plan = isolate.call(plan_sweep, [{**self.axes, **{key: [value] for key, value in values.items()}}], self.how.elsewhere)
        except UsageError as error:
            trial.error = str(error)
            return trial
        trial.jobs = tuple(job for job in planned.jobs if self.changes(job))
        return trial

    def _tell(self, study: optuna.Study, trial: Trial, runner: Runner) -> None:
        import optuna

        rows = rows_of(runner.folder, trial.jobs, runner.failures)
        found: list[Any] = [row[self.how.objective] for row in rows]
        if trial.error is None:
            trial.error = next((str(row["error"]) for row in rows if row["status"] == "failed"), None)
        if trial.error is None and None in found:
            trial.error = f"{self.how.objective} is empty: it does not apply to {rows[found.index(None)]['runtime']} here"
        if trial.error is None:
            trial.value = fmean(found)
            study.tell(trial.asked, trial.value)
        else:
            study.tell(trial.asked, state=optuna.trial.TrialState.FAIL)

    def _found(self, runner: Runner, plan: Plan, trials: Sequence[Trial]) -> Found:
        shown = [{"values": t.values, "value": t.value, "error": t.error, "jobs": [job.id for job in t.jobs]} for t in trials]
        good = [t for t in trials if t.value is not None]
        best = (min if self.direction == "minimize" else max)(good, key=lambda t: t.value or 0.0, default=None)
        write_json(
            runner.folder / "search.json",
            {
                "objective": self.how.objective,
                "direction": self.direction,
                "intervals": {key: str(interval) for key, interval in self.intervals.items()},
                "best": trials.index(best) if best else None,
                "trials": shown,
            },
        )
        said = f"Search: {len(trials)} of {count(self.how.trials, 'trial')}, {len(trials) - len(good)} without a value"
        if best is None:
            return Found(plan, [said], False)
        jobs = ", ".join(f"jobs/{job.id}" for job in best.jobs)
        return Found(plan, [f"{said}; best {self.how.objective} {best.value:.6g} at {best.where} ({jobs})"], len(trials) == self.how.trials)


def direction_of(objective: str, direction: str) -> Literal["minimize", "maximize"]:
    """Raises UsageError where nobody can know."""
    if direction != "auto":
        return cast(Literal["minimize", "maximize"], direction)
    if objective.startswith(MORE):
        return "maximize"
    if objective.startswith(LESS) or "_ms" in objective:
        return "minimize"
    raise UsageError(f"objective={objective}: say direction=minimize or direction=maximize")
