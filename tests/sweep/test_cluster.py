"""Jobs run by Hydra's launchers: the same jobs, the same files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from vtoken_sdk.sweep import cluster
from vtoken_sdk.sweep.settings import UsageError

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
