"""Keys like all the others go."""

from __future__ import annotations

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor

from vtoken_sdk.policy import CacheView, EvictionPolicy, LiveKV


@dataclass
class KeyDiff(EvictionPolicy):
    """KeyDiff (Park et al. 2025, arXiv 2504.15364): keep the keys that point away from the mean direction.

    Definition: the anchor is the mean of the live keys, each normalized first (after RoPE). A token's score is minus the cosine
        between its key and the anchor. Kept are the highest `budget` scores. Nothing is protected but the newest token.
    Acts: whenever the run asks, after the prompt and in decode alike. Learns nothing.
    Reads: the keys. Folding: mean of the scores over the KV heads and layers of the group.
    Fidelity: exact at head granularity with evict.prefill = chunk and evict.every = 1, but for the newest token: the paper evicts after
        each block of the prompt (128 tokens; the run's chunk). Adapted with evict.prefill = end, where the anchor is that of the
        whole prompt, with evict.every = n, and at token and layer granularity, where heads decide together.
    Options: none.
    """

    def unlike(self, kv: LiveKV) -> Tensor:
        """[H, N]: minus the cosine to the anchor."""
        keys = F.normalize(kv.keys.float(), dim=-1)
        return -F.cosine_similarity(keys, keys.mean(1, keepdim=True), dim=-1)

    def evict_token(self, cache: CacheView) -> Tensor:
        return cache.evict_lowest(cache.score(self.unlike))
