"""The questions of the vToken paper, each with the answer of a sweep beside the paper's own figure.

`conf/experiment/NAME.yaml` says what is run; the module of the same name here reads the finished jobs. `vtoken-sweep experiment=NAME` does
both, and writes experiment.json into the sweep's folder.
"""

from __future__ import annotations

from collections.abc import Callable

from vtoken_sdk.paper import Range

from . import ablation, capacity, memory, overhead, quality, throughput
from .finding import Finding, Outcome
from .runs import Run, Runs, load_runs
from .table import as_json, print_outcome

EXPERIMENTS: dict[str, Callable[[Runs], Outcome]] = {
    "memory": memory.analyze,
    "throughput": throughput.analyze,
    "capacity": capacity.analyze,
    "overhead": overhead.analyze,
    "ablation": ablation.analyze,
    "quality": quality.analyze,
}

__all__ = ["EXPERIMENTS", "Finding", "Outcome", "Range", "Run", "Runs", "as_json", "load_runs", "print_outcome"]
