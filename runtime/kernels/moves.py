"""Copies of a compaction, all layers in one launch: the Triton twin of `KVCache.copy_slots`."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _move(keys, values, source, target, count, layer_stride, slot_stride, C: tl.constexpr, C_PAD: tl.constexpr, T: tl.constexpr):
    """One program: T tokens of one layer. The targets are no sources, so order does not matter."""
    n = tl.load(count).to(tl.int32)
    i = tl.program_id(0) * T + tl.arange(0, T)
    if tl.program_id(0) * T >= n:
        return
    c = tl.arange(0, C_PAD)
    base = tl.program_id(1).to(tl.int64) * layer_stride
    planned = i < n
    read = base + tl.load(source + i, mask=planned, other=0).to(tl.int64) * slot_stride
    write = base + tl.load(target + i, mask=planned, other=0).to(tl.int64) * slot_stride
    if C == C_PAD:
        inside = tl.broadcast_to(planned[:, None], (T, C_PAD))
    else:
        inside = planned[:, None] & (c < C)[None, :]
    k = tl.load(keys + read[:, None] + c[None, :], mask=inside)
    v = tl.load(values + read[:, None] + c[None, :], mask=inside)
    tl.store(keys + write[:, None] + c[None, :], k, mask=inside)
    tl.store(values + write[:, None] + c[None, :], v, mask=inside)


def move_tokens(keys: Tensor, values: Tensor, source: Tensor, target: Tensor, count: Tensor, *, tokens: int = 2, warps: int = 8) -> None:
    """keys, values: [L, n_slots, H, D], dense. source, target: int64 [cap] slots, none in both; the first `count`, int64 [], move."""
    layers, _, heads, head_dim = keys.shape
    columns = heads * head_dim
    _move[(triton.cdiv(len(source), tokens), layers)](
        keys, values, source, target, count, keys.stride(0), keys.stride(1),
        C=columns, C_PAD=triton.next_power_of_2(columns), T=tokens, num_warps=warps,
    )  # fmt: skip
