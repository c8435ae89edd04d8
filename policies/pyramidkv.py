"""SnapKV with more for the lower layers."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from vtoken_sdk.policy import CacheView

from .snapkv import SnapKV


@dataclass
class PyramidKV(SnapKV):
    """PyramidKV (Cai et al. 2024, arXiv 2406.02069): SnapKV's choice, with budgets that fall linearly from the first layer to the last.

    Definition: let b = budget - window, n = length - window. The first layer keeps high = min(2 b - b // beta, n) tokens before the
        window, the last 2 b - high, and layer l of L: high - l (2 high - 2 b) // (L - 1). If length < 2 b, or b <= 0, all keep b.
        Each also keeps its last `window` tokens. Which tokens, SnapKV says.
    Acts: whenever the run asks, after the prompt and in decode alike. Learns nothing.
    Reads: the last `window` queries and the keys. Folding: as SnapKV. At token granularity there is one group and one budget: it then
        acts uniformly, as SnapKV does, token by token. Layer and head granularity give each layer its budget.
    Fidelity: adapted. Rounding makes the published layer budgets exceed the total; they are scaled down to it (what is beyond one token
        each, floor). The authors' code rounds the step between layers down, which exceeds it by more. At token granularity uniform.
        As for SnapKV, the paper compresses once, after the prompt (evict.every = 0); in decode the length grows, and with it
        `high` where n was the limit. Defaults: beta as published; window, kernel and pooling as SnapKV.
    Options: window, kernel, pooling, as SnapKV; beta, int >= 1 (1: uniform; the larger, the steeper).
    """

    beta: int = 20

    def __post_init__(self) -> None:
        super().__post_init__()
        if type(self.beta) is not int or self.beta < 1:  # True is an int to isinstance
            raise ValueError(f"beta={self.beta!r}: use a whole number >= 1")

    def evict_token(self, cache: CacheView) -> Tensor:
        layers, heads = cache.groups
        layer = (torch.arange(layers * heads, device=cache.live.device) // heads)[None, :, None]
        share = (cache.budget - self.window).clamp(min=0)  # int64 [B, 1, 1]
        high = torch.maximum(torch.minimum(2 * share - share // self.beta, cache.length - self.window), share)
        keep = high - layer * (2 * high - 2 * share) // max(layers - 1, 1)  # int64 [B, G, 1]
        keep = torch.where(cache.length < 2 * share, share, keep)
        return cache.evict_lowest(cache.score(self.votes), last=self.window, keep=keep + self.window)
