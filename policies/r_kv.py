"""What is unimportant, or said again later, goes."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from vtoken_sdk.policy import CacheView, EvictionPolicy, LiveKV

ROWS_AT_ONCE = 1024  # of the N x N cosines


@dataclass
class RKV(EvictionPolicy):
    """R-KV (Cai et al. 2025, arXiv 2505.24133): importance to the last queries, less redundancy among the keys.

    Definition: importance: the logits of the last `window` queries, the maximum over the R query heads of a KV head, softmax over the
        tokens before the window, mean over the queries, maximum of the `kernel` tokens around. Redundancy: the cosines between all
        live keys, a key's own 0; each row also drops its latest neighbor with a cosine above `threshold` (or, having none, the first
        live token, as the authors' code does); the column means go through a softmax. A token's score is mix * importance -
        (1 - mix) * redundancy. Kept are the last `window` tokens and, of the others, the highest. A budget no larger than the
        window leaves a plain recency window.
    Acts: whenever the run asks, after the prompt and in decode alike. Learns nothing.
    Reads: the last `window` queries and the keys. Takes time in N^2 a head. Folding: the maximum above; then the mean of the
        scores over the KV heads and layers of the group.
    Fidelity: exact at head granularity with evict.every = 128, the authors' interval, but for ties; adapted at token granularity, where
        all heads drop the same tokens. A soft cap or a sliding window is not applied to the logits. Defaults: the authors' code;
        the paper writes lambda for mix.
    Options: window, queries, int >= 1; kernel, tokens, odd int >= 1; mix and threshold, shares, 0 <= x <= 1.
    """

    needs = frozenset({"queries"})
    window: int = 8
    kernel: int = 7
    mix: float = 0.07
    threshold: float = 0.5

    def __post_init__(self) -> None:
        if type(self.window) is not int or self.window < 1:  # True is an int to isinstance
            raise ValueError(f"window={self.window!r}: use a whole number >= 1")
        if type(self.kernel) is not int or self.kernel < 1 or self.kernel % 2 == 0:
            raise ValueError(f"kernel={self.kernel!r}: use an odd whole number >= 1")
        for name in ("mix", "threshold"):
            if isinstance(value := getattr(self, name), bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
                raise ValueError(f"{name}={value!r}: use a number, 0 <= x <= 1")

    def value(self, kv: LiveKV) -> Tensor:
        """[H, N]: mixed importance and non-redundancy."""
        inside = (kv.positions >= kv.query_positions[0])[:, None]  # [H, 1, N]
        logits = (kv.queries.float() @ kv.keys.float()[:, None].mT).amax(1) * kv.scale  # [H, W, N]
        votes = logits.masked_fill(inside, torch.finfo(logits.dtype).min).softmax(-1).masked_fill(inside, 0.0).mean(1)
        votes = F.max_pool1d(votes, self.kernel, stride=1, padding=self.kernel // 2)
        keys = F.normalize(kv.keys.float(), dim=-1)
        ids = torch.arange(keys.shape[1], device=keys.device)
        sums = []
        for rows in ids.split(ROWS_AT_ONCE):
            cos = (keys[:, rows] @ keys.mT).masked_fill(rows[:, None] == ids, 0.0)
            latest = (ids * (cos > self.threshold)).amax(-1, keepdim=True)
            sums.append(cos.scatter(-1, latest, 0.0).sum(1))
        redundancy = (torch.stack(sums).sum(0) / len(ids)).softmax(-1)
        return self.mix * votes - (1 - self.mix) * redundancy

    def evict_token(self, cache: CacheView) -> Tensor:
        return cache.evict_lowest(cache.score(self.value), last=self.window)
