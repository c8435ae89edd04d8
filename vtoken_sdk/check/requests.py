"""What requests look like to a tiny model: their queries, keys and values, made from a seed."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field

import torch
from torch import Tensor

LAYERS, HEADS, QUERY_HEADS, SIZE = 2, 2, 2, 8  # layers, KV heads, query heads of each, head size
SCALE = SIZE**-0.5


@dataclass(frozen=True, eq=False)
class Request:
    """All tokens that one request will have: `prompt` of them are prefilled, the others decoded one by one.

    queries: [L, H, R, N, D] and keys: [L, H, N, D], after RoPE; values: [L, H, N, D]. budget: tokens. seed: of the request.
    """

    prompt: int
    budget: int
    seed: int
    queries: Tensor = field(repr=False)
    keys: Tensor = field(repr=False)
    values: Tensor = field(repr=False)

    @property
    def total(self) -> int:
        return self.keys.shape[2]

    @functools.cached_property
    def weights(self) -> Tensor:
        """fp32 [L, H, R, N, N]: exp of each query's logits, 0 where causality hides the token: attention before it is normalized."""
        logits = torch.einsum("lhrqd,lhkd->lhrqk", self.queries.float(), self.keys.float()) * SCALE
        hidden = torch.ones(self.total, self.total, dtype=torch.bool).triu(1)
        logits = logits.masked_fill(hidden, -torch.inf)
        return (logits - logits.amax(-1, keepdim=True)).exp()

    def attention(self, at: int, count: int, live: Tensor) -> Tensor:
        """fp32 [L, H, at + count]: mass from the queries at `at` .. at + count - 1, mean over R. live: bool [L, H, N], before they came."""
        seen = live[..., : at + count].clone()
        seen[..., at:] = True
        weights = self.weights[..., at : at + count, : at + count] * seen[:, :, None, None]
        return (weights / weights.sum(-1, keepdim=True)).mean(2).sum(2)

    def future(self, length: int) -> Tensor:
        """fp32 [L, H, N]: mass from the queries at positions >= length, if nothing ever died."""
        weights = self.weights[..., length:, :]
        return (weights / weights.sum(-1, keepdim=True)).mean(2).sum(2)


def rotary(positions: Tensor) -> tuple[Tensor, Tensor]:
    """int64 [n] -> RoPE's (cos, sin), fp32 [n, D]."""
    frequencies = 10_000.0 ** (-torch.arange(0, SIZE, 2, device=positions.device) / SIZE)
    angles = (positions[:, None] * frequencies).repeat(1, 2)
    return angles.cos(), angles.sin()


def rotate(x: Tensor) -> Tensor:
    """RoPE over [..., N, D]."""
    cos, sin = rotary(torch.arange(x.shape[-2]))
    a, b = x.chunk(2, -1)
    return x * cos + torch.cat((-b, a), -1) * sin


def make_request(seed: int, prompt: int, new: int, budget: int, *, repeated: bool = False) -> Request:
    """A request of random tokens, or of one `repeated` token."""
    g = torch.Generator().manual_seed(seed)
    total = prompt + new
    queries = 3 * torch.randn(LAYERS, HEADS, QUERY_HEADS, total, SIZE, generator=g)  # 3: some tokens matter, most do not
    keys, values = torch.randn(2, LAYERS, HEADS, total, SIZE, generator=g)
    if repeated:
        queries, keys, values = (x[..., :1, :].expand_as(x) for x in (queries, keys, values))
    return Request(prompt, budget, (seed << 33) + 7, rotate(queries), rotate(keys), values.clone())  # seeds need more than 32 bits


@functools.cache
def ordinary_requests() -> tuple[Request, ...]:
    """Five requests: of one token, of three and within its budget, of some dozens, and of 300 tokens, longer than most windows."""
    shapes = ((1, 4, 2), (3, 4, 100), (17, 4, 6), (33, 4, 11), (300, 2, 80))
    return tuple(make_request(i, prompt, new, budget) for i, (prompt, new, budget) in enumerate(shapes))
