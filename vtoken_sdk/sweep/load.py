"""What a job's options make: the prompts to serve, and the texts on which quality is judged."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from vtoken_sdk.runtime import ConfigError
from vtoken_sdk.workloads import Workload, build_workload, gamma_arrivals, is_text, stretched, text

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


def quality_workload(model: LoadedModel, job: Job) -> Workload | None:
    """Texts of the job's prompt length, from its own file if it has one; None where quality is not judged. Raises ConfigError."""
    if job.quality_mode == "off" or (job.quality_mode == "auto" and model.weights == "dummy"):
        return None
    if model.weights == "dummy":
        raise ConfigError(f"quality.mode=on: {job.model} has dummy weights, and random values have no quality to lose; use auto or off")
    assert job.quality_texts is not None and job.quality_tokens is not None
    path = job.workload if job.workload != "text" and is_text(job.workload) else None
    return text(model, requests=job.quality_texts, ctx=job.ctx, output_tokens=job.quality_tokens, seed=job.seed, path=path)
