"""Decode attention over the slot map, split over the live tokens: the Triton twin of `attention.decode_attention`.

B rows, Hq query heads, H KV heads, R = Hq / H, D head size, W entries of a slot map. Two launches a layer: `_split` gives each
program a range of one row's live tokens for one KV head, `_merge` joins the ranges and adds up the attention mass. Grids depend on
B alone and ranges on the live counts on the device, so a captured graph serves every length.

The mass needs no second look at the keys: `_split` leaves each probability relative to the running maximum of its head, which
`_merge` scales by what the maximum turned out to be worth.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from . import capability

LOG2E = 1.4426950408889634
NOT_BAD = 2**31 - 1  # what `first_bad` holds before any layer went wrong


@triton.jit
def _tanh(x):
    e = tl.exp2(-2.8853900817779268 * tl.abs(x))
    y = (1 - e) / (1 + e)
    return tl.where(x < 0, -y, y)


@triton.jit
def _split(
    query, keys, values, slot_map, rows, n_live, first, out, lse, probs, peaks,
    scale, softcap,
    query_row, query_head, slot_stride, head_stride, map_row, map_head, live_row, live_head, probs_row, peaks_row,
    R: tl.constexpr, R_PAD: tl.constexpr, D: tl.constexpr, D_PAD: tl.constexpr, N: tl.constexpr,
    WINDOW: tl.constexpr, SOFTCAP: tl.constexpr, MASS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    split, h, b = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    splits, heads = tl.num_programs(0), tl.num_programs(1)
    row = tl.load(rows + b).to(tl.int64)
    n = tl.load(n_live + row * live_row + h * live_head).to(tl.int32)
    begin = 0
    if WINDOW:
        begin = tl.load(first + b).to(tl.int32)
    origin = begin // N * N
    each = tl.cdiv(tl.cdiv(n - origin, splits), N) * N
    low = origin + split * each
    high = tl.minimum(low + each, n)
    r = tl.arange(0, R_PAD)
    d = tl.arange(0, D_PAD)
    is_head = r < R
    part = ((b * heads + h).to(tl.int64) * R + r) * splits + split
    if low >= high:
        tl.store(lse + part, tl.full((R_PAD,), float("-inf"), tl.float32), mask=is_head)
        return
    q = tl.load(
        query + b.to(tl.int64) * query_row + (h * R + r)[:, None] * query_head + d[None, :],
        mask=is_head[:, None] & (d < D)[None, :],
        other=0.0,
    )
    entries = slot_map + row * map_row + h.to(tl.int64) * map_head
    base = h.to(tl.int64) * head_stride
    peak = tl.full((R_PAD,), float("-inf"), tl.float32)
    total = tl.zeros((R_PAD,), tl.float32)
    acc = tl.zeros((R_PAD, D_PAD), tl.float32)
    for start in range(low, high, N):
        i = start + tl.arange(0, N)
        seen = i < high
        if WINDOW:
            seen = seen & (i >= begin)
        slot = tl.load(entries + i, mask=seen, other=0).to(tl.int64)
        at = base + slot[:, None] * slot_stride + d[None, :]
        if D == D_PAD:
            k = tl.load(keys + at, mask=seen[:, None], other=0.0)
            v = tl.load(values + at, mask=seen[:, None], other=0.0)
        else:
            k = tl.load(keys + at, mask=seen[:, None] & (d < D)[None, :], other=0.0)
            v = tl.load(values + at, mask=seen[:, None] & (d < D)[None, :], other=0.0)
        s = tl.dot(q, tl.trans(k), input_precision=PRECISION) * scale
        if SOFTCAP:
            s = _tanh(s / softcap) * softcap
        s = tl.where(seen[None, :], s * 1.4426950408889634, float("-inf"))
        now = tl.maximum(peak, tl.max(s, 1))
        safe = tl.where(now == float("-inf"), 0.0, now)
        p = tl.exp2(s - safe[:, None])
        shrink = tl.exp2(peak - safe)
        total = total * shrink + tl.sum(p, 1)
        acc = acc * shrink[:, None]
        acc = tl.dot(p.to(v.dtype), v, acc, input_precision=PRECISION)
        peak = now
        if MASS:
            head = (h * R + r).to(tl.int64)
            tl.store(
                probs + b.to(tl.int64) * heads * R * probs_row + head[:, None] * probs_row + i[None, :],
                p.to(probs.dtype.element_ty),
                mask=is_head[:, None] & (i < high)[None, :],
            )
            tl.store(peaks + b.to(tl.int64) * heads * R * peaks_row + head * peaks_row + start // N, safe, mask=is_head)
    tl.store(lse + part, peak + tl.log2(total), mask=is_head)
    tl.store(out + part[:, None] * D + d[None, :], acc / total[:, None], mask=is_head[:, None] & (d < D)[None, :])


@triton.jit(do_not_specialize=["layer"])
def _merge(
    parts, lse, probs, peaks, rows, n_live, first, out, mass, first_bad, layer,
    live_row, live_head, probs_row, peaks_row, mass_row, mass_head, share, splits,
    H: tl.constexpr, R: tl.constexpr, D: tl.constexpr, D_PAD: tl.constexpr, N: tl.constexpr, SPLITS_PAD: tl.constexpr,
    GROUP: tl.constexpr, HEADS: tl.constexpr, MASS_PROGRAMS: tl.constexpr,
    WINDOW: tl.constexpr, MASS: tl.constexpr, ADD: tl.constexpr,
):  # fmt: skip
    """Programs 0 .. Hq - 1 of a row merge the outputs of one query head; the others add up the mass of one group of heads.

    GROUP: KV heads that share one slot map; share: the weight of one query head in its group's mass.
    """
    pid, b = tl.program_id(0), tl.program_id(1).to(tl.int64)
    if pid < H * R:
        d = tl.arange(0, D_PAD)
        first_part = (b * H * R + pid) * splits
        peak = tl.full((), float("-inf"), tl.float32)
        total = tl.zeros((), tl.float32)
        acc = tl.zeros((D_PAD,), tl.float32)
        for start in range(0, splits, 16):
            s = start + tl.arange(0, 16)
            x = tl.load(lse + first_part + s, mask=s < splits, other=float("-inf"))
            used = (s < splits) & (x != float("-inf"))  # a NaN is used: it must show
            y = tl.load(parts + (first_part + s)[:, None] * D + d[None, :], mask=used[:, None] & (d < D)[None, :], other=0.0)
            now = tl.maximum(peak, tl.max(x, 0))
            safe = tl.where(now == float("-inf"), 0.0, now)
            weight = tl.exp2(x - safe)
            shrink = tl.exp2(peak - safe)
            total = total * shrink + tl.sum(weight, 0)
            acc = acc * shrink + tl.sum(weight[:, None] * y, 0)
            peak = now
        result = acc / tl.where(total == 0.0, 1.0, total)
        result = tl.where(total == total, result, float("nan"))
        wrong = tl.where(d < D, (result != result) | (tl.abs(result) == float("inf")), False)
        if tl.max(wrong.to(tl.int32), 0) > 0:
            tl.atomic_min(first_bad + b, layer)
        tl.store(out + (b * H * R + pid) * D + d, result.to(out.dtype.element_ty), mask=d < D)
    elif MASS:
        group = (pid - H * R) // MASS_PROGRAMS
        s = tl.arange(0, SPLITS_PAD)
        row = tl.load(rows + b).to(tl.int64)
        n = tl.load(n_live + row * live_row + group * GROUP * live_head).to(tl.int32)
        begin = 0
        if WINDOW:
            begin = tl.load(first + b).to(tl.int32)
        where = mass + b * mass_row + group.to(tl.int64) * mass_head
        # Every head's weight of a block of tokens is 2^(its running maximum there - its log-sum-exp).
        g = tl.arange(0, HEADS)
        for block in range((pid - H * R) % MASS_PROGRAMS, tl.cdiv(n, N), MASS_PROGRAMS):
            i = block * N + tl.arange(0, N)
            seen = (i < n) & (i >= begin)
            received = tl.zeros((N,), tl.float32)
            for first_head in tl.static_range(0, GROUP * R, HEADS):
                real = first_head + g < GROUP * R
                head = (b * H + group * GROUP) * R + first_head + g
                p = tl.load(probs + head[:, None] * probs_row + i[None, :], mask=real[:, None] & seen[None, :], other=0.0).to(tl.float32)
                top = tl.load(peaks + head * peaks_row + block, mask=real & (block >= begin // N), other=float("-inf"))
                x = tl.load(lse + head[:, None] * splits + s[None, :], mask=real[:, None] & (s < splits)[None, :], other=float("-inf"))
                peak = tl.max(x, 1)
                safe = tl.where(peak == float("-inf"), 0.0, peak)
                whole = safe + tl.log2(tl.maximum(tl.sum(tl.exp2(x - safe[:, None]), 1), 1e-37))
                received += tl.sum(p * tl.exp2(top - whole)[:, None], 0)
            received *= share
            if ADD:
                received += tl.load(where + i, mask=i < n, other=0.0)
            tl.store(where + i, received, mask=i < n)


@dataclass(frozen=True)
class Tuning:
    """How `_split` is launched: tokens a step, warps, pipeline stages, and programs wanted on the device."""

    tokens: int
    warps: int
    stages: int
    programs: int


def tuning(head_dim: int, itemsize: int, programs: int, made_for: tuple[int, int] | None, *, mass: bool) -> Tuning:
    """programs: rows times KV heads. Hopper's were measured on an H200; the others follow from shared memory (100 KB on Ada)."""
    if made_for is None:
        return Tuning(32, 4, 1, 2 * programs)  # interpreted, one program after the other
    row = triton.next_power_of_2(head_dim) * itemsize
    if row > 256:
        return Tuning(32 if row <= 512 else 16, 4, 2, 2 * 132)
    if made_for[0] != 9:
        return Tuning(32, 4, 3, 2 * 108)
    if mass:  # the larger the tile, the fewer maxima to keep
        return Tuning(128, 4, 2, 8 * 132)
    # With as many pairs as programs, two splits each still even out rows of unlike lengths.
    return Tuning(32, 4, 6, 2 * 132) if programs < 2 * 132 else Tuning(64, 4, 4, 2 * programs)


class DecodeScratch:
    """Buffers between the two launches, for one batch size: allocated once, reused by every layer.

    parts: fp32 [B, Hq, SPLITS, D]. lse: fp32 [B, Hq, SPLITS], base 2. probs: [B, Hq, W], fp16 for half-precision caches (a
    probability's error stays below 2^-11 of it, and below 2^-24 of the largest), fp32 for fp32. peaks: fp32 [B, Hq, W / tokens].
    """

    def __init__(
        self, batch: int, heads: int, group: int, head_dim: int, width: int, dtype: torch.dtype, device: torch.device, *, mass: bool
    ) -> None:
        made_for, programs = capability(device), batch * heads
        self.tuning = tuning(head_dim, dtype.itemsize, programs, made_for, mass=mass)
        self.splits = max(1, min(64, triton.cdiv(self.tuning.programs, programs)))
        query_heads = heads * group
        self.parts = torch.empty(batch, query_heads, self.splits, head_dim, device=device)
        self.lse = torch.empty(batch, query_heads, self.splits, device=device)
        # A power of two, and none where nobody reads it: each value is a kernel of its own to compile.
        self.mass_programs = max(16, min(256, triton.next_power_of_2(triton.cdiv(1024, batch)))) if mass and made_for is not None else 2
        kept = torch.float32 if dtype == torch.float32 else torch.float16
        shape = (batch, query_heads, width) if mass else (1, 1, 1)
        self.probs = torch.empty(shape, dtype=kept, device=device)
        self.peaks = torch.empty((batch, query_heads, triton.cdiv(width, self.tuning.tokens)) if mass else (1, 1, 1), device=device)


def decode_attention(
    query: Tensor, keys: Tensor, values: Tensor, slot_map: Tensor, rows: Tensor, n_live: Tensor, scratch: DecodeScratch, out: Tensor,
    first_bad: Tensor, layer: int, scale: float, softcap: float | None = None, first: Tensor | None = None, mass: Tensor | None = None, *,
    add: bool = True,
) -> None:  # fmt: skip
    """One query a row over its live tokens, for one layer.

    query: [B, Hq, D], last axis dense. keys, values: [n_slots, H, D], last axis dense. slot_map: int32 [R + 1, W], or [R + 1, H, W]
    with a map a KV head. rows: int64 [B]. n_live: int64 [R + 1] or [R + 1, H]. first: int64 [B], the first entry that is seen.
    Writes out, [B, Hq, D] dense (zeros for a row without tokens), and mass, fp32 [B, W] or [B, H, W]: the mean over the query heads
    that share a map, added to what is there or, with add=False, in its place up to n_live. first_bad: int32 [B] takes the
    lowest layer whose output is not finite.
    """
    batch, query_heads, head_dim = query.shape
    heads = keys.shape[1]
    group = query_heads // heads
    maps = 1 if slot_map.dim() == 2 else slot_map.shape[1]
    t = scratch.tuning
    r_pad = max(16, triton.next_power_of_2(group))
    d_pad = triton.next_power_of_2(head_dim)
    map_head = slot_map.stride(1) if maps > 1 else 0
    live_head = n_live.stride(1) if n_live.dim() == 2 else 0
    want = mass is not None
    _split[(scratch.splits, heads, batch)](
        query, keys, values, slot_map, rows, n_live, first, scratch.parts, scratch.lse, scratch.probs, scratch.peaks,
        scale, softcap or 1.0,
        query.stride(0), query.stride(1), keys.stride(0), keys.stride(1), slot_map.stride(0), map_head, n_live.stride(0), live_head,
        scratch.probs.stride(1), scratch.peaks.stride(1),
        R=group, R_PAD=r_pad, D=head_dim, D_PAD=d_pad, N=t.tokens, WINDOW=first is not None,
        SOFTCAP=softcap is not None, MASS=want, PRECISION="ieee" if query.dtype == torch.float32 else "tf32",
        num_warps=t.warps, num_stages=t.stages,
    )  # fmt: skip
    _merge[(query_heads + (maps * scratch.mass_programs if want else 0), batch)](
        scratch.parts, scratch.lse, scratch.probs, scratch.peaks, rows, n_live, first, out, mass, first_bad, layer,
        n_live.stride(0), live_head, scratch.probs.stride(1), scratch.peaks.stride(1),
        mass.stride(0) if mass is not None else 0, mass.stride(1) if mass is not None and mass.dim() == 3 else 0, maps / query_heads,
        scratch.splits,
        H=heads, R=group, D=head_dim, D_PAD=d_pad, N=t.tokens, SPLITS_PAD=max(16, triton.next_power_of_2(scratch.splits)),
        GROUP=heads // maps, HEADS=min(32, triton.next_power_of_2(query_heads // maps)), MASS_PROGRAMS=scratch.mass_programs,
        WINDOW=first is not None, MASS=want, ADD=add,
        num_warps=4,
    )  # fmt: skip
