"""Hydra's way in: the sweeper `vtoken`. Hydra imports it for every Hydra application, so it imports nothing of ours before its use."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from hydra.core.config_store import ConfigStore
from hydra.core.plugins import Plugins
from hydra.plugins.launcher import Launcher
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig

NODE = {"_target_": "hydra_plugins.vtoken_sweeper.VtokenSweeper"}
ConfigStore.instance().store(group="hydra/sweeper", name="vtoken", node=NODE, provider="vtoken-sdk")


class VtokenSweeper(Sweeper):
    """Plans first, then hands the jobs that are not done yet to the launcher."""

    config: DictConfig
    make_launcher: Callable[[], Launcher]

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        self.config = config
        # The launcher's settings follow from the plan.
        self.make_launcher = partial(
            Plugins.instance().instantiate_launcher, hydra_context=hydra_context, task_function=task_function, config=config
        )

    def sweep(self, arguments: list[str]) -> Any:
        """Raises UsageError before anything has run; SystemExit with the sweep's code if that is not 0."""
        from vtoken_sdk.sweep.sweep import sweep

        code = sweep(self.config, arguments, self.make_launcher)
        if code:
            raise SystemExit(code)
