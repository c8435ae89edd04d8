"""The record of a finished job: everything that a run of the same needs, and the figures that it should then give again."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError  # type: ignore[import-untyped]  # OmegaConf's own errors

from vtoken_sdk.metrics import COLUMNS, Row
from vtoken_sdk.tracking.files import JobFolder, read_json

from .axes import axes_of
from .job import Job
from .settings import flatten, shipped_text
from .values import UsageError

_TIME = re.compile(r"(_ms|_ms_p\d+|_tok_s|_throughput|_goodput|^seconds)$")  # columns that differ from one run to the next
_NOT_FIGURES = {"job", "status", "error", "policy"}
_SOURCES = re.compile(r"commit|python|version_|device_name|model_(revision|sha256)$|(policy|workload)_sha256")


@dataclass(frozen=True)
class Record:
    """flat: the job's configuration. row, provenance: of its result; empty where it has none."""

    folder: Path
    flat: Mapping[str, Any]
    row: Row
    provenance: Mapping[str, Any]

    def is_of(self, job: Job) -> bool:
        """Whether `job` is the same run, wherever its policy's and its workload's files lie now."""
        known = shipped() | {key: value for key, value in self.flat.items() if value is not None}  # a later version may have more keys
        recorded = Job.from_flat({key: values[0] for key, values in axes_of(known).items()})
        unknown = recorded.workload_sha256 is None  # no file, or a record that tells it by its name only
        same: dict[str, Any] = {"policy": None, **({"workload_sha256": None} if unknown else {"workload": None})}
        return recorded.flat() | same == job.flat() | same

    def differences(self, row: Row) -> list[str]:
        """Figures of `row` that are not the recorded ones, times aside."""
        return [
            f"{name} {_show(self.row.get(name))} -> {_show(row[name])}"
            for name in COLUMNS
            if is_figure(name) and name in self.row and self.row[name] != row[name]
        ]

    def other_sources(self, provenance: Mapping[str, Any]) -> list[str]:
        """What else is not as it was: commit, versions, device, model, policy."""
        return [
            f"{name.removeprefix('version_')} {_show(old)} -> {_show(provenance.get(name))}"
            for name, old in self.provenance.items()
            if _SOURCES.match(name) and name in provenance and provenance[name] != old
        ]


def shipped() -> dict[str, Any]:
    """The values of all keys as they come."""
    return flatten(cast(dict[str, Any], OmegaConf.to_container(OmegaConf.create(shipped_text()))))


def is_figure(name: str) -> bool:
    """Whether a column should come out the same in a second run."""
    return name not in _NOT_FIGURES and _TIME.search(name) is None


def read_records(path: Path) -> list[Record]:
    """Of a job's folder or a file in it, or of all jobs of a sweep's folder. Raises UsageError."""
    folder = path if path.is_dir() else path.parent
    if (folder / "config.yaml").is_file():
        return [_read(folder)]
    jobs = [folder / "jobs" / str(job["job"]) for job in read_json(folder / "plan.json").get("jobs", [])]
    if not jobs:
        raise UsageError(
            f"from={path}: no record there; name a job's folder, DIR/jobs/<job> with its config.yaml, or a sweep's with its plan.json"
        )
    return [_read(job) for job in jobs]


def _read(folder: Path) -> Record:
    path = folder / "config.yaml"
    try:
        nested = OmegaConf.to_container(OmegaConf.load(path))
    except (OSError, YAMLError, OmegaConfBaseException) as error:
        raise UsageError(f"from={folder}: {path.name} cannot be read: {str(error).partition(chr(10))[0]}") from error
    if not isinstance(nested, dict):
        raise UsageError(f"from={folder}: {path.name} holds no configuration")
    result = JobFolder(folder).result
    return Record(folder, flatten(cast(dict[str, Any], nested)), result.get("row", {}), result.get("provenance", {}))


def compare(records: Sequence[Record], jobs: Sequence[Job], rows: Sequence[Row], sweep: Path) -> tuple[list[str], bool]:
    """Lines for the user, and whether every recorded figure came out again."""
    lines, same = [], True
    for record in records:
        for job, row in zip(jobs, rows, strict=True):
            if not record.is_of(job) or row["status"] != "done":
                continue
            if not record.row:
                lines.append(f"Record {record.folder}: has no result to compare with")
                continue
            different = record.differences(row)
            same = same and not different
            if not different:
                compared = sum(is_figure(name) for name in COLUMNS if name in record.row)
                lines.append(f"Record {record.folder}: the same figures ({compared} compared, times aside)")
                continue
            sources = record.other_sources(JobFolder(sweep / "jobs" / job.id).result.get("provenance", {}))
            why = f" Not as it was: {', '.join(sources)}." if sources else ""
            lines.append(f"Record {record.folder}: {len(different)} figures differ: {'; '.join(different)}.{why}")
    return lines, same


def _show(value: object) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)
