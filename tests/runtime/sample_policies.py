"""Policies for engine tests: one that follows a script, one that reads queries, and the ones that do wrong."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from vtoken_sdk.policy import CacheView, EvictionPolicy, LiveKV, NewTokens


@dataclass
class Scripted(EvictionPolicy):
    """Kills what a script says: length -> token ids, the same for every request. Asked with a budget of 1 it is always due."""

    script: dict[int, list[int]] = field(default_factory=dict)

    def evict_token(self, cache: CacheView) -> Tensor:
        kill = torch.zeros_like(cache.live)
        for row, length in enumerate(cache.length.flatten().tolist()):
            kill[row, :, self.script.get(length, [])] = True
        return kill


@dataclass
class SnapLike(EvictionPolicy):
    """Attention of the last queries, as SnapKV has it, without its pooling."""

    needs = frozenset({"queries"})
    window: int = 16

    def evict_token(self, cache: CacheView) -> Tensor:
        def received(kv: LiveKV) -> Tensor:
            return kv.attention().sum((1, 2))

        return cache.evict_lowest(cache.score(received), last=self.window)


@dataclass
class Newest(EvictionPolicy):
    """Wants the newest token dead, always."""

    def evict_token(self, cache: CacheView) -> Tensor:
        return cache.positions.expand_as(cache.live) == cache.length - 1


@dataclass
class Everything(EvictionPolicy):
    """Wants every token dead, and some that do not exist."""

    def evict_token(self, cache: CacheView) -> Tensor:
        return torch.ones_like(cache.live)


@dataclass
class Answers(EvictionPolicy):
    """Recency, but in requests of seed `guilty` and from `length` on it answers, or learns, by `how`."""

    how: Callable[[CacheView], object] = lambda cache: None
    guilty: int = 101
    length: int = 0
    learns: bool = False

    def _is_guilty(self, cache: CacheView) -> bool:
        return bool(((cache.seed == self.guilty) & (cache.length >= self.length)).any())

    def sync_new_tokens(self, cache: CacheView, new: NewTokens) -> None:
        if self.learns and self._is_guilty(cache):
            self.how(cache)

    def evict_token(self, cache: CacheView) -> Tensor:
        if not self.learns and self._is_guilty(cache):
            return self.how(cache)  # type: ignore[return-value]  # a wrong type is what is tested
        return cache.evict_lowest(cache.positions)
