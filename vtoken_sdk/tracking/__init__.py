"""Trackers: what else hears of finished jobs. The files are the truth; a run neither waits for a tracker nor fails with it.

`jsonl` always runs, in the sweep's own process: a line a job. The others (`wandb`, `trackio`, `tensorboard`) each have a helper process
(`mirror`), which reads the jobs' files and writes them on at the lowest priority. Only `close` waits, for a bounded time for all of them
together; then the helpers are killed.
"""

from __future__ import annotations

import importlib.util
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from .jsonl import Jsonl
from .mirror import Mirror, Options

MODES = ("offline", "online", "disabled")


@dataclass(frozen=True)
class Kind:
    """A tracker with a helper process. name: for people; package: what it needs; extra: of ours, that installs it; backend: what writes."""

    name: str
    package: str
    extra: str
    backend: str

    @property
    def installed(self) -> bool:
        found = importlib.util.find_spec(self.package)
        return found is not None and found.origin is not None  # a folder of that name is none


KINDS = {
    "wandb": Kind("W&B", "wandb", "", "vtoken_sdk.tracking.wandb_backend:Wandb"),
    "trackio": Kind("Trackio", "trackio", "trackio", "vtoken_sdk.tracking.trackio_backend:Trackio"),
    "tensorboard": Kind("TensorBoard", "tensorboard", "tensorboard", "vtoken_sdk.tracking.tensorboard_backend:Tensorboard"),
}


class Tracker(Protocol):
    """Takes folders of finished jobs. No method raises or waits, but `close`, which waits for a bounded time and says how it went."""

    def add(self, folder: Path) -> None: ...

    def finish(self) -> None:
        """No job comes any more."""

    def close(self, patience: float) -> str:
        """One line, or "" if there is nothing to say. patience: seconds."""


class NoTracker:
    """Only the files."""

    def __init__(self, note: str) -> None:
        self.note = note

    def add(self, folder: Path) -> None:
        pass

    def finish(self) -> None:
        pass

    def close(self, patience: float = 0.0) -> str:
        return self.note


@dataclass(frozen=True)
class Trackers:
    """Several as one. timeout: seconds that `close` waits for all of them."""

    parts: Sequence[Tracker]
    timeout: float

    def add(self, folder: Path) -> None:
        for part in self.parts:
            part.add(folder)

    def finish(self) -> None:
        for part in self.parts:
            part.finish()

    def close(self, patience: float | None = None) -> str:
        """A line each. All hear first that the sweep is over, so that they end side by side."""
        end = time.monotonic() + (self.timeout if patience is None else patience)
        self.finish()
        return "\n".join(filter(None, [part.close(max(0.0, end - time.monotonic())) for part in self.parts]))


def start_trackers(names: Sequence[str], sweep: Path, mode: str | None, project: str, group: str, timeout: float) -> Trackers:
    """names: of KINDS. mode: W&B's, of the options; None takes $WANDB_MODE, or offline."""
    parts: list[Tracker] = [Jsonl(sweep)]
    for name in names:
        kind = KINDS[name]
        if not kind.installed:
            mend = f"'vtoken-sdk[{kind.extra}]'" if kind.extra else kind.package
            parts.append(NoTracker(f"{kind.name} is not installed (pip install {mend}): results are in the files only"))
        elif name == "wandb":
            parts.append(_start_wandb(kind, Options(sweep, mode or os.environ.get("WANDB_MODE") or "offline", project, group, timeout)))
        else:
            parts.append(Mirror(kind.name, kind.backend, Options(sweep, "offline", project, group, timeout)))
    return Trackers(parts, timeout)


def _start_wandb(kind: Kind, options: Options) -> Tracker:
    mode = {"dryrun": "offline", "run": "online", "shared": "online"}.get(options.mode, options.mode)
    if mode == "disabled":
        return NoTracker("W&B: disabled")
    if mode not in MODES:
        return NoTracker(f"warning: W&B is off: $WANDB_MODE={mode} is none of {', '.join(MODES)}")
    return Mirror(kind.name, kind.backend, options.of_mode(mode))
