"""The greedy choice, and whether all of a row's logits are finite: one pass over [B, V]. Twin of `StepContext.choose`."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from .decode_attention import NOT_BAD

COLUMNS = 8192  # of one program


@triton.jit
def _best(logits, peaks, places, row_stride, n, parts, C: tl.constexpr):
    """Of one part of a row: the largest number, its first place, and NaN in place of it where one is not finite."""
    part, b = tl.program_id(0), tl.program_id(1)
    c = part * C + tl.arange(0, C)
    x = tl.load(logits + b.to(tl.int64) * row_stride + c, mask=c < n, other=float("-inf")).to(tl.float32)
    wrong = (c < n) & ((x != x) | (tl.abs(x) == float("inf")))
    peak = tl.max(x, 0)
    place = tl.min(tl.where(x == peak, c, n), 0)
    bad = tl.max(wrong.to(tl.int32), 0) > 0
    tl.store(peaks + b * parts + part, tl.where(bad, float("nan"), peak))
    tl.store(places + b * parts + part, place)


@triton.jit
def _pick(peaks, places, first_bad, chosen, bad_layer, parts, n, layers, NOT_BAD: tl.constexpr, P: tl.constexpr):
    b = tl.program_id(0)
    p = tl.arange(0, P)
    peak = tl.load(peaks + b * parts + p, mask=p < parts, other=float("-inf"))
    place = tl.load(places + b * parts + p, mask=p < parts, other=0)
    wrong = tl.max((peak != peak).to(tl.int32), 0) > 0
    peak = tl.where(peak != peak, float("-inf"), peak)
    best = tl.min(tl.where((p < parts) & (peak == tl.max(peak, 0)), place, n), 0)
    tl.store(chosen + b, tl.minimum(best, n - 1).to(tl.int64))
    layer = tl.load(first_bad + b)
    tl.store(bad_layer + b, tl.where(layer != NOT_BAD, layer, tl.where(wrong, layers, -1)).to(tl.int64))


def choose(logits: Tensor, first_bad: Tensor, layers: int) -> tuple[Tensor, Tensor]:
    """logits: [B, V], last axis dense; first_bad: int32 [B]. Returns, int64 [B] each, the lowest index of the largest logit, and the
    first layer that went wrong: `layers` stands for the head itself, -1 for none. What is chosen in a row that went wrong means nothing.
    """
    batch, n = logits.shape
    parts = triton.cdiv(n, COLUMNS)
    peaks = torch.empty(batch, parts, device=logits.device)
    places = torch.empty(batch, parts, dtype=torch.int32, device=logits.device)
    chosen, bad_layer = (torch.empty(batch, dtype=torch.int64, device=logits.device) for _ in range(2))
    _best[(parts, batch)](logits, peaks, places, logits.stride(0), n, parts, C=COLUMNS, num_warps=8)
    _pick[(batch,)](
        peaks, places, first_bad, chosen, bad_layer, parts, n, layers, NOT_BAD=NOT_BAD, P=triton.next_power_of_2(parts), num_warps=1
    )
    return chosen, bad_layer
