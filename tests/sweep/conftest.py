"""vtoken-sweep as a user runs it, in this process or in one of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from vtoken_sdk import cli

ROOT = Path(__file__).parents[2]
# A load that runs in a fraction of a second and still evicts in the prompt and in decode.
SMALL = ("ctx=128", "requests=2", "output_tokens=20", "chunk=64", "pool_blocks=64")


@dataclass
class Outcome:
    code: int
    out: str
    err: str


Sweep = Callable[..., Outcome]


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("WANDB_MODE", "disabled")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))  # for the fork server, where the package is not installed
    monkeypatch.setenv("HYDRA_FULL_ERROR", "0")
    old = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, old)


@pytest.fixture
def vtoken_sweep(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Sweep:
    """In this process: jobs share one fork server, so that a sweep takes a second."""

    def run(*args: str) -> Outcome:
        monkeypatch.setattr(sys, "argv", ["vtoken-sweep", *args])
        try:
            cli.main()
            code: Any = 0
        except SystemExit as end:
            code = end.code or 0
        return Outcome(code, *capfd.readouterr())

    return run


@pytest.fixture
def spawn_sweep() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """In a process group of its own and heeding Ctrl-C, as a shell starts it, even where the tests themselves run in the background."""
    started = []

    def start(*args: str, **env: str) -> subprocess.Popen[str]:
        environment = {**os.environ, "PYTHONPATH": str(ROOT), **env}
        command = [sys.executable, "-P", "-m", "vtoken_sdk.cli", *args]
        process = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def results(folder: str | Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = pq.read_table(Path(folder) / "results.parquet").to_pylist()
    return rows


def write_policy(name: str, body: str, options: str = "") -> Path:
    """A policy file in the current folder; `body` is evict_token's."""
    path = Path(f"{name}.py")
    lines = "\n        ".join(body.strip().splitlines())
    path.write_text(
        f"""import ctypes, os, resource, signal, threading
from dataclasses import dataclass
from pathlib import Path
import torch
from vtoken_sdk.policy import EvictionPolicy

@dataclass
class Mine(EvictionPolicy):
    {options or "pass"}

    def evict_token(self, cache):
        {lines}
        return cache.evict_lowest(cache.positions)
"""
    )
    return path
