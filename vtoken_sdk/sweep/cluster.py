"""cluster=joblib|slurm|ray: Hydra's launchers with the settings that a sweep of engines needs."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Mapping, Sequence
from typing import Any

from hydra.core.config_store import ConfigStore
from omegaconf import DictConfig, OmegaConf, open_dict

from .values import UsageError

LAUNCHERS = {"joblib": "joblib", "slurm": "submitit_slurm", "ray": "ray"}  # Hydra's names
PLUGINS = {"joblib": "hydra_joblib_launcher", "slurm": "hydra_submitit_launcher", "ray": "hydra_ray_launcher"}


def launcher_arguments(args: Sequence[str]) -> list[str]:
    """For Hydra: the launcher of a cluster= on the command line, so that its own options can be set there. Raises UsageError."""
    words = [arg.lstrip("+").partition("=")[::2] for arg in args]
    chosen = [value for key, value in words if key == "cluster"]
    if not chosen or chosen[-1] not in LAUNCHERS or any(key == "hydra/launcher" for key, _ in words):
        return []
    check_installed(chosen[-1])
    return [f"hydra/launcher={LAUNCHERS[chosen[-1]]}"]


def check_installed(cluster: str) -> None:
    """Raises UsageError."""
    if importlib.util.find_spec(f"hydra_plugins.{PLUGINS[cluster]}") is None:
        raise UsageError(f"cluster={cluster}: its launcher is not installed; pip install 'vtoken-sdk[{cluster}]'")


def cluster_of(config: DictConfig, cluster: str) -> str | None:
    """Who runs the jobs: None for this process and its children; else a launcher, by the name of its cluster or its own.

    Raises UsageError where two different launchers are asked for.
    """
    chosen = str(config.hydra.runtime.choices["hydra/launcher"])
    mine = next((name for name, launcher in LAUNCHERS.items() if launcher == chosen), chosen)
    if cluster == "local":
        return None if chosen == "basic" else mine
    if chosen not in ("basic", LAUNCHERS[cluster]):
        raise UsageError(f"cluster={cluster} is hydra/launcher={LAUNCHERS[cluster]}; leave out hydra/launcher={chosen}")
    return cluster


def set_up(config: DictConfig, cluster: str, workers: int | None, device: str) -> None:
    """Put the cluster's launcher and our settings into hydra.launcher; what the user set there stays. Raises UsageError."""
    if cluster not in LAUNCHERS:
        return
    check_installed(cluster)
    if config.hydra.runtime.choices["hydra/launcher"] == "basic":  # chosen in a file
        with open_dict(config.hydra):
            config.hydra.launcher = OmegaConf.structured(ConfigStore.instance().load(f"hydra/launcher/{LAUNCHERS[cluster]}.yaml").node)
    given = [text.lstrip("+").partition("=")[0].removeprefix("hydra.launcher.") for text in config.hydra.overrides.hydra]
    with open_dict(config.hydra.launcher):
        for key, value in preset(cluster, workers, device).items():
            if key not in given:
                OmegaConf.update(config.hydra.launcher, key, value, force_add=True)


def preset(cluster: str, workers: int | None, device: str) -> Mapping[str, Any]:
    """Keys below hydra.launcher."""
    gpus = 1 if device == "cuda" else None
    if cluster == "joblib":  # one job a dispatch, or a worker would hold back what another could start
        return {"n_jobs": workers or os.cpu_count() or 1, "batch_size": "1", "pre_dispatch": "n_jobs"}
    if cluster == "slurm":
        return {"array_parallelism": workers or 256, "gpus_per_node": gpus, "name": "vtoken-sweep"}
    # null: Ray's own, and the only value that an existing cluster takes; the launcher would set one.
    return {"ray.init.object_store_memory": None, "ray.init.log_to_driver": False, "ray.remote.num_gpus": gpus or 0}
