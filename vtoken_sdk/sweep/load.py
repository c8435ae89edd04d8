"""What a job's options make: the prompts to serve, and the texts on which quality is judged."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from vtoken_sdk.runtime import ConfigError
from vtoken_sdk.workloads import Workload, build_workload, text

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


def quality_workload(model: LoadedModel, job: Job) -> Workload | None:
    """Texts of the job's prompt length, from its own file if it has one; None where quality is not judged. Raises ConfigError."""
    if job.quality_mode == "off" or (job.quality_mode == "auto" and model.weights == "dummy"):
        return None
    if model.weights == "dummy":
        raise ConfigError(f"quality.mode=on: {job.model} has dummy weights, and random values have no quality to lose; use auto or off")
    assert job.quality_texts is not None and job.quality_tokens is not None
    path = job.workload if job.workload not in ("synthetic", "text") else None
    return text(model, requests=job.quality_texts, ctx=job.ctx, output_tokens=job.quality_tokens, seed=job.seed, path=path)
