"""A whole sweep where nothing is there for a tracker, and a disk that is full."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq

from .conftest import ROOT
from .test_mirror import PATIENT, run_mirror

NO_NETWORK = ["unshare", "--map-root-user", "--net"]


def network_can_be_cut() -> bool:
    try:
        return subprocess.run([*NO_NETWORK, "true"], capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        return False


def test_no_account_no_network_no_stdin_and_a_home_that_cannot_be_written(tmp_path: Path) -> None:
    """By default: the sweep neither asks nor waits, and leaves a run to be synced later."""
    cut = NO_NETWORK if network_can_be_cut() else []
    load = ["policy=random", "runtime=vtoken", "ctx=64", "requests=1", "output_tokens=8", "pool_blocks=32", "dir=out", "wandb.timeout=120"]
    command = [*cut, sys.executable, "-P", "-m", "vtoken_sdk.cli", *load]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "HOME": "/proc", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False, timeout=PATIENT, preexec_fn=lambda: os.close(0)
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "W&B: 1 offline run; to upload: wandb sync out/jobs/*/wandb/offline-run-*" in done.stdout.splitlines()
    assert pq.read_table(tmp_path / "out" / "results.parquet").column("status").to_pylist() == ["done"]
    assert len(list(tmp_path.glob("out/jobs/*/wandb/offline-run-*"))) == 1
    assert (tmp_path / "out" / "report.html").stat().st_size > 10_000


def test_a_full_disk_costs_the_mirror_and_nothing_else(job: Path) -> None:
    """Files of the helper and of W&B's service end at 8 kB, as on a full disk; the job's own are as they were."""
    own = [path for path in sorted(job.iterdir()) if path.is_file()]
    before = [hashlib.sha256(path.read_bytes()).digest() for path in own]
    note, seconds = run_mirror(job, "offline", 10, first="import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (8000, 8000))")
    assert note.startswith("warning: ")
    assert "unaffected" in note
    assert seconds < 10 + 5
    assert [hashlib.sha256(path.read_bytes()).digest() for path in own] == before
