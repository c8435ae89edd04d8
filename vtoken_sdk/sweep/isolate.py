"""Each job runs in a process of its own: a crash, an exit or an out-of-memory kill is one failed job.

The processes come from a fork server that has imported torch and the runtime, so a job starts in a fraction of a second.
"""

from __future__ import annotations

import contextlib
import faulthandler
import multiprocessing
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from multiprocessing import connection, forkserver
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar, cast

from vtoken_sdk.tracking.files import JobFolder

from .attempt import NOT_STARTED, attempt
from .values import UsageError

T = TypeVar("T")
PRELOAD = ["vtoken_sdk.sweep.preload"]
FROM_OUTSIDE = {signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP}  # such a job may be good: a resumed sweep runs it again
EXIT_SECONDS = 5.0  # for a job's process to go once its result is written


def warm_up() -> None:
    """Start the fork server; it imports while the caller goes on. Ctrl-C is the caller's alone: jobs ignore it and are ended."""
    multiprocessing.get_context("forkserver").set_forkserver_preload(PRELOAD)
    with _apart():
        forkserver.ensure_running()


class Running:
    """A job in a process of its own, from its start to `end`. Once one of `ends` can be read, it has answered or is gone."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.process, self.pipe = _start(_run, folder)

    @property
    def ends(self) -> tuple[connection.Connection, int]:
        return self.pipe, self.process.sentinel

    def end(self) -> str | None:
        """Wait for the job; None, or why it failed. Its outcome is in its files, where they could be written."""
        job, killed = JobFolder(self.folder), False
        try:
            reason: str | None = _answer_of(self.process, self.pipe)
            self.process.join(EXIT_SECONDS)
        except EOFError:
            self.process.join()
            reason, killed = _reason(self.process.exitcode), -(self.process.exitcode or 0) in FROM_OUTSIDE
            job.fail(reason, f"{job.log}{reason}")
        except BaseException:
            self.kill()
            raise
        self.kill()  # a thread that the policy left may hold it
        if reason not in (None, NOT_STARTED) and job.status.get("status") != "failed":  # the child could not write it
            job.fail(reason)
        if killed:
            with contextlib.suppress(OSError):
                job.say("failed", error=reason, killed=True)
        return reason

    def kill(self) -> None:
        _kill(self.process)


def run_isolated(folder: Path) -> str | None:
    """Run the job in `folder` to its end; None, or why it failed."""
    return Running(folder).end()


def call(function: Callable[..., T], *args: object) -> T:
    """Call a function in a process with torch in it; its result or UsageError; any other error is a RuntimeError with the trace."""
    process, pipe = _start(_answer, function, args)
    try:
        result, error = _answer_of(process, pipe)
    except EOFError:
        process.join()
        raise UsageError(f"{_reason(process.exitcode)}, while the options were tried") from None
    finally:
        _kill(process)
    if error is not None:
        raise error
    return cast(T, result)


def _start(target: Callable[..., None], *args: object) -> tuple[BaseProcess, connection.Connection]:
    """`target(pipe, *args)` in a new process, and our end of the pipe."""
    warm_up()
    context = multiprocessing.get_context("forkserver")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=target, args=(theirs, *args))
    with _plain():
        process.start()
    theirs.close()
    return process, ours


def _answer_of(process: BaseProcess, pipe: connection.Connection) -> Any:
    """What the process sends. Raises EOFError if it ended without: then nothing that it left may hold the pipe open."""
    assert process.pid
    connection.wait([pipe, process.sentinel])
    if not pipe.poll():
        try:
            os.kill(process.pid, 0)  # it lives, if it was the fork server that was killed: out of memory, the system may choose that
        except ProcessLookupError:
            _kill(process)
    return pipe.recv()


def _kill(process: BaseProcess) -> None:
    """With all that it started: what a policy forked would go on to hold the job's lock and the output of the sweep."""
    assert process.pid
    process.kill()
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.join()


def _answer(pipe: connection.Connection, function: Callable[..., object], args: tuple[object, ...]) -> None:
    os.setpgid(0, 0)
    sys.breakpointhook = _no_breakpoint
    try:
        answer: tuple[object, Exception | None] = function(*args), None
    except UsageError as error:
        answer = None, UsageError(str(error))
    except Exception:
        answer = None, RuntimeError(traceback.format_exc())
    pipe.send(answer)


def _reason(code: int | None) -> str:
    if code is None or code >= 0:
        return f"the job's process ended by itself (exit code {code}) without a result"
    name = signal.Signals(-code).name
    hints = {"SIGKILL": ": probably out of memory", "SIGSEGV": ": a crash in native code", "SIGABRT": ": a crash in native code"}
    return f"the job's process was ended by {name}{hints.get(name, '')}"


def _run(pipe: connection.Connection, folder: Path) -> None:
    """In the child: what it prints goes to log.txt."""
    os.setpgid(0, 0)
    threading.Thread(target=_die_with_parent, daemon=True).start()
    sys.breakpointhook = _no_breakpoint
    with contextlib.suppress(OSError):
        log = os.open(folder / "log.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        for stream in (1, 2):
            os.dup2(log, stream)
    faulthandler.enable()
    pipe.send(attempt(folder))


def _no_breakpoint(*_: object, **__: object) -> None:
    if os.environ.get("PYTHONBREAKPOINT") != "0":
        raise RuntimeError("breakpoint() has no terminal in a job's own process; run the sweep with in_process=true")


def _die_with_parent() -> None:
    """A job whose sweep was killed must not go on beside the sweep that starts it anew."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        connection.wait([parent.sentinel])
        os.killpg(os.getpid(), signal.SIGKILL)


@contextlib.contextmanager
def _plain() -> Iterator[None]:
    """A process started inside does not import the caller's main module again: nothing of ours is in it, and it may be slow. Nor does it
    look for joblib's own way to start processes, which a fork server does not know.
    """
    main, method = sys.modules["__main__"], multiprocessing.get_start_method(allow_none=True)
    foreign = method not in (None, *multiprocessing.get_all_start_methods())
    sys.modules["__main__"] = ModuleType("__main__")
    if foreign:
        multiprocessing.set_start_method("forkserver", force=True)
    try:
        yield
    finally:
        sys.modules["__main__"] = main
        if foreign:
            multiprocessing.set_start_method(method, force=True)


@contextlib.contextmanager
def _apart() -> Iterator[None]:
    """Processes started inside ignore Ctrl-C from their first instruction, and take no module from the user's folder for another."""
    old_path = os.environ.get("PYTHONSAFEPATH")
    os.environ["PYTHONSAFEPATH"] = "1"
    main = threading.current_thread() is threading.main_thread()
    old_handler = signal.signal(signal.SIGINT, signal.SIG_IGN) if main else None
    try:
        yield
    finally:
        if main:
            signal.signal(signal.SIGINT, old_handler)
        del os.environ["PYTHONSAFEPATH"]
        if old_path is not None:
            os.environ["PYTHONSAFEPATH"] = old_path
