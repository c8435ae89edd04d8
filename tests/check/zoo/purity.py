"""Broken in what they change, or depend on."""

from __future__ import annotations

import random
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from vtoken_sdk.policy import CacheView, EvictionPolicy, NewTokens

from .entry import Recency, caught_by


@caught_by("inputs")
@dataclass
class ChangesLive(EvictionPolicy):
    def evict_token(self, cache: CacheView) -> Tensor:
        kill = cache.evict_lowest(cache.positions)
        cache.live.logical_and_(~kill)
        return kill


@caught_by("inputs")
@dataclass
class ChangesKeys(EvictionPolicy):
    def evict_token(self, cache: CacheView) -> Tensor:
        return cache.evict_lowest(cache.score(lambda kv: kv.keys.sub_(1).norm(dim=-1)))


@caught_by("inputs")
@dataclass
class ChangesAttention(Recency):
    needs = frozenset({"attention"})

    def sync_new_tokens(self, cache: CacheView, new: NewTokens) -> None:
        new.attention.mul_(2)


@caught_by("state")
@dataclass
class AssignsStateInEvict(EvictionPolicy):
    def evict_token(self, cache: CacheView) -> Tensor:
        cache.state["asked"] += 1
        return cache.evict_lowest(cache.positions)


@caught_by("state")
@dataclass
class ChangesStateInEvict(EvictionPolicy):
    needs = frozenset({"attention"})

    def sync_new_tokens(self, cache: CacheView, new: NewTokens) -> None:
        cache.state["mass"] += new.attention

    def evict_token(self, cache: CacheView) -> Tensor:
        return cache.evict_lowest(cache.state["mass"].mul_(0.5))


@caught_by("state")
@dataclass
class MisspellsItsState(EvictionPolicy):
    needs = frozenset({"attention"})

    def sync_new_tokens(self, cache: CacheView, new: NewTokens) -> None:
        cache.state["mass"] += new.attention

    def evict_token(self, cache: CacheView) -> Tensor:
        return cache.evict_lowest(cache.state["mas"])


@caught_by("hidden_state")
@dataclass
class RemembersOnItself(EvictionPolicy):
    needs = frozenset({"attention"})

    def sync_new_tokens(self, cache: CacheView, new: NewTokens) -> None:
        self.mass = new.attention

    def evict_token(self, cache: CacheView) -> Tensor:
        return cache.evict_lowest(self.mass)


@caught_by("hidden_state")
@dataclass
class CountsOnItsClass(EvictionPolicy):
    calls: ClassVar[int] = 0

    def evict_token(self, cache: CacheView) -> Tensor:
        CountsOnItsClass.calls += 1
        return cache.evict_lowest(cache.positions, first=CountsOnItsClass.calls % 7)


@caught_by("hidden_state")
@dataclass
class DrawsFromItsGenerator(EvictionPolicy):
    draw: random.Random = field(default_factory=lambda: random.Random(0))

    def evict_token(self, cache: CacheView) -> Tensor:
        return cache.evict_lowest(cache.positions, first=self.draw.randrange(4))


@caught_by("seed")
@dataclass
class DrawsFromTorch(EvictionPolicy):
    def evict_token(self, cache: CacheView) -> Tensor:
        return cache.evict_lowest(torch.rand(cache.live.shape, device=cache.live.device))


@caught_by("seed")
@dataclass
class DrawsFromNumpy(EvictionPolicy):
    def evict_token(self, cache: CacheView) -> Tensor:
        return cache.evict_lowest(cache.positions, first=int(np.random.randint(4)))  # noqa: NPY002  # the mistake


_CALLS: weakref.WeakKeyDictionary[EvictionPolicy, int] = weakref.WeakKeyDictionary()


@caught_by("purity")
@dataclass(eq=False)
class CountsQuestionsElsewhere(EvictionPolicy):
    def evict_token(self, cache: CacheView) -> Tensor:
        _CALLS[self] = _CALLS.get(self, 0) + 1
        return cache.evict_lowest(cache.positions * (-1) ** _CALLS[self])


@caught_by("new_request")
@dataclass(eq=False)
class CountsStepsElsewhere(EvictionPolicy):
    def sync_new_tokens(self, cache: CacheView, new: NewTokens) -> None:
        _CALLS[self] = _CALLS.get(self, 0) + 1

    def evict_token(self, cache: CacheView) -> Tensor:
        return cache.evict_lowest(cache.positions, first=_CALLS[self])


@caught_by("copies")
@dataclass
class HoldsAFunction(EvictionPolicy):
    weight: Callable[[Tensor], Tensor] = field(default=lambda x: x)

    def evict_token(self, cache: CacheView) -> Tensor:
        return cache.evict_lowest(self.weight(cache.positions))


@caught_by("copies")
@dataclass
class LosesAnOption(EvictionPolicy):
    """What it does follows from an attribute that is no field, and that its own __reduce__ drops."""

    def __post_init__(self) -> None:
        self.sign = -1

    def __reduce__(self) -> tuple[Any, ...]:
        return _bare, (type(self),)

    def evict_token(self, cache: CacheView) -> Tensor:
        return cache.evict_lowest(cache.positions * getattr(self, "sign", 1))


def _bare(cls: type[EvictionPolicy]) -> EvictionPolicy:
    return object.__new__(cls)
