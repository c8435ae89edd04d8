"""Broken answers."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from vtoken_sdk.policy import CacheView, EvictionPolicy, LiveKV, NewTokens

from .entry import Recency, caught_by


def lowest(cache: CacheView, score: Tensor, extra: int = 0) -> Tensor:
    """As evict_lowest, without its protection: the lowest live scores down to budget + extra."""
    order = score.expand(cache.live.shape).float().masked_fill(~cache.live, torch.inf).argsort(dim=-1, stable=True)
    rank = torch.empty_like(order).scatter_(-1, order, cache.positions.expand_as(order).contiguous())
    return cache.live & (rank < cache.live.sum(-1, keepdim=True) - cache.budget - extra)


@caught_by("answer")
@dataclass
class Raises(EvictionPolicy):
    def evict_token(self, cache: CacheView) -> Tensor:
        raise ValueError("my own mistake")


@caught_by("answer")
@dataclass
class ShortOnTopK(EvictionPolicy):
    """Takes 64 tokens from requests that have three."""

    def evict_token(self, cache: CacheView) -> Tensor:
        return cache.evict_lowest(cache.score(lambda kv: kv.keys.norm(dim=-1) - kv.keys.norm(dim=-1).topk(64).values[:, -1:]))


@caught_by("answer")
@dataclass
class WithoutGroups(EvictionPolicy):
    def evict_token(self, cache: CacheView) -> Tensor:
        return cache.evict_lowest(cache.positions)[:, 0]


@caught_by("answer")
@dataclass
class Indices(EvictionPolicy):
    def evict_token(self, cache: CacheView) -> Tensor:
        return cache.evict_lowest(cache.positions).long()


@caught_by("answer")
@dataclass
class Nothing(EvictionPolicy):
    def evict_token(self, cache: CacheView) -> Tensor:
        return None  # type: ignore[return-value]  # the mistake


@caught_by("answer")
@dataclass
class OtherDevice(EvictionPolicy):
    def evict_token(self, cache: CacheView) -> Tensor:
        return cache.evict_lowest(cache.positions).to("meta")


@caught_by("answer")
@dataclass
class ScoresPerQueryHead(EvictionPolicy):
    needs = frozenset({"queries"})
    window: int = 8

    def evict_token(self, cache: CacheView) -> Tensor:
        return cache.evict_lowest(cache.score(lambda kv: kv.attention().sum(2)))


@caught_by("only_live")
@dataclass
class NamesTheDead(EvictionPolicy):
    def evict_token(self, cache: CacheView) -> Tensor:
        return ~(cache.live & ~cache.evict_lowest(cache.positions))


@caught_by("newest")
@dataclass
class KillsTheNewest(EvictionPolicy):
    def evict_token(self, cache: CacheView) -> Tensor:
        return lowest(cache, -cache.positions)


@caught_by("protected")
@dataclass
class ForgetsItsSinks(Recency):
    sinks: int = 4


@caught_by("protected")
@dataclass
class ForgetsItsWindow(EvictionPolicy):
    needs = frozenset({"attention"})
    recent: float = 0.5

    def sync_new_tokens(self, cache: CacheView, new: NewTokens) -> None:
        cache.state["mass"] += new.attention

    def evict_token(self, cache: CacheView) -> Tensor:
        return cache.evict_lowest(cache.state["mass"])


@caught_by("budget")
@dataclass
class OverBudget(EvictionPolicy):
    def evict_token(self, cache: CacheView) -> Tensor:
        return lowest(cache, cache.positions, extra=2)


@caught_by("budget")
@dataclass
class NeverEvicts(EvictionPolicy):
    """Keeps all."""

    def evict_token(self, cache: CacheView) -> Tensor:
        return torch.zeros_like(cache.live)


@caught_by("budget")
@dataclass
class OncePerRequest(EvictionPolicy):
    """Kills from the ids that the length says are too many, and forgets that some of those are dead."""

    def evict_token(self, cache: CacheView) -> Tensor:
        n = cache.length - cache.budget
        return cache.live & (cache.positions >= 1) & (cache.positions < n)


@caught_by("budget_of_one")
@dataclass
class HalfWithoutEnd(EvictionPolicy):
    """Half of the budget for the first tokens, the rest for the last: at one the half is nothing, and then nothing goes."""

    def evict_token(self, cache: CacheView) -> Tensor:
        half = cache.budget // 2
        kill = cache.live & (cache.positions >= half) & (cache.positions < cache.length - (cache.budget - half))
        return torch.where(half == 0, torch.zeros_like(kill), kill)


@caught_by("within_budget")
@dataclass
class AlwaysHalves(EvictionPolicy):
    """Keeps the last half of what there is."""

    def evict_token(self, cache: CacheView) -> Tensor:
        return cache.live & (cache.positions < torch.maximum(cache.length // 2, cache.length - cache.budget))


@caught_by("nan")
@dataclass
class DividesByZero(EvictionPolicy):
    def evict_token(self, cache: CacheView) -> Tensor:
        return cache.evict_lowest(cache.positions / cache.positions)


@caught_by("nan")
@dataclass
class SpreadOfEqualTokens(EvictionPolicy):
    """Fine until a token is repeated."""

    def evict_token(self, cache: CacheView) -> Tensor:
        def spread(kv: LiveKV) -> Tensor:
            x = kv.values.float()
            low, high = x.amin(1, keepdim=True), x.amax(1, keepdim=True)
            return ((x - low) / (high - low)).mean(-1) if x.shape[1] > 1 else x.sum(-1)

        return cache.evict_lowest(cache.score(spread))
