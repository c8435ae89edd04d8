"""What the next chunk makes look ordinary goes."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from vtoken_sdk.policy import CacheView, EvictionPolicy, LiveKV


@dataclass
class LagKV(EvictionPolicy):
    """LagKV (Liang et al. 2025, arXiv 2504.04704): each chunk of tokens is judged by the range of the chunk that follows it.

    Definition: the live tokens after the first `sinks` are cut into chunks of `lag`. In a chunk keys and values are scaled, channel by
        channel, so that the smallest and largest of the next chunk become 0 and 1; a token's spread is the standard deviation over
        the scaled channels; spreads go through a softmax in the chunk; K's and V's are averaged. A token's score is its rank in its
        chunk by that average (ties: the lower id ranks lower), so that all chunks lose equally. The first `sinks` tokens and the
        last chunk with the tail after it die last. With fewer than two whole chunks there is nothing to compare: recency decides.
    Acts: whenever the run asks, after the prompt and in decode alike. Learns nothing.
    Reads: keys (after RoPE) and values. Folding: mean of the ranks over the KV heads and layers of the group.
    Fidelity: adapted. The paper keeps a fixed share of each chunk, once, and never looks at a chunk again; here the budget is fixed, so
        the survivors are cut into chunks anew at each eviction, and a budget below sinks + lag takes the last chunk as well, by age.
        One pass over a prompt at head granularity is kvpress's, up to ties. Below two chunks the paper drops nothing, which would break the
        budget. A channel that is constant in the next chunk is scaled by 1e-6 instead of by zero. Defaults: kvpress's; the
        authors' class has 16 and 1,024.
    Options: sinks, tokens, int >= 0; lag, tokens a chunk, int >= 1.
    """

    sinks: int = 4
    lag: int = 128

    def __post_init__(self) -> None:
        for name, low in (("sinks", 0), ("lag", 1)):
            if type(value := getattr(self, name)) is not int or value < low:  # True is an int to isinstance
                raise ValueError(f"{name}={value!r}: use a whole number >= {low}")

    def spread(self, x: Tensor) -> Tensor:
        """[H, C, lag, D] -> [H, C - 1, lag]: of each chunk but the last."""
        low, high = x[:, 1:].amin(2, keepdim=True), x[:, 1:].amax(2, keepdim=True)
        return ((x[:, :-1] - low) / (high - low).clamp(min=1e-6)).std(-1).softmax(-1)

    def rank(self, kv: LiveKV) -> Tensor:
        """[H, N]: the rank in the chunk, inf where no next chunk is whole."""
        n = kv.keys.shape[1]
        chunks = (n - self.sinks) // self.lag
        if chunks < 2:
            return kv.positions.float()
        whole = slice(self.sinks, self.sinks + chunks * self.lag)
        keys, values = (self.spread(x[:, whole].float().unflatten(1, (chunks, self.lag))) for x in (kv.keys, kv.values))
        rank = ((keys + values) / 2).argsort(dim=-1, stable=True).argsort(-1).flatten(1).float()
        return F.pad(rank, (self.sinks, n - self.sinks - rank.shape[1]), value=torch.inf)

    def evict_token(self, cache: CacheView) -> Tensor:
        return cache.evict_lowest(cache.score(self.rank), first=self.sinks)
