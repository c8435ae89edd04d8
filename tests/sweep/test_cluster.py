"""Jobs run by Hydra's launchers: the same jobs, the same files."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from vtoken_sdk.sweep import cluster
from vtoken_sdk.sweep.values import UsageError

from .conftest import SMALL, Sweep, results, write_policy

SLURM = Path(__file__).with_name("slurm")  # stand-ins for its commands


@pytest.fixture
def slurm(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    (tmp_path / "slurm").mkdir()
    monkeypatch.setenv("PATH", f"{SLURM}:{os.environ['PATH']}")
    monkeypatch.setenv("SLURM_STAND_IN", str(tmp_path / "slurm"))
    return tmp_path / "slurm"


def test_joblib(vtoken_sweep: Sweep) -> None:
    write_policy("mine", "raise ValueError('no')")
    done = vtoken_sweep(*SMALL, "policy=./mine.py", "runtime=native,naive", "cluster=joblib", "workers=1", "dir=out")
    assert done.code == 3, done
    assert [row["status"] for row in results("out")] == ["done", "failed"]
    assert "ValueError: no" in results("out")[1]["error"]


def test_a_process_of_joblibs_own_kind_starts_jobs_too(vtoken_sweep: Sweep) -> None:
    """With several workers, joblib's processes say that theirs is how processes start, which no fork server knows."""
    from joblib.externals.loky.backend.context import LokyContext

    multiprocessing.context._concrete_contexts.setdefault("loky", LokyContext())  # type: ignore[attr-defined]
    old = multiprocessing.get_start_method(allow_none=True)
    multiprocessing.set_start_method("loky", force=True)
    try:
        done = vtoken_sweep(*SMALL, "runtime=native", "dir=out", "dry_run=true")
        assert multiprocessing.get_start_method() == "loky"
    finally:
        multiprocessing.set_start_method(old, force=True)
    assert done.code == 0, done


def test_slurm(slurm: Path, vtoken_sweep: Sweep) -> None:
    done = vtoken_sweep(*SMALL, "runtime=native", "cluster=slurm", "workers=3", "hydra.launcher.partition=big", "dir=out")
    assert done.code == 0, done
    assert [row["status"] for row in results("out")] == ["done"]
    (script,) = Path("out/.submitit").glob("*/*_submission.sh")
    assert "#SBATCH --partition=big" in script.read_text()


def test_submitit_without_slurm(vtoken_sweep: Sweep) -> None:
    done = vtoken_sweep(*SMALL, "runtime=native", "hydra/launcher=submitit_local", "dir=out")
    assert done.code == 0, done
    assert [row["status"] for row in results("out")] == ["done"]


def test_settings_of_the_launchers() -> None:
    assert cluster.preset("slurm", 3, "cuda") == {"array_parallelism": 3, "gpus_per_node": 1, "name": "vtoken-sweep"}
    assert cluster.preset("joblib", None, "auto")["n_jobs"] == os.cpu_count()
    ray = cluster.preset("ray", None, "cuda")
    assert (ray["ray.init.object_store_memory"], ray["ray.remote.num_gpus"]) == (None, 1)


def test_a_cluster_in_a_file_and_the_users_own_settings() -> None:
    config = OmegaConf.create(
        {
            "hydra": {
                "runtime": {"choices": {"hydra/launcher": "basic"}},
                "launcher": {"_target_": "basic"},
                "overrides": {"hydra": ["hydra.launcher.n_jobs=7"]},
            }
        }
    )
    assert cluster.cluster_of(config, "joblib") == "joblib"
    cluster.set_up(config, "joblib", 2, "auto")
    assert "joblib" in config.hydra.launcher._target_
    assert config.hydra.launcher.pre_dispatch == "n_jobs"
    assert config.hydra.launcher.n_jobs != 2  # the user's own, which Hydra has put there
    config.hydra.runtime.choices["hydra/launcher"] = "submitit_slurm"
    assert cluster.cluster_of(config, "local") == "slurm"
    with pytest.raises(UsageError, match="leave out hydra/launcher=submitit_slurm"):
        cluster.cluster_of(config, "joblib")


def test_a_launcher_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"pip install 'vtoken-sdk\[slurm\]'"):
        cluster.launcher_arguments(["policy=h2o", "cluster=slurm"])
    assert cluster.launcher_arguments(["cluster=local"]) == []


@pytest.fixture
def ray_cluster(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[str]:
    """A cluster that is already there, of one core, as a user's would be; its address."""
    pytest.importorskip("ray")
    pytest.importorskip("hydra_plugins.hydra_ray_launcher")
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    words = ["start", "--head", "--block", "--num-cpus=1", "--include-dashboard=false", "--node-ip-address=127.0.0.1"]
    short = tempfile.mkdtemp(prefix="ray")  # sockets below it have names of limited length
    words += [f"--port={address.rpartition(':')[2]}", f"--temp-dir={short}", "--object-store-memory=80000000"]
    started = subprocess.Popen(
        [sys.executable, "-m", "ray.scripts.scripts", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        assert started.stdout is not None
        said = []
        for line in started.stdout:
            said.append(line)
            if "runtime started" in line:
                break
        else:
            pytest.fail("".join(said))
        yield address
    finally:
        started.terminate()
        started.communicate()
        shutil.rmtree(short, ignore_errors=True)


@pytest.mark.slow
def test_ray_on_a_cluster_that_is_there(ray_cluster: str, spawn_sweep: Callable[..., subprocess.Popen[str]]) -> None:
    """In a process of its own, which Ray joins to the cluster."""
    process = spawn_sweep(*SMALL, "runtime=native", "cluster=ray", "dir=out", RAY_ADDRESS=ray_cluster)
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, (out, err)
    assert [row["status"] for row in results("out")] == ["done"]
