"""Choosing the next token. Random draws are a pure function of (seed, position, token id): neighbors and order change nothing."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from .request import SamplingParams
from .transfer import to_device

_MASK = (1 << 32) - 1


def _mix(x: Tensor) -> Tensor:
    """A 32-bit integer hash (Wellons' lowbias32) on int64 lanes."""
    x = x & _MASK
    x = ((x ^ (x >> 16)) * 0x21F0AAAD) & _MASK
    x = ((x ^ (x >> 15)) * 0x735A2D97) & _MASK
    return x ^ (x >> 15)


def uniform(seeds: Tensor, positions: Tensor, n: int) -> Tensor:
    """fp64 [B, n] in (0, 1), for int64 seeds and positions [B]."""
    row = _mix(_mix(seeds ^ _mix(seeds >> 32)) ^ _mix(positions + 0x9E3779B9))
    bits = _mix(row[:, None] ^ _mix(torch.arange(n, device=seeds.device) + 0x85EBCA6B))
    return (bits.double() + 0.5) / 2**32


def _filter(logits: Tensor, top_k: int, top_p: float) -> Tensor:
    """Hide what top-k and top-p leave out, 1-D. As usual top-p is taken over what top-k left, and keeps at least one token."""
    if top_k and top_k < len(logits):
        logits = logits.masked_fill(logits < logits.topk(top_k).values[-1], -torch.inf)
    if top_p < 1:
        ordered, index = logits.sort(descending=True)
        before = ordered.softmax(-1).cumsum(-1) - ordered.softmax(-1)
        logits = logits.scatter(0, index, ordered.masked_fill(before >= top_p, -torch.inf))
    return logits


def sample(logits: Tensor, params: Sequence[SamplingParams], seeds: Tensor, positions: Tensor) -> Tensor:
    """logits: fp32 [B, V]; seeds, positions: int64 [B], the position that the new token will have. Returns int64 [B]."""
    greedy = logits.argmax(-1)
    random_rows = [i for i, p in enumerate(params) if p.draws]
    if not random_rows:
        return greedy
    rows = to_device(random_rows, logits.device)
    shifted = logits[rows] - logits[rows].amax(1, keepdim=True)  # a temperature near 0 would overflow what is above 0
    chosen = torch.stack(
        [_filter(x / params[i].temperature, params[i].top_k, params[i].top_p) for x, i in zip(shifted, random_rows, strict=True)]
    )
    gumbel = -(-uniform(seeds[rows], positions[rows], logits.shape[1]).log()).log()
    return greedy.index_copy(0, rows, (chosen.double() + gumbel).argmax(-1))
