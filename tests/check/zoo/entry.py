"""The zoo's register."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from vtoken_sdk.policy import CacheView, EvictionPolicy

ZOO: dict[type[EvictionPolicy], str] = {}


def caught_by(check: str) -> Callable[[type[EvictionPolicy]], type[EvictionPolicy]]:
    def enter(cls: type[EvictionPolicy]) -> type[EvictionPolicy]:
        ZOO[cls] = f"check_{check}"
        return cls

    return enter


class Recency(EvictionPolicy):
    def evict_token(self, cache: CacheView) -> Tensor:
        return cache.evict_lowest(cache.positions)
