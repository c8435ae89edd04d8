"""Real records of small jobs, and W&B that cannot reach anything."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from vtoken_sdk.registry import load_policy_class, policy_source
from vtoken_sdk.sweep.axes import axes_of
from vtoken_sdk.sweep.job import Job
from vtoken_sdk.sweep.plan import PolicyFacts, make_plan
from vtoken_sdk.sweep.run import run_job
from vtoken_sdk.sweep.settings import flatten, shipped_text

ROOT = Path(__file__).parents[2]


def make_job(folder: Path) -> Path:
    """Runs one small job; its folder."""
    shipped = flatten(OmegaConf.to_container(OmegaConf.create(shipped_text())))  # type: ignore[arg-type]  # a mapping
    small = {"runtime": "vtoken", "ctx": 64, "requests": 2, "output_tokens": 8, "pool_blocks": 32}
    path, digest = policy_source(load_policy_class("h2o"))
    job: Job = make_plan(axes_of(shipped | small), {"h2o": PolicyFacts(("recent",), path, digest)}).jobs[0]
    path_of_job = folder / "jobs" / job.id
    path_of_job.mkdir(parents=True)
    OmegaConf.save(OmegaConf.create(job.config()), path_of_job / "config.yaml")
    assert run_job(path_of_job) is None
    return path_of_job


@pytest.fixture(scope="session")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_job(tmp_path_factory.mktemp("recorded"))


@pytest.fixture
def job(recorded: Path, tmp_path: Path) -> Path:
    """A copy of a finished job's folder, in a sweep of its own."""
    path = tmp_path / "sweep" / "jobs" / recorded.name
    shutil.copytree(recorded, path)
    return path


@pytest.fixture(autouse=True)
def no_wandb_settings(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fresh home, no key, no mode."""
    monkeypatch.setenv("HOME", str(tmp_path_factory.mktemp("home")))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    for name in ("WANDB_MODE", "WANDB_API_KEY", "WANDB_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
