"""The finished jobs of a sweep, paired: what is compared shares its load and its victims."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import Any

import pyarrow.parquet as pq

from vtoken_sdk.report.compare import LOAD_KEYS, VICTIM_KEYS, Row, key_of, label, trimmed, varying
from vtoken_sdk.report.stats import Estimate
from vtoken_sdk.tracking.files import read_json

SEEDS = "seed"
SETTLED = "Memory figures here are means over the steps in which no prompt is read; the sweep's table and its report take all steps."
CPU_NOISE = "CPU times of one machine"


@dataclass(frozen=True)
class Run:
    """A finished job: its row of the results and its files."""

    row: Row
    folder: Path

    def __getitem__(self, key: str) -> Any:
        return self.row[key]

    @cached_property
    def steps(self) -> dict[str, list[Any]]:
        """Columns of steps.parquet."""
        return dict(pq.read_table(self.folder / "steps.parquet").to_pydict())

    @cached_property
    def bench(self) -> dict[str, Any]:
        return read_json(self.folder / "bench.json")

    @property
    def settled(self) -> list[int]:
        """Steps at which blocks were held and no prompt was being read; all that held blocks, if there is none."""
        held = [i for i, slots in enumerate(self.steps["slots_held"]) if slots]
        return [i for i in held if not self.steps["prefill_tokens"][i]] or held

    def settled_mean(self, column: str) -> float:
        return fmean(self.steps[column][i] for i in self.settled)


@dataclass(frozen=True)
class Runs:
    """All finished jobs of a sweep. folder: of the sweep. missing: jobs that failed or did not run."""

    folder: Path
    runs: Sequence[Run]
    missing: int = 0

    def of(self, *runtimes: str) -> list[Run]:
        return [run for run in self.runs if run["runtime"] in runtimes]

    def partner(self, run: Run, runtime: str, *, free: Iterable[str] = ()) -> Run | None:
        """The run of another runtime under the same load, and for the same victims if it evicts. free: load keys that may differ."""
        keys = [k for k in (*LOAD_KEYS, *(() if runtime == "native" else VICTIM_KEYS)) if k not in free]
        same = [r for r in self.of(runtime) if all(key_of(r.row, k) == key_of(run.row, k) for k in keys)]
        return same[0] if same else None

    def groups(self, runs: Sequence[Run], *, free: Iterable[str] = (SEEDS,)) -> list[tuple[str, list[Run]]]:
        """Runs that differ in nothing but `free` keys, with a name for what tells them from the other groups."""
        keys = [k for k in (*LOAD_KEYS, *VICTIM_KEYS, "threshold", "margin", "reclaim", "runtime") if k not in free]
        told = [k for k in varying([r.row for r in self.runs]) if k not in free]
        found: dict[tuple[Any, ...], list[Run]] = {}
        for run in runs:
            found.setdefault(tuple(key_of(run.row, k) for k in keys), []).append(run)
        return [(", ".join(filter(None, (group[0]["runtime"], label(group[0].row, told)))), group) for group in found.values()]


def load_runs(folder: Path, rows: Sequence[Row]) -> Runs:
    """rows: of the sweep's results."""
    done = [Run(row, folder / "jobs" / str(row["job"])) for row in trimmed(rows) if row["status"] == "done"]
    return Runs(folder, done, len(rows) - len(done))


def change(new: float, old: float) -> float | None:
    """In per cent of old."""
    return (new / old - 1) * 100 if old else None


def over_seeds(values: Sequence[float | None]) -> tuple[float | None, str]:
    """Mean, and a note of its interval, which is the report's, where there are several."""
    estimate = Estimate.of(values)
    if estimate is None:
        return None, "nothing to compare with finished"
    return (
        estimate.mean,
        f"{estimate.n} seeds: ±{estimate.half:.{1 if estimate.half >= 1 else 3}f} (95 %)" if estimate.half is not None else "",
    )


def where(runs: Sequence[Run]) -> str:
    """What the times of these runs are worth."""
    device, weights = {r["device"] for r in runs}, {r["weights"] for r in runs}
    return "; ".join(filter(None, (CPU_NOISE if "cpu" in device else "", "dummy weights" if "dummy" in weights else "")))
