"""From options, some with several values, to the list of jobs."""

from __future__ import annotations

import itertools
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from vtoken_sdk.nearest import did_you_mean

from .job import Job
from .quality import files_sha256
from .settings import JOB_KEYS, KEYS, POLICY_OPTION, STEER_KEYS, SWEEP_KEYS, field_name, varied
from .source import workload_sha256
from .values import UsageError, Value


@dataclass(frozen=True)
class PolicyFacts:
    """What planning must know of a policy: its options, where its source is, and the source's SHA-256."""

    options: tuple[str, ...]
    path: str
    sha256: str


@dataclass(frozen=True)
class Plan:
    """The jobs as tables list them, runtimes innermost; they run seed by seed. axes: the keys with several values.

    notes: for the user to read.
    """

    jobs: tuple[Job, ...]
    axes: Mapping[str, list[Value]]
    notes: tuple[str, ...]
    name: str
    tracker: str | None
    wandb_mode: str | None
    wandb_project: str
    wandb_timeout: float
    experiment: str | None = None


def policies_of(axes: Mapping[str, list[Value]]) -> list[str]:
    """As the axis names them, and then as variations do."""
    base = {key: values[0] for key, values in axes.items()}
    changes = [varied(str(vary), base) for vary in axes.get("vary", [])]
    return list(dict.fromkeys(str(spec) for spec in (*axes["policy"], *(c["policy"] for c in changes if "policy" in c))))


def make_plan(axes: Mapping[str, list[Value]], policies: Mapping[str, PolicyFacts]) -> Plan:
    """Every combination once; jobs that differ only in what does not apply to them are one job. Raises UsageError.

    policies: facts of all that `policies_of` names.
    """
    notes = check_options(axes, policies)
    order = sorted(
        (k for k in axes if k not in SWEEP_KEYS), key=lambda k: (k == "runtime", list(JOB_KEYS).index(k) if k in JOB_KEYS else 0)
    )
    jobs: dict[str, Job] = {}
    for values in itertools.product(*(axes[key] for key in order)):
        flat: dict[str, Any] = dict(zip(order, values, strict=True))
        vary = str(flat.pop("vary", ""))
        flat |= (changed := varied(vary, flat))
        facts = policies[flat["policy"]]
        for key in changed:
            if key.startswith(POLICY_OPTION) and flat["runtime"] != "native" and key.removeprefix(POLICY_OPTION) not in facts.options:
                has = ", ".join(facts.options) or "no options"
                raise UsageError(f"vary={vary}: {flat['policy']} has no option {key.removeprefix(POLICY_OPTION)} (it has {has})")
        if flat["policy_sha256"] not in (None, facts.sha256):
            now = f"{facts.path} has {facts.sha256}"
            raise UsageError(f"policy_sha256={flat['policy_sha256']}: {now}; restore the policy of the record, or write policy_sha256=null")
        kept = {k: v for k, v in flat.items() if not k.startswith(POLICY_OPTION) or k.removeprefix(POLICY_OPTION) in facts.options}
        job = Job.from_flat(
            kept | {"policy_sha256": facts.sha256, "quality.sha256": files_sha256(flat), "workload_sha256": workload_sha256(flat)}
        )
        jobs.setdefault(job.id, job)
    sweep: dict[str, Any] = {field_name(key): axes[key][0] for key in SWEEP_KEYS if key != "dir" and key not in STEER_KEYS}
    sweep["name"] = sweep["name"] or _name(policies_of(axes))
    return Plan(tuple(jobs.values()), {k: v for k, v in axes.items() if len(v) > 1}, tuple(notes), **sweep)


def joined(plans: Sequence[Plan]) -> Plan:
    """One plan of all their jobs, each once; else as the first."""
    jobs = {job.id: job for plan in plans for job in plan.jobs}
    axes = {key: list(dict.fromkeys(v for plan in plans for v in plan.axes.get(key, []))) for plan in plans for key in plan.axes}
    return replace(
        plans[0], jobs=tuple(jobs.values()), axes=axes, notes=tuple(dict.fromkeys(note for plan in plans for note in plan.notes))
    )


def _name(policies: list[str]) -> str:
    """Of a sweep: its first policies, a class where one is named."""
    short = [p.rpartition(":")[2] if ":" in p else Path(p).stem for p in policies]
    return "-".join(short[:4]) + ("-etc" if len(short) > 4 else "")


def check_options(axes: Mapping[str, list[Value]], policies: Mapping[str, PolicyFacts]) -> list[str]:
    """Options that some policies lack: a note each. Raises UsageError on an option that no policy of the sweep has."""
    notes = []
    for key in axes:
        if not key.startswith(POLICY_OPTION):
            continue
        option = key.removeprefix(POLICY_OPTION)
        without = [spec for spec, facts in policies.items() if option not in facts.options]
        if len(without) == len(policies):
            if option in KEYS:
                raise UsageError(f"{key}: {option} is an option of the run, not of a policy; write {option}=...")
            known = {name for facts in policies.values() for name in facts.options}
            meant = did_you_mean(option, known, f"; did you mean {POLICY_OPTION}{{}}?") or did_you_mean(option, KEYS)
            has = "; ".join(f"{spec} has {', '.join(facts.options) or 'no options'}" for spec, facts in policies.items())
            raise UsageError(f"{key}: no policy of this sweep has the option {option} ({has}){meant}")
        if without:
            notes.append(f"{key} does not apply to {', '.join(without)}, which has no such option")
    return notes


def make_folder(wanted: str | None, name: str) -> Path:
    """The sweep's folder, absolute: the one wanted, or a new one under outputs/. Raises UsageError if it cannot be made."""
    if "${" in str(Path(wanted or "").expanduser().absolute()):
        raise UsageError(f"dir={wanted or 'outputs'}: Hydra takes ${{...}} in a path for its own; name a folder without it, dir=PATH")
    try:
        if wanted is not None:
            folder = Path(wanted).expanduser().absolute()
            (folder / "jobs").mkdir(parents=True, exist_ok=True)
            return folder
        stem = f"{time.strftime('%Y-%m-%d_%H-%M-%S')}_{re.sub(r'[^A-Za-z0-9_.-]+', '-', name)}"
        parent = Path("outputs").absolute()
        parent.mkdir(parents=True, exist_ok=True)
        number = 1
        while True:
            folder = parent / (stem if number == 1 else f"{stem}-{number}")
            try:
                folder.mkdir()  # fails if another sweep of the same second has it
                break
            except FileExistsError:
                number += 1
        (folder / "jobs").mkdir()
        return folder
    except OSError as error:
        raise UsageError(
            f"dir={wanted or 'outputs'}: {error.strerror} ({error.filename}); name a folder that can be written, dir=PATH"
        ) from error
