"""Cheats: sees the attention of queries that have not come yet."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from vtoken_sdk.policy import CacheView, EvictionPolicy


@dataclass
class Oracle(EvictionPolicy):
    """Oracle (no paper; CHEATS): keep what the full-cache run will attend to most from now on. The headroom above real policies.

    Definition: a token's score is the attention that it will receive, in the run that evicts nothing, from all queries still to come.
        Kept are the highest `budget` scores. Ties (the end of the text has no queries to come): the lower id dies. Nothing is
        protected but the newest token.
    Acts: whenever the run asks, after the prompt and in decode alike. Learns nothing.
    Reads: cache.future, which no server has: only where the text is known beforehand, in teacher-forced runs and replays. Folding: mean
        over the R query heads of a KV head, then over the KV heads and layers of the group.
    Fidelity: exact. What it maximizes is the attention mass kept, by queries that never lost a token. No policy can keep more of that;
        by another measure (loss, an answer found) another choice may still be better. Never list it as a method.
    Options: none.
    """

    needs = frozenset({"future"})

    def evict_token(self, cache: CacheView) -> Tensor:
        return cache.evict_lowest(cache.future)
