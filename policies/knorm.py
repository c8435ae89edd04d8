"""Large keys go."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from vtoken_sdk.policy import CacheView, EvictionPolicy


@dataclass
class KNorm(EvictionPolicy):
    """KNorm (Devoto et al. 2024, arXiv 2406.11430): keep the keys of the smallest L2 norm.

    Definition: a token's score is minus the L2 norm of its key (rotation does not change it). Kept are the highest `budget` scores,
        that is, the smallest norms. Nothing is protected but the newest token; attention sinks live because their keys are small.
    Acts: whenever the run asks, after the prompt and in decode alike. Learns nothing.
    Reads: the keys. Folding: mean of the norms over the KV heads and layers of the group.
    Fidelity: exact at head granularity with evict.every = 1, but for the newest token, which the paper may drop; adapted at token and
        layer granularity, where layers and heads of large keys outweigh the others in the mean, and with evict.every = n, where up
        to n tokens go at once. The paper may spare the first layers (the authors' option skip_layers); here all are treated alike.
    Options: none.
    """

    def evict_token(self, cache: CacheView) -> Tensor:
        return cache.evict_lowest(cache.score(lambda kv: -kv.key_norms))
