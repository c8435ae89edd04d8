"""How a sweep goes about its jobs: the keys that no result depends on."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .settings import STEER_KEYS
from .values import UsageError, Value


@dataclass(frozen=True)
class Steering:
    """As STEER_KEYS has them, one value each. launcher: None where the sweep's own process and its children run the jobs."""

    rerun: str | None
    fail_fast: bool
    dry_run: bool
    in_process: bool
    cluster: str
    workers: int | None
    search: str | None
    objective: str
    direction: str
    trials: int
    launcher: str | None

    @classmethod
    def of(cls, axes: Mapping[str, list[Value]], launcher: str | None) -> Steering:
        """Raises UsageError on keys that exclude each other."""
        values: dict[str, Any] = {key: axes[key][0] for key in STEER_KEYS if key != "from"}
        if values["in_process"] and (launcher or (values["workers"] or 1) > 1):
            raise UsageError(
                "in_process=true runs the jobs one after another in this process; leave out cluster, hydra/launcher and workers"
            )
        return cls(**values, launcher=launcher)

    @property
    def elsewhere(self) -> bool:
        """Whether jobs may run on a machine that is not like this one."""
        return self.launcher in ("slurm", "submitit_slurm", "ray", "ray_aws")

    @property
    def at_once(self) -> int:
        """Jobs that a search offers at a time."""
        return self.workers or 1

    @property
    def on_this_machine(self) -> int | None:
        """Jobs that share this machine, and so each other's times; None where a cluster decides."""
        if self.launcher == "joblib":
            return self.workers or os.cpu_count() or 1
        return None if self.launcher else self.workers or 1

    def facts(self) -> dict[str, Any]:
        """For the jobs' processes, in plan.json."""
        return {"fail_fast": self.fail_fast, "cluster": self.launcher or "local", "jobs_at_once": self.on_this_machine}
