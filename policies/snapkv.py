"""What the last queries voted for, and its neighbors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch.nn.functional as F
from torch import Tensor

from vtoken_sdk.policy import CacheView, EvictionPolicy, LiveKV


@dataclass
class SnapKV(EvictionPolicy):
    """SnapKV (Li et al. 2024, arXiv 2404.14469): the tokens that the last `window` queries attend to, each with its neighbors.

    Definition: a token before the window gets the sum of the attention of the last `window` queries (softmax over all that they see,
        the window too), pooled along the live tokens: the maximum, or the mean with zeros beyond the ends, of the `kernel` tokens
        around it. Kept are the last `window` tokens and, of the others, the highest budget - window. Ties, which the maximum makes
        many of: the lower id dies. A budget no larger than the window leaves a plain recency window.
    Acts: whenever the run asks, after the prompt and in decode alike. Learns nothing.
    Reads: the last `window` queries and the keys. Folding: mean over the R query heads of a KV head, then pooling, then the mean over
        the KV heads and layers of the group.
    Fidelity: adapted. The paper compresses once, when the prompt is in, and lets the cache grow from there: that is evict.prefill = end
        with evict.every = 0, which holds budget + generated tokens; at head granularity it is then exact (for R > 1 the folding
        is ours: the authors' code copies the keys and lets each query head select). Asked in decode, it votes again over what is
        left. Original positions are kept. Defaults: those of the authors' LongBench runs; their class has 64, 5 and "avg".
    Options: window, queries, int >= 1; kernel, tokens, odd int >= 1 (1: no pooling); pooling, "max" or "avg".
    """

    needs = frozenset({"queries"})
    window: int = 32
    kernel: int = 7
    pooling: Literal["max", "avg"] = "max"

    def __post_init__(self) -> None:
        if type(self.window) is not int or self.window < 1:  # True is an int to isinstance
            raise ValueError(f"window={self.window!r}: use a whole number >= 1")
        if type(self.kernel) is not int or self.kernel < 1 or self.kernel % 2 == 0:
            raise ValueError(f"kernel={self.kernel!r}: use an odd whole number >= 1")
        if self.pooling not in ("max", "avg"):
            raise ValueError(f"pooling={self.pooling!r}: use max or avg")

    def votes(self, kv: LiveKV) -> Tensor:
        """[H, N]: the pooled attention of the window; what is inside the window counts as zero."""
        inside = kv.positions >= kv.query_positions[0]
        votes = kv.attention().mean(1).sum(1).masked_fill(inside, 0.0)
        pool = F.max_pool1d if self.pooling == "max" else F.avg_pool1d
        return pool(votes, self.kernel, stride=1, padding=self.kernel // 2)

    def evict_token(self, cache: CacheView) -> Tensor:
        return cache.evict_lowest(cache.score(self.votes), last=self.window)
