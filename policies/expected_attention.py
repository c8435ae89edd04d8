"""What queries to come are expected to read, weighed by its values."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from vtoken_sdk.policy import CacheView, EvictionPolicy, LiveKV


def turn(x: Tensor) -> Tensor:
    """The second half of RoPE's rotation, x cos + turn(x) sin: (a, b) -> (-b, a)."""
    a, b = x.chunk(2, -1)
    return torch.cat((-b, a), -1)


@dataclass
class ExpectedAttention(EvictionPolicy):
    """Expected Attention (Devoto et al. 2025, arXiv 2510.00636): attention from queries that have not come yet, times the value's norm.

    Definition: the queries before RoPE, those of the first `sinks` positions left out, are taken as normal with mean m and covariance S
        (divided by n); RoPE is averaged over the next `horizon` positions and applied to both. A key k has the expected logit
        k m scale + k S k scale^2 / 2; these go through a softmax over the live tokens that are no sinks. A token's score is (that,
        averaged over the query heads of its KV head, + epsilon) * |v|. The first `sinks` tokens die last.
    Acts: whenever the run asks, after the prompt and in decode alike. Learns nothing.
    Reads: the last `window` queries, keys and values; takes [H, R, N, D] floats a layer. Folding: mean over the KV heads and layers of
        the group.
    Fidelity: adapted. The paper's statistics are of all queries of the prompt, these of the last `window`: the same while a request is
        no longer than that, and then exact at head granularity. A soft cap or a sliding window is not part of the expectation.
        One decision for all heads at token granularity. Defaults: the authors' (they too buffer 256 steps in decode);
        epsilon 0.01 is their leaderboard's.
    Options: window, queries, int >= 1; horizon, positions, int >= 1; sinks, tokens, int >= 0; epsilon, x >= 0, finite.
    """

    needs = frozenset({"queries"})
    window: int = 256
    horizon: int = 512
    sinks: int = 4
    epsilon: float = 0.0

    def __post_init__(self) -> None:
        for name, low in (("window", 1), ("horizon", 1), ("sinks", 0)):
            if type(value := getattr(self, name)) is not int or value < low:  # True is an int to isinstance
                raise ValueError(f"{name}={value!r}: use a whole number >= {low}")
        if isinstance(self.epsilon, bool) or not isinstance(self.epsilon, int | float) or not 0 <= self.epsilon < float("inf"):
            raise ValueError(f"epsilon={self.epsilon!r}: use a number, 0 <= x, finite")

    def expected(self, kv: LiveKV) -> Tensor:
        """[H, N]: the expected attention times the value's norm."""
        cos, sin = kv.rotary(kv.query_positions)  # [W, D]
        q = kv.queries.float()
        q = (q * cos - turn(q) * sin) / (cos**2 + sin**2)  # before RoPE; the divisor is 1 unless RoPE also scales
        counted = (kv.query_positions >= self.sinks)[:, None].float()  # [W, 1]
        n = counted.sum().clamp(min=1)
        ahead = kv.query_positions[-1] + torch.arange(1, self.horizon + 1, device=q.device)
        cos, sin = (x.mean(0) for x in kv.rotary(ahead))  # [D]
        q = q * cos + turn(q) * sin  # [H, R, W, D], rotated to the average position to come
        mean = (q * counted).sum(2, keepdim=True) / n  # [H, R, 1, D]
        off = (q - mean) * counted
        keys = kv.keys.float()[:, None]  # [H, 1, N, D]
        logits = (keys @ mean.mT)[..., 0] * kv.scale + (keys @ (off.mT @ off / n) * keys).sum(-1) * kv.scale**2 / 2  # [H, R, N]
        logits = logits.masked_fill(kv.positions[:, None] < self.sinks, torch.finfo(logits.dtype).min)
        return (logits.softmax(-1).mean(1) + self.epsilon) * kv.values.float().norm(dim=-1)

    def evict_token(self, cache: CacheView) -> Tensor:
        return cache.evict_lowest(cache.score(self.expected), first=self.sinks)
