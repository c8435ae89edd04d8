"""A tracker in a process of its own: `Mirror` is the sweep's end of the pipe, `serve` the helper's."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from importlib import import_module
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Protocol

from .files import JobFolder

GRACE = 5.0  # seconds that a helper outlives the sweep's patience, in case the sweep is gone


@dataclass(frozen=True)
class Options:
    """sweep: its folder; group: its name. mode: "offline" or "online". timeout: seconds for all that a backend waits for."""

    sweep: Path
    mode: str
    project: str
    group: str
    timeout: float

    def of_mode(self, mode: str) -> Options:
        return replace(self, mode=mode)


class Backend(Protocol):
    """Writes jobs on, in the helper. Whatever it raises stays there."""

    def __init__(self, options: Options) -> None: ...

    def write(self, job: JobFolder) -> None:
        """One finished job, whole, from its files."""

    def after(self, error: Exception) -> str:
        """What becomes of the jobs that follow a failure, or "" if nothing changes for them."""

    def close(self, mirrored: int) -> str:
        """All is written: one line on where."""


class Mirror:
    """Jobs to one backend by a helper process. name: the tracker's, for people. backend: "module:Class"."""

    def __init__(self, name: str, backend: str, options: Options) -> None:
        self.name, self.timeout = name, options.timeout
        context = multiprocessing.get_context("forkserver")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=serve, args=(theirs, backend, options), daemon=True)
        self.process.start()
        theirs.close()
        os.set_blocking(self.pipe.fileno(), False)
        self.sent = 0
        self.finished = False

    def add(self, folder: Path) -> None:
        with contextlib.suppress(OSError):  # a dead or stuck helper is told of by close
            self.pipe.send(str(folder))
            self.sent += 1

    def finish(self) -> None:
        if not self.finished:
            self.finished = True
            with contextlib.suppress(OSError):
                self.pipe.send(None)

    def close(self, patience: float | None = None) -> str:
        """One line on how it went. patience: seconds; None is the timeout of the options."""
        self.finish()
        try:
            return self._close(self.timeout if patience is None else patience)
        finally:
            self._kill()

    def _close(self, patience: float) -> str:
        os.set_blocking(self.pipe.fileno(), True)
        try:
            if not self.pipe.poll(patience):
                return f"warning: {self.name} was given up after {self.timeout:g} s (wandb.timeout); results are in the files, unaffected"
            mirrored, problem, note = self.pipe.recv()
        except (EOFError, OSError):
            return f"warning: the {self.name} helper process died; results are in the files, unaffected"
        if problem is not None:
            return f"warning: {self.name} has {mirrored} of {self.sent} jobs ({problem}); results are in the files, unaffected"
        return str(note)

    def _kill(self) -> None:
        """The helper leads its own process group, which W&B's service may have left; that one ends with its parent."""
        with contextlib.suppress(OSError):
            os.killpg(self.process.pid or 0, signal.SIGKILL)
        self.process.kill()


def serve(pipe: Connection, backend: str, options: Options) -> None:
    """In the helper, until the sweep says None or is gone: answers (jobs mirrored, problem or None, note)."""
    os.setsid()
    os.nice(19)
    _silence()
    mirrored, problem, note = 0, None, ""
    module, _, name = backend.partition(":")
    try:
        writer: Backend = getattr(import_module(module), name)(options)
        for folder in _folders(pipe, options.timeout):
            try:
                writer.write(JobFolder(folder))
                mirrored += 1
            except Exception as error:  # one job's failure is not the next one's
                problem = "; ".join(filter(None, (_line(error), writer.after(error))))
        note = writer.close(mirrored)
    except Exception as error:
        problem = _line(error)
    with contextlib.suppress(OSError):
        pipe.send((mirrored, problem, note))


def _line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".partition("\n")[0]


def _folders(pipe: Connection, timeout: float) -> Iterator[Path]:
    while True:
        try:
            folder = pipe.recv()
        except (EOFError, OSError):
            folder = None
        if folder is None:
            break
        yield Path(folder)
    clock = threading.Timer(timeout + GRACE, os.killpg, (0, signal.SIGKILL))
    clock.daemon = True
    clock.start()


def _silence() -> None:
    null = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(null, stream)
