"""What a job's options make: the prompts to serve."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from vtoken_sdk.workloads import Workload, build_workload

from .job import Job

if TYPE_CHECKING:
    from vtoken_sdk.runtime.model_loader import LoadedModel


def job_workload(model: LoadedModel, job: Job) -> Workload:
    """The requests of the job. Raises ConfigError."""
    return build_workload(
        job.workload,
        model,
        requests=job.requests,
        ctx=job.ctx,
        output_tokens=job.output_tokens,
        seed=job.seed,
        lengths=cast(Any, job.lengths),
    )
