"""SnapKV with more for the heads that need it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from vtoken_sdk.policy import CacheView

from .snapkv import SnapKV


@dataclass
class AdaKV(SnapKV):
    """Ada-KV (Feng et al. 2024, arXiv 2407.11550): SnapKV's choice, with budgets that the heads of a layer compete for.

    Definition: let b = budget - window. The tokens before the window, of all H heads of a layer together, are sorted by SnapKV's pooled
        votes; the top H b of them give each head its count c. A head keeps round((1 - alpha) c + alpha b) tokens before the window,
        and its last `window` tokens. Which tokens, SnapKV says. Ties: the lower id loses, then the lower head.
    Acts: whenever the run asks, after the prompt and in decode alike. Learns nothing.
    Reads: the last `window` queries and the keys. Folding: as SnapKV. Heads compete at head granularity only; at token and layer
        granularity a layer has one group, the counts are all b, and it acts uniformly, as SnapKV does.
    Fidelity: adapted. Where rounding makes the counts exceed the total they are scaled down to it (what is beyond one token each, floor);
        the authors' code rounds alpha b down. As for SnapKV, the paper allocates once, after the prompt (evict.every = 0);
        in decode heads compete anew at each eviction, but cannot win back what is dead. At token granularity uniform.
        Defaults: alpha as published; window, kernel and pooling as SnapKV.
    Options: window, kernel, pooling, as SnapKV; alpha, the share of the budget that every head is sure of, 0 <= x <= 1 (1: uniform).
    """

    alpha: float = 0.2

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.alpha, bool) or not isinstance(self.alpha, int | float) or not 0 <= self.alpha <= 1:
            raise ValueError(f"alpha={self.alpha!r}: use a share of the budget, 0 <= x <= 1")

    def evict_token(self, cache: CacheView) -> Tensor:
        layers, heads = cache.groups
        share = (cache.budget - self.window).clamp(min=0)  # int64 [B, 1, 1]
        score = cache.score(self.votes)
        past = cache.live & (cache.positions < cache.length - self.window)
        pool = score.masked_fill(~past, -torch.inf).unflatten(1, (layers, heads)).mT.flatten(2)  # [B, L, T * H], by id, then head
        rank = pool.argsort(dim=-1, stable=True).argsort(-1)
        won = (rank >= pool.shape[-1] - heads * share).unflatten(2, (-1, heads)).mT.flatten(1, 2)  # [B, G, T]
        count = (won & past).sum(-1, keepdim=True)
        keep = ((1 - self.alpha) * count + self.alpha * share).round().long()
        return cache.evict_lowest(score, last=self.window, keep=keep + self.window)
