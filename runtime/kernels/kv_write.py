"""Rotary embedding, QK norm and the write of new keys and values, in one launch; and the write alone.

B * n new tokens in one list of T; Hq query heads, H KV heads, D head size.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _write(keys, values, pool_k, pool_v, slots, key_b, key_h, key_t, val_b, val_h, val_t, slot_stride, head_stride,
           n, H: tl.constexpr, D: tl.constexpr, H_PAD: tl.constexpr, D_PAD: tl.constexpr):  # fmt: skip
    t = tl.program_id(0)
    b, j = (t // n).to(tl.int64), (t % n).to(tl.int64)
    slot = tl.load(slots + t).to(tl.int64)
    h, d = tl.arange(0, H_PAD), tl.arange(0, D_PAD)
    inside = (h < H)[:, None] & (d < D)[None, :]
    k = tl.load(keys + b * key_b + h[:, None] * key_h + j * key_t + d[None, :], mask=inside)
    v = tl.load(values + b * val_b + h[:, None] * val_h + j * val_t + d[None, :], mask=inside)
    at = slot * slot_stride + h[:, None] * head_stride + d[None, :]
    tl.store(pool_k + at, k.to(pool_k.dtype.element_ty), mask=inside)
    tl.store(pool_v + at, v.to(pool_v.dtype.element_ty), mask=inside)


def write_kv(keys: Tensor, values: Tensor, pool_k: Tensor, pool_v: Tensor, slots: Tensor) -> None:
    """keys, values: [B, H, n, D], last axis dense. pool_k, pool_v: [n_slots, H, D]. slots: int64 [B, n], dense."""
    batch, heads, n, head_dim = keys.shape
    _write[(batch * n,)](
        keys, values, pool_k, pool_v, slots, keys.stride(0), keys.stride(1), keys.stride(2), values.stride(0), values.stride(1),
        values.stride(2), pool_k.stride(0), pool_k.stride(1), n,
        H=heads, D=head_dim, H_PAD=triton.next_power_of_2(heads), D_PAD=triton.next_power_of_2(head_dim), num_warps=4,
    )  # fmt: skip


@triton.jit
def _rotary(positions, frequencies, cos, sin, scaling, HALF: tl.constexpr, HALF_PAD: tl.constexpr):
    t = tl.program_id(0).to(tl.int64)
    half = tl.arange(0, HALF_PAD)
    real = half < HALF
    angle = tl.load(positions + t).to(tl.float32) * tl.load(frequencies + half, mask=real, other=0.0)
    tl.store(cos + t * HALF + half, (tl.cos(angle) * scaling).to(cos.dtype.element_ty), mask=real)
    tl.store(sin + t * HALF + half, (tl.sin(angle) * scaling).to(sin.dtype.element_ty), mask=real)


def rotary_table(positions: Tensor, frequencies: Tensor, scaling: float, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """positions: int64 [T]; frequencies: fp32 [D / 2]. Returns cos and sin, [T, D / 2] in `dtype`, as transformers rounds them."""
    cos = torch.empty(len(positions), len(frequencies), dtype=dtype, device=positions.device)
    sin = torch.empty_like(cos)
    half = len(frequencies)
    _rotary[(len(positions),)](positions, frequencies, cos, sin, scaling, HALF=half, HALF_PAD=triton.next_power_of_2(half), num_warps=1)
    return cos, sin


@triton.jit
def _rotated(base, h, half, H, cos, sin, weight, epsilon, D: tl.constexpr, HALF: tl.constexpr, NORM: tl.constexpr, head_stride):
    """The two halves of every head of one token, normed and rotated: fp32 [heads, HALF] each."""
    inside = (h < H)[:, None] & (half < D // 2)[None, :]
    at = base + h[:, None] * head_stride + half[None, :]
    raw = tl.load(at, mask=inside, other=0.0)
    a = raw.to(tl.float32)
    b = tl.load(at + D // 2, mask=inside, other=0.0).to(tl.float32)
    if NORM:
        scale = tl.rsqrt((tl.sum(a * a, 1) + tl.sum(b * b, 1)) / D + epsilon)[:, None]
        w0 = tl.load(weight + half, mask=half < D // 2, other=0.0).to(tl.float32)
        w1 = tl.load(weight + D // 2 + half, mask=half < D // 2, other=0.0).to(tl.float32)
        a = ((a * scale).to(raw.dtype).to(tl.float32) * w0[None, :]).to(raw.dtype).to(tl.float32)
        b = ((b * scale).to(raw.dtype).to(tl.float32) * w1[None, :]).to(raw.dtype).to(tl.float32)
    return a * cos[None, :] - b * sin[None, :], b * cos[None, :] + a * sin[None, :]


@triton.jit
def _rope_write(
    qkv, cosines, sines, slots, q_weight, k_weight, query, pool_k, pool_v, epsilon, token_stride, slot_stride,
    HQ: tl.constexpr, H: tl.constexpr, D: tl.constexpr, HQ_PAD: tl.constexpr, H_PAD: tl.constexpr, HALF: tl.constexpr,
    NORM: tl.constexpr,
):  # fmt: skip
    t = tl.program_id(0).to(tl.int64)
    half = tl.arange(0, HALF)
    real = half < D // 2
    kind: tl.constexpr = query.dtype.element_ty
    cos = tl.load(cosines + t * (D // 2) + half, mask=real, other=0.0).to(tl.float32)
    sin = tl.load(sines + t * (D // 2) + half, mask=real, other=0.0).to(tl.float32)
    hq, h = tl.arange(0, HQ_PAD), tl.arange(0, H_PAD)
    row = qkv + t * token_stride
    a, b = _rotated(row, hq, half, HQ, cos, sin, q_weight, epsilon, D, HALF, NORM, D)
    inside = (hq < HQ)[:, None] & real[None, :]
    at = query + (t * HQ + hq)[:, None] * D + half[None, :]
    tl.store(at, a.to(kind), mask=inside)
    tl.store(at + D // 2, b.to(kind), mask=inside)
    a, b = _rotated(row + HQ * D, h, half, H, cos, sin, k_weight, epsilon, D, HALF, NORM, D)
    inside = (h < H)[:, None] & real[None, :]
    where = tl.load(slots + t).to(tl.int64) * slot_stride + h[:, None] * D + half[None, :]
    tl.store(pool_k + where, a.to(kind), mask=inside)
    tl.store(pool_k + where + D // 2, b.to(kind), mask=inside)
    value = row + (HQ + H) * D + h[:, None] * D + half[None, :]
    tl.store(pool_v + where, tl.load(value, mask=inside), mask=inside)
    tl.store(pool_v + where + D // 2, tl.load(value + D // 2, mask=inside), mask=inside)


def rope_and_write(
    qkv: Tensor, cos: Tensor, sin: Tensor, slots: Tensor, query: Tensor, pool_k: Tensor, pool_v: Tensor,
    norms: tuple[Tensor, Tensor, float] | None = None,
) -> None:  # fmt: skip
    """qkv: [T, (Hq + 2 H) * D], what the fused projection gave. cos, sin: [T, D / 2], see `rotary_table`. slots: int64 [T].

    Norms queries and keys where the model does (weights [D] of both, epsilon), rotates them, and writes query, [T, Hq, D], and the
    pool, [n_slots, H, D].
    """
    tokens, query_heads, head_dim = query.shape
    heads = pool_k.shape[1]
    q_weight, k_weight, epsilon = norms if norms is not None else (None, None, 0.0)
    _rope_write[(tokens,)](
        qkv, cos, sin, slots, q_weight, k_weight, query, pool_k, pool_v, epsilon, qkv.stride(0), pool_k.stride(0),
        HQ=query_heads, H=heads, D=head_dim, HQ_PAD=triton.next_power_of_2(query_heads), H_PAD=triton.next_power_of_2(heads),
        HALF=triton.next_power_of_2(head_dim // 2), NORM=norms is not None, num_warps=4,
    )  # fmt: skip
