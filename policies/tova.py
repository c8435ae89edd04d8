"""What the last query attends to least goes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from vtoken_sdk.policy import CacheView, EvictionPolicy


@dataclass
class TOVA(EvictionPolicy):
    """TOVA (Oren et al. 2024, arXiv 2401.06104): keep what the last query attends to most.

    Definition: a token's score is the attention that it gets from the last query, over the live tokens. Kept are the highest `budget`
        scores. Nothing is protected but the newest token, and nothing is remembered: each eviction looks at one query alone.
    Acts: whenever the run asks, after the prompt and in decode alike. Learns nothing.
    Reads: the last query and the keys. Folding: mean over the R query heads of a KV head, then over the KV heads and layers of the
        group.
    Fidelity: adapted. The paper decides once a layer, by the mean over all of its heads: exact at layer granularity with
        evict.every = 1, but for the newest token, which the authors' code may drop, and for ties, which it leaves open. At head
        granularity each KV head decides alone; at token granularity all layers drop the same tokens. With evict.every = n up to n
        tokens go by the word of one query.
    Options: none (window = 1, the one query that is read, is the definition).
    """

    needs = frozenset({"queries"})
    window: ClassVar[int] = 1

    def evict_token(self, cache: CacheView) -> Tensor:
        return cache.evict_lowest(cache.score(lambda kv: kv.attention()[:, :, -1].mean(1)))
