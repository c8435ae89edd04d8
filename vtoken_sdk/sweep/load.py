"""What a job's options make: the prompts to serve."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from vtoken_sdk.runtime import ConfigError
from vtoken_sdk.workloads import Workload, build_workload, gamma_arrivals, stretched

from .job import Job

if TYPE_CHECKING:
    from vtoken_sdk.runtime.model_loader import LoadedModel


def job_workload(model: LoadedModel, job: Job) -> Workload:
    """The requests of the job, with the times of their arrival. Raises ConfigError."""
    workload = build_workload(
        job.workload,
        model,
        requests=job.requests,
        ctx=job.ctx,
        output_tokens=job.output_tokens,
        seed=job.seed,
        lengths=job.lengths,
        length_scale=job.length_scale,
    )
    return replace(workload, arrivals_s=_arrivals(workload, job))


def _arrivals(workload: Workload, job: Job) -> list[float] | None:
    if job.arrivals == "trace":
        if workload.arrivals_s is None:
            raise ConfigError(f"arrivals=trace: workload={job.workload} has no times; use arrivals=rate, or the path of a request trace")
        return stretched(workload.arrivals_s, job.request_rate)
    if job.request_rate is None:
        return None
    assert job.burstiness is not None
    return gamma_arrivals(job.requests, job.request_rate, job.burstiness, job.seed)
