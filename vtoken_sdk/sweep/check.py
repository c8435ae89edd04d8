"""What planning must load to know: policies, and models with their limits. Runs in a process of its own, with torch in it."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from .job import Job
from .plan import Plan, PolicyFacts, joined, make_plan, policies_of
from .values import UsageError, Value

if TYPE_CHECKING:
    from vtoken_sdk.runtime import EngineConfig
    from vtoken_sdk.runtime.model_loader import LoadedModel


def plan_sweep(axes: Sequence[Mapping[str, list[Value]]], elsewhere: bool) -> Plan:
    """The plan of one grid or more, with every job's options tried. Raises UsageError at the first that cannot work.

    elsewhere: the jobs run on other machines, so that devices, models and data are not tried on this one.
    """
    from vtoken_sdk.registry import RegistryError
    from vtoken_sdk.runtime import ConfigError

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            plan = joined([make_plan(grid, {spec: policy_facts(spec) for spec in policies_of(grid)}) for grid in axes])
            trial = Trial(elsewhere)
            for job in plan.jobs:
                trial.make(job)
        except (RegistryError, ConfigError) as error:
            raise UsageError(str(error)) from error
    said = [str(w.message) for w in caught if w.category is UserWarning]
    return replace(plan, notes=tuple(dict.fromkeys((*plan.notes, *trial.notices, *said))))


def policy_facts(spec: str) -> PolicyFacts:
    """Loads the class. Raises RegistryError."""
    import dataclasses

    from vtoken_sdk.registry import load_policy_class, policy_source

    cls = load_policy_class(spec)
    path, sha256 = policy_source(cls)
    return PolicyFacts(tuple(f.name for f in dataclasses.fields(cast(Any, cls)) if f.init), path, sha256)


class Trial:
    """Makes what jobs will make, but for the engine, and keeps what they share. notices: what a user should hear of."""

    def __init__(self, elsewhere: bool = False) -> None:
        self.elsewhere = elsewhere
        self.models: dict[tuple[str, ...], LoadedModel] = {}
        self.loads: dict[str, list[tuple[int, int]]] = {}
        self.notices: list[str] = []

    def make(self, job: Job) -> None:
        """Raises RegistryError, ConfigError, UsageError."""
        from vtoken_sdk.registry import load_policy

        config = job.engine_config()
        if job.policy is not None:
            load_policy(job.policy, job.option)
        self.check_pool(job, config)
        if not self.elsewhere:
            self.check_quality(job, config, self.make_workloads(job, self.model(job)))

    def model(self, job: Job) -> LoadedModel:
        from vtoken_sdk.runtime.model_loader import load_model

        name = (job.model, job.weights, job.dtype, job.device)
        if name not in self.models:
            self.models[name] = load_model(
                job.model, weights=cast(Any, job.weights), dtype=cast(Any, job.dtype), device=cast(Any, job.device)
            )
            self.notices += self.models[name].notices
        return self.models[name]

    def make_workloads(self, job: Job, model: LoadedModel) -> list[tuple[int, int]]:
        """Of each item of the quality suites: tokens of its prompt, and the most tokens it ever holds."""
        from .load import job_workload
        from .quality import quality_items

        load = Job.from_flat({**job.flat(), "runtime": "native"}).id  # what the workload depends on, and a little more
        if load not in self.loads:
            self.notices += job_workload(model, job).notices
            items, notices = quality_items(model, job)
            self.notices += notices
            self.loads[load] = sorted({(len(item.prompt), item.length) for item in items})
        return self.loads[load]

    @staticmethod
    def check_quality(job: Job, config: EngineConfig, sizes: Sequence[tuple[int, int]]) -> None:
        from vtoken_sdk.runtime.capacity import peak_blocks, reuses_dead_slots

        evicts = job.policy is not None
        if reuses_dead_slots(config, evicts):
            need = max((peak_blocks(config, prompt, total, evicts) for prompt, total in sizes), default=0)
        else:  # one that grows beyond the pool would end early, and its score be lost
            need = max((-(-total // config.slots_per_block) for _, total in sizes), default=0)
        if need > config.n_blocks:
            least = -(-need * config.slots_per_block // job.block_size)
            raise UsageError(
                f"pool_blocks={job.pool_blocks}: under {job.runtime}, an item of the quality suites needs {least} blocks of "
                f"{job.block_size}; use pool_blocks={least} or more, a smaller ctx, or fewer quality.tokens"
            )

    @staticmethod
    def check_pool(job: Job, config: EngineConfig) -> None:
        from vtoken_sdk.runtime.capacity import peak_blocks

        need = peak_blocks(config, job.ctx, job.ctx + job.output_tokens - 1, job.policy is not None)
        if need > config.n_blocks:
            least = -(-need * config.slots_per_block // job.block_size)
            raise UsageError(
                f"pool_blocks={job.pool_blocks}: under {job.runtime}, a request of ctx={job.ctx} needs {least} blocks of {job.block_size}; "
                f"use pool_blocks={least} or more, or a smaller ctx"
            )
