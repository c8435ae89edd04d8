"""What sweeps left in their folders, read for a report: rows, options, provenance and steps of every job, failed and missing ones too.

A job's own files are the truth; a row of results.parquet stands in where the job's folder is gone, as in published results.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from vtoken_sdk.metrics import COLUMNS
from vtoken_sdk.nearest import did_you_mean
from vtoken_sdk.tracking.files import JobFolder, read_json

from .compare import Row

Steps = Mapping[str, Sequence[Any]]  # column -> values, one a step
# Keys of the configuration that other columns of a row stand for.
STOOD_FOR = {
    **{"output_tokens": "max_tokens", "block_size": "pool_block_size", "name": "", "dir": ""},
    **{"policy_sha256": "policy", "workload_sha256": "workload"},
}
# Column of names -> hash of what the name stood for, and the column that tells two contents of one name apart.
CONTENTS = {"policy": ("policy_sha256", "option"), "workload": ("workload_sha256", "setup"), "model": ("model_sha256", "setup")}


class RecordError(Exception):
    """A folder holds nothing to report. One line: which folder, and what to name instead."""


@dataclass(frozen=True)
class Sweep:
    """One folder. configs, provenance: of its jobs, by job, with flat keys; of a job without a result, what the plan says."""

    path: Path
    name: str
    plan: Mapping[str, Any]
    rows: Sequence[Row]
    configs: Mapping[str, Mapping[str, Any]]
    provenance: Mapping[str, Mapping[str, Any]]

    @property
    def command(self) -> str:
        return str(self.plan.get("provenance", {}).get("command") or "")


@dataclass(frozen=True)
class Record:
    """One or more sweeps as one. rows: each job once. notes: what a reader should know of the merging."""

    sweeps: Sequence[Sweep]
    rows: Sequence[Row]
    notes: Sequence[str] = ()

    @property
    def name(self) -> str:
        return ", ".join(dict.fromkeys(sweep.name for sweep in self.sweeps))

    @cached_property
    def done(self) -> list[Row]:
        return [row for row in self.rows if row["status"] == "done"]

    @cached_property
    def homes(self) -> Mapping[str, Sweep]:
        """job -> the sweep whose folder has it."""
        homes: dict[str, Sweep] = {}
        for sweep in self.sweeps:
            for row in sweep.rows:
                if row["job"] not in homes or (row["status"] == "done" and not _has(homes[row["job"]], row["job"])):
                    homes[row["job"]] = sweep
        return homes

    def config(self, job: str) -> Mapping[str, Any]:
        return self.homes[job].configs.get(job, {})

    def provenance(self, job: str) -> Mapping[str, Any]:
        return self.homes[job].provenance.get(job, {})

    def steps(self, job: str) -> Steps | None:
        """None where they were not kept or cannot be read."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        path = self.homes[job].path / "jobs" / job / "steps.parquet"
        try:
            columns: Steps = pq.read_table(path).to_pydict()
        except (OSError, pa.ArrowException):
            return None
        return columns

    def with_rows(self, rows: Iterable[Row]) -> Record:
        """With what its sweep knows of the jobs and could not write into their folders."""
        fresh = {row["job"]: row for row in rows}
        return replace(self, rows=[{**row, **fresh.get(row["job"], {})} for row in self.rows])


def _has(sweep: Sweep, job: str) -> bool:
    return any(row["job"] == job and row["status"] == "done" for row in sweep.rows)


def read_record(folders: Sequence[Path]) -> Record:
    """Raises RecordError for a folder without results or a plan."""
    sweeps = [read_sweep(path) for path in dict.fromkeys(path.resolve() for path in folders)]
    merged: dict[str, Row] = {}
    twice = 0
    for sweep in sweeps:
        for row in sweep.rows:
            known = merged.get(row["job"])
            twice += known is not None
            if known is None or (known["status"] != "done" and row["status"] == "done"):
                merged[row["job"]] = row
    notes = [f"Jobs in more than one of the folders: {twice}. Each counts once, the first finished one."] if twice else []
    record = Record(sweeps, _with_setup(list(merged.values()), sweeps), notes)
    return replace(record, rows=_with_contents(record))


def read_sweep(path: Path) -> Sweep:
    """Raises RecordError."""
    plan = read_json(path / "plan.json")
    planned = {str(job["job"]): {k: v for k, v in job.items() if k != "job"} for job in plan.get("jobs", ())}
    stored = _stored_rows(path / "results.parquet", needed=not planned)
    if not planned and not stored:
        near = did_you_mean(path.name, [file.parent.name for file in path.parent.glob("*/plan.json")])
        raise RecordError(f"{path}: no plan.json and no results.parquet; name the folder of a sweep (its dir=){near}")
    rows, configs, provenance = [], {}, {}
    for job in planned or stored:
        folder = JobFolder(path / "jobs" / job)
        config, result = planned.get(job, {}), folder.result
        outcome = folder.outcome if folder.status else stored.get(job, folder.outcome)
        rows.append({**(planned_row(job, config) if config else stored[job]), **outcome})
        configs[job] = {key.replace(".", "_"): value for key, value in config.items()} or dict(result.get("config", {}))
        provenance[job] = result.get("provenance") or plan.get("provenance", {})
    return Sweep(path, str(plan.get("name") or path.name), plan, rows, configs, provenance)


def planned_row(job: str, config: Mapping[str, Any]) -> Row:
    """The columns that are known before a job runs. config: its flat configuration, with "." in keys."""
    flat = {key.replace(".", "_"): value for key, value in config.items()}
    options = {key.removeprefix("option."): value for key, value in config.items() if key.startswith("option.")}
    reclaim = {k.removeprefix("reclaim."): v for k, v in config.items() if k.startswith("reclaim.") and v is not None}
    return {name: flat.get(name) for name in COLUMNS} | {
        "job": job,
        "status": "missing",
        "option": _pairs(options),
        "reclaim": _pairs(reclaim),
        "max_tokens": flat.get("output_tokens"),
        "pool_block_size": flat.get("block_size"),
        "prompt_tokens": None,
        "output_tokens": None,
    }


def _pairs(options: Mapping[str, object]) -> str | None:
    return " ".join(f"{key}={value}" for key, value in options.items()) or None


def _stored_rows(path: Path, *, needed: bool) -> dict[str, Row]:
    """needed: nothing else tells what the jobs are."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return {row["job"]: row for row in pq.read_table(path).to_pylist()}
    except FileNotFoundError:
        return {}
    except (OSError, pa.ArrowException, KeyError) as error:
        if not needed:
            return {}
        raise RecordError(f"{path}: not the results of a sweep ({type(error).__name__}: {error})".partition("\n")[0]) from error


def _with_setup(rows: Sequence[Row], sweeps: Sequence[Sweep]) -> list[Row]:
    """Options that no column names but that differ between jobs, as one more name of a row: setup."""
    configs = {job: config for sweep in sweeps for job, config in sweep.configs.items()}
    keys = dict.fromkeys(key for config in configs.values() for key in config if _is_unnamed(key))
    differing = [key for key in keys if len({str(config.get(key)) for config in configs.values()} - {"None"}) > 1]

    def setup(job: str) -> str | None:
        return _pairs({key: configs[job][key] for key in differing if configs.get(job, {}).get(key) is not None})

    return [{**row, "setup": setup(row["job"])} for row in rows]


def _with_contents(record: Record) -> list[Row]:
    """A policy, workload or model that was edited between two sweeps is another one, and no repeat of the first."""
    rows = [dict(row) for row in record.rows]
    for column, (key, target) in CONTENTS.items():
        hashes = [record.provenance(row["job"]).get(key) or record.config(row["job"]).get(key) for row in rows]
        known: dict[Any, set[str]] = {}
        for row, content in zip(rows, hashes, strict=True):
            if row[column] is not None and content is not None:
                known.setdefault(row[column], set()).add(content)
        for row, content in zip(rows, hashes, strict=True):
            if content is not None and len(known.get(row[column], ())) > 1:
                row[target] = " ".join(filter(None, (row[target], f"{key}={content[:8]}")))
    return rows


def _is_unnamed(key: str) -> bool:
    return key not in COLUMNS and key not in STOOD_FOR and not key.startswith(("option_", "reclaim_"))
