"""Persistence of importance: who was unimportant most often goes."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from vtoken_sdk.policy import CacheView, EvictionPolicy, LiveKV


@dataclass
class Scissorhands(EvictionPolicy):
    """Scissorhands (Liu et al. 2023, arXiv 2305.17118): drop the tokens that were unimportant most often of late.

    Definition: token j is unimportant to query t if A[t, j] < 1/t, the mean of t's row, where t is the number of live tokens that
        the query sees. The highest count of such queries, among the last `window`, dies first; a token that fewer of them could see
        has its count scaled up in proportion. The last `recent` tokens are protected; a budget no larger than that leaves a plain
        recency window. Ties: the lower id dies.
    Acts: whenever the run asks, after the prompt and in decode alike. Keeps budget - floor(drop * budget) tokens.
    Reads: the last `window` queries and the keys. Folding: A is the mean over the R query heads of a KV head; the threshold applies to
        each KV head; the counts are then averaged over the KV heads and layers of the group.
    Fidelity: adapted. The queries' attention is computed anew over the tokens live now, where the paper counts as it decodes (the same
        if nothing died in the last `window` steps). The scaling is ours: bare counts would spare the young whatever they do. One
        decision for all heads at token granularity. Defaults: window and recent as published, but drop = 0, so that it keeps as
        many tokens as the other policies; drop = 0.5 is the paper's burst. The authors' code differs: a mask at prompt time, in
        some layers, with the row's 90th percentile for 1/t. In a layer with a sliding window, t counts what it hides as well.
    Options: window, queries, int >= 1; recent, tokens, int >= 0; drop, share of the budget dropped on top, 0 <= x < 1.
    """

    needs = frozenset({"queries"})
    window: int = 400
    recent: int = 10
    drop: float = 0.0

    def __post_init__(self) -> None:
        for name, low in (("window", 1), ("recent", 0)):
            if type(value := getattr(self, name)) is not int or value < low:  # True is an int to isinstance
                raise ValueError(f"{name}={value!r}: use a whole number >= {low}")
        if isinstance(self.drop, bool) or not isinstance(self.drop, int | float) or not 0 <= self.drop < 1:
            raise ValueError(f"drop={self.drop!r}: use a share of the budget, 0 <= x < 1")

    def importance(self, kv: LiveKV) -> Tensor:
        """[H, N]: minus the number of the window's queries to which each token was unimportant."""
        seen = kv.positions[:, None, :] <= kv.query_positions[:, None]  # [H, W, N]
        low = seen & (kv.attention().mean(1) < 1 / seen.sum(-1, keepdim=True))
        return -low.sum(1) * len(kv.query_positions) / seen.sum(1)  # whole numbers where all queries see the token, so ties are ties

    def evict_token(self, cache: CacheView) -> Tensor:
        keep = cache.budget - (self.drop * cache.budget).long()
        return cache.evict_lowest(cache.score(self.importance), last=self.recent, keep=keep)
