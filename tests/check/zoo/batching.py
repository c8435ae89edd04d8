"""Broken as soon as other requests, other widths or pauses come in."""

from __future__ import annotations

import weakref
from dataclasses import dataclass

import torch
from torch import Tensor

from vtoken_sdk.policy import CacheView, EvictionPolicy, NewTokens

from .entry import Recency, caught_by


@caught_by("batch")
@dataclass
class SortsAcrossRequests(EvictionPolicy):
    """One pool of scores for all requests: the paper's code, which knew one request only."""

    def evict_token(self, cache: CacheView) -> Tensor:
        order = cache.score(lambda kv: kv.keys.float().norm(dim=-1)).flatten().argsort(stable=True)
        rank = torch.empty_like(order).scatter_(0, order, torch.arange(len(order), device=order.device)).view(cache.live.shape)
        return cache.evict_lowest(rank % 7)


@caught_by("batch")
@dataclass
class TakesTheFirstBudget(EvictionPolicy):
    """The budget of row 0 for all; the helper's cap hides it where it is larger."""

    def evict_token(self, cache: CacheView) -> Tensor:
        return cache.evict_lowest(cache.positions, last=cache.budget[:1] // 2, first=2)


@caught_by("batch")
@dataclass
class DrawsByRow(EvictionPolicy):
    def evict_token(self, cache: CacheView) -> Tensor:
        row = torch.arange(len(cache.live), device=cache.live.device)[:, None, None]
        return cache.evict_lowest((cache.positions * 31 + row * 17) % 23)


@caught_by("padding")
@dataclass
class MiddleOfTheTensor(EvictionPolicy):
    """Keeps what is far from the middle, of T instead of the length."""

    def evict_token(self, cache: CacheView) -> Tensor:
        return cache.evict_lowest((cache.positions - cache.live.shape[-1] // 2).abs())


@caught_by("padding")
@dataclass
class MeanOfTheTensor(EvictionPolicy):
    needs = frozenset({"attention"})

    def sync_new_tokens(self, cache: CacheView, new: NewTokens) -> None:
        cache.state["mass"] += new.attention

    def evict_token(self, cache: CacheView) -> Tensor:
        mass = cache.state["mass"] * cache.live
        return cache.evict_lowest(torch.where(mass > 8 * mass.mean(-1, keepdim=True), 1, cache.positions / 10_000))


@caught_by("idle_rows")
@dataclass
class DecaysEveryCall(EvictionPolicy):
    needs = frozenset({"attention"})

    def sync_new_tokens(self, cache: CacheView, new: NewTokens) -> None:
        cache.state["mass"] = 0.5 * cache.state["mass"] + new.attention
        cache.state["calls"] += 1

    def evict_token(self, cache: CacheView) -> Tensor:
        return cache.evict_lowest(cache.state["mass"] + cache.state["calls"])


@caught_by("idle_rows")
@dataclass
class RaisesOnAnIdleRow(Recency):
    def sync_new_tokens(self, cache: CacheView, new: NewTokens) -> None:
        cache.state["newest"] = cache.positions.expand(cache.live.shape).gather(-1, new.count - 1)


_SEEN: weakref.WeakKeyDictionary[EvictionPolicy, Tensor] = weakref.WeakKeyDictionary()


@caught_by("preemption")
@dataclass(eq=False)
class CountsByRow(EvictionPolicy):
    """Counts the tokens of each row, from a request's first step on: right until a request changes rows."""

    def sync_new_tokens(self, cache: CacheView, new: NewTokens) -> None:
        seen = _SEEN.get(self)
        if seen is None or len(seen) != len(new.count):
            seen = torch.zeros_like(new.count)
        _SEEN[self] = torch.where(cache.length == new.count, 0, seen) + new.count

    def evict_token(self, cache: CacheView) -> Tensor:
        return cache.evict_lowest(torch.where(_SEEN[self] == cache.length, cache.positions, -cache.positions))


@caught_by("dead_columns")
@dataclass
class MeanOfTheDead(EvictionPolicy):
    needs = frozenset({"attention"})

    def sync_new_tokens(self, cache: CacheView, new: NewTokens) -> None:
        cache.state["mass"] += new.attention

    def evict_token(self, cache: CacheView) -> Tensor:
        mass = cache.state["mass"]
        return cache.evict_lowest(torch.where(mass > mass.sum(-1, keepdim=True) / cache.length, 1, cache.positions / 10_000))


@caught_by("head_groups")
@dataclass
class OneGroupOnly(EvictionPolicy):
    def evict_token(self, cache: CacheView) -> Tensor:
        return cache.evict_lowest(cache.positions)[:, :1]
