"""Heavy hitters plus a recent window."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from vtoken_sdk.policy import CacheView, EvictionPolicy, NewTokens


@dataclass
class H2O(EvictionPolicy):
    """H2O (Zhang et al. 2023, arXiv 2306.14048): the tokens that received most attention so far, and the most recent ones.

    Definition: a token's score is the attention it received from every query since it was appended: summed, never averaged, never
        reset. Kept are the last floor(recent * budget) tokens (the newest always) and, of the others, the highest scores. The
        evicted never return; survivors keep their score. Sums favor early tokens; dividing by the number of queries would be another
        policy.
    Acts: whenever the run asks, after the prompt and in decode alike. Learns from every step.
    Reads: new.attention. Folding: mean over the R query heads of a KV head, then over the KV heads and layers of the group.
    Fidelity: exact at head granularity with evict.every = 1 (for R > 1 the folding is ours: the paper has R = 1); adapted at token
        granularity, where all heads and layers drop the same tokens, and with evict.every = n, where up to n tokens go at once.
        Defaults: half the budget is recent, as in the authors' code (heavy = recent). Original positions are kept.
    Options: recent, the recent window's share of the budget, 0 <= x <= 1 (0: the newest token alone; 1: a plain recency window).
    """

    needs = frozenset({"attention"})
    capturable = True
    recent: float = 0.5

    def __post_init__(self) -> None:
        if isinstance(self.recent, bool) or not isinstance(self.recent, int | float) or not 0 <= self.recent <= 1:
            raise ValueError(f"recent={self.recent!r}: use the recent window's share of the budget, 0 <= x <= 1")

    def sync_new_tokens(self, cache: CacheView, new: NewTokens) -> None:
        cache.state["mass"] += new.attention  # [B, G, T]

    def evict_token(self, cache: CacheView) -> Tensor:
        return cache.evict_lowest(cache.state["mass"], last=(self.recent * cache.budget).long())
