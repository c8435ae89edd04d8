"""What lies between the matrix products of a decoder layer, each in one launch."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _add_norm(x, residual, weight, out, epsilon, x_row, C: tl.constexpr, C_PAD: tl.constexpr, ADD: tl.constexpr):
    t = tl.program_id(0).to(tl.int64)
    c = tl.arange(0, C_PAD)
    inside = c < C
    y = tl.load(x + t * x_row + c, mask=inside, other=0.0)
    if ADD:
        y = (y.to(tl.float32) + tl.load(residual + t * C + c, mask=inside, other=0.0).to(tl.float32)).to(y.dtype)
    tl.store(residual + t * C + c, y, mask=inside)
    z = y.to(tl.float32)
    scale = tl.rsqrt(tl.sum(z * z, 0) / C + epsilon)
    w = tl.load(weight + c, mask=inside, other=0.0)
    tl.store(out + t * C + c, (z * scale).to(y.dtype) * w, mask=inside)


def add_norm(x: Tensor, residual: Tensor, weight: Tensor, epsilon: float, *, add: bool) -> Tensor:
    """residual += x (or residual = x), rounded to its dtype; returns its RMS norm times weight. x, residual: [T, C]; weight: [C]."""
    tokens, columns = x.shape
    out = torch.empty_like(residual)
    padded = triton.next_power_of_2(columns)
    _add_norm[(tokens,)](
        x, residual, weight, out, epsilon, x.stride(0), C=columns, C_PAD=padded, ADD=add, num_warps=max(1, min(16, padded // 512))
    )
    return out


@triton.jit
def _silu_mul(x, out, C: tl.constexpr, N: tl.constexpr):
    t = tl.program_id(1).to(tl.int64)
    c = tl.program_id(0) * N + tl.arange(0, N)
    gate = tl.load(x + t * 2 * C + c, mask=c < C, other=0.0)
    up = tl.load(x + t * 2 * C + C + c, mask=c < C, other=0.0)
    g = gate.to(tl.float32)
    tl.store(out + t * C + c, (g / (1 + tl.exp(-g))).to(gate.dtype) * up, mask=c < C)


def silu_mul(x: Tensor) -> Tensor:
    """[T, 2 C] dense -> silu of the first half times the second, [T, C]."""
    tokens, columns = x.shape[0], x.shape[1] // 2
    out = x.new_empty(tokens, columns)
    block = min(2048, triton.next_power_of_2(columns))
    # Tokens on the second axis would end at 65,535.
    for start in range(0, tokens, 32768):
        part = x[start : start + 32768]
        _silu_mul[(triton.cdiv(columns, block), len(part))](part, out[start:], C=columns, N=block, num_warps=4)
    return out
