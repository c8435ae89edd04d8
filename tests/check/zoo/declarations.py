"""Broken in what the class says of itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from vtoken_sdk.policy import CacheView, EvictionPolicy, NewTokens

from .entry import Recency, caught_by


@caught_by("options")
class NoDataclass(Recency):
    recent: int = 4


@caught_by("options")
@dataclass
class NoDefault(Recency):
    size: int


@caught_by("options")
@dataclass
class SharedTensor(Recency):
    bias: Tensor = torch.zeros(3)  # noqa: RUF009  # the mistake


@caught_by("options")
@dataclass
class SharedList(Recency):
    seen: ClassVar[list[int]] = []


@caught_by("needs")
@dataclass
class UndeclaredAttention(Recency):
    def sync_new_tokens(self, cache: CacheView, new: NewTokens) -> None:
        cache.state["mass"] += new.attention


@caught_by("needs")
@dataclass
class UndeclaredQueries(EvictionPolicy):
    def evict_token(self, cache: CacheView) -> Tensor:
        return cache.evict_lowest(cache.score(lambda kv: kv.attention().sum((1, 2))))


@caught_by("needs")
@dataclass
class UndeclaredFuture(EvictionPolicy):
    def evict_token(self, cache: CacheView) -> Tensor:
        return cache.evict_lowest(cache.future)


@caught_by("needs")
@dataclass
class WindowOfNothing(Recency):
    needs = frozenset({"queries"})
    window: int = 0


@caught_by("needs")
@dataclass
class PromisesWhatNoGraphHolds(EvictionPolicy):
    capturable = True

    def evict_token(self, cache: CacheView) -> Tensor:
        return cache.evict_lowest(cache.score(lambda kv: kv.key_norms))
