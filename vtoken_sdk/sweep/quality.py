"""The quality suites of a sweep: which of their keys apply to a job, what they judge, and which files they read."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from .source import file_sha256
from .values import UsageError, Value

if TYPE_CHECKING:
    from vtoken_sdk.quality import Item
    from vtoken_sdk.runtime.model_loader import LoadedModel

    from .job import Job

FULL_CACHE = "full_cache"  # of a sweep's folder: its answers, which the jobs share until all are done
FILES = ("quality.text", "quality.data", "quality.prompts")


def idle_quality(job: Job) -> list[str]:
    """The fields that say nothing for this job, so that they do not make it another one."""
    all_of_them = [name for name in vars(job) if name.startswith("quality_") and name != "quality_mode"]
    if job.quality_mode == "off":
        return all_of_them
    idle = []
    if not job.quality_texts:
        idle.append("quality_tokens")
    if not job.quality_data:
        idle += ["quality_items", "quality_prompts"]
    if not (job.quality_needles or job.quality_needles4 or job.quality_data):
        idle.append("quality_query")
    if not (job.quality_texts or job.quality_needles or job.quality_needles4):
        idle.append("quality_text")
    return idle


def files_sha256(flat: Mapping[str, Any]) -> str | None:
    """Of the files that the suites read, so that an edited file is another job; None where there are none.

    Raises UsageError if one cannot be read, or if the hash is not the one that `quality.sha256` asks for.
    """
    given = {key: str(flat[key]) for key in FILES if flat.get(key)} if flat["quality.mode"] != "off" else {}
    digest = hashlib.sha256()
    for key, name in given.items():
        try:
            digest.update(f"{key} {file_sha256(Path(name).expanduser())}\n".encode())
        except OSError as error:
            raise UsageError(f"{key}={name}: cannot be read ({error.strerror}); name a file") from error
    found = digest.hexdigest() if given else None
    wanted: Value = flat.get("quality.sha256")
    if wanted not in (None, found):
        files = " and ".join(f"{key}={name}" for key, name in given.items()) or "no file"
        raise UsageError(f"quality.sha256={wanted}: {files} has {found}; restore the files of the record, or write quality.sha256=null")
    return found


def quality_items(model: LoadedModel, job: Job) -> tuple[list[Item], list[str]]:
    """What the job judges, nothing where it does not; and what a user should hear of. Raises ConfigError."""
    from vtoken_sdk.quality import Suites, build_items
    from vtoken_sdk.runtime import ConfigError

    if job.quality_mode == "off":
        return [], []
    if job.quality_mode == "auto" and model.weights == "dummy":
        asked = job.quality_needles or job.quality_needles4 or job.quality_data
        return [], [f"quality is not judged: {job.model} has dummy weights"] if asked else []
    if model.weights == "dummy":
        raise ConfigError(f"quality.mode=on: {job.model} has dummy weights, and random values have no quality to lose; use auto or off")
    suites = Suites(
        ctx=job.ctx,
        seed=job.seed,
        texts=job.quality_texts or 0,
        tokens=job.quality_tokens or 0,
        needles=job.quality_needles or 0,
        needles4=job.quality_needles4 or 0,
        query=cast(Any, job.quality_query or "aware"),
        text=job.quality_text or _text_of(job.workload),
        data=job.quality_data,
        items=job.quality_items or 0,
        prompts=job.quality_prompts,
    )
    return build_items(model, suites)


def _text_of(workload: str) -> str | None:
    """A workload's own file, if it is running text."""
    from vtoken_sdk.workloads import is_text

    return workload if workload != "text" and is_text(workload) else None
