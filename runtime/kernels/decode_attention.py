"""Decode attention over the slot map, split over the live tokens: the Triton twin of `attention.decode_attention`.

B rows, Hq query heads, H KV heads, R = Hq / H, D head size, W entries of a slot map. `_attend` gives each program a range of one
row's live tokens for one KV head, and the last to be ready of a row's ranges joins them. Grids depend on B alone and ranges on the live
counts on the device, so a captured graph serves every length.

The mass needs no second look at the keys: `_attend` leaves each probability relative to the running maximum of its head, which a
second launch, `_mass`, scales by what the maximum turned out to be worth.
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


@triton.jit(do_not_specialize=["layer", "blocks"])
def _attend(
    query, keys, values, slot_map, rows, n_live, first, parts, lse, probs, peaks, whole, arrived, out, first_bad, layer,
    scale, softcap,
    query_row, query_head, slot_stride, head_stride, map_row, map_head, live_row, live_head, blocks,
    R: tl.constexpr, R_PAD: tl.constexpr, R_JOIN: tl.constexpr, D: tl.constexpr, D_PAD: tl.constexpr, N: tl.constexpr, S: tl.constexpr,
    WINDOW: tl.constexpr, SOFTCAP: tl.constexpr, MASS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """A range of one row's live tokens, for one KV head; the last to be ready of a row's ranges joins them all.

    S: ranges that are joined at once.
    """
    split, h, b = tl.program_id(0), tl.program_id(1), tl.program_id(2).to(tl.int64)
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
    d = tl.arange(0, D_PAD)
    r = tl.arange(0, R_PAD)
    is_head = r < R
    part = ((b * heads + h) * R + r) * splits + split
    q = tl.load(query + b * query_row + (h * R + r)[:, None] * query_head + d[None, :], mask=is_head[:, None] & (d < D)[None, :], other=0.0)
    entries = slot_map + row * map_row + h.to(tl.int64) * map_head
    base = h.to(tl.int64) * head_stride
    peak = tl.full((R_PAD,), float("-inf"), tl.float32)
    total = tl.zeros((R_PAD, N), tl.float32)
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
        total = total * shrink[:, None] + p
        acc = acc * shrink[:, None]
        acc = tl.dot(p.to(v.dtype), v, acc, input_precision=PRECISION)
        peak = now
        if MASS:
            # Whole blocks, so that a thread writes 16 bytes at once: a mask by token would make them single numbers.
            line = ((b * blocks + start // N) * heads + h) * R + r
            at = probs + line[:, None] * N + tl.arange(0, N)[None, :]
            tl.store(at, p.to(probs.dtype.element_ty), mask=is_head[:, None], eviction_policy="evict_last")
            tl.store(peaks + line, safe, mask=is_head)
    total = tl.sum(total, 1)
    total = tl.where(total == 0.0, 1.0, total)  # a range without tokens: lse -inf
    tl.store(lse + part, peak + tl.log2(total), mask=is_head)
    tl.store(parts + part[:, None] * D + d[None, :], acc / total[:, None], mask=is_head[:, None] & (d < D)[None, :])
    tl.debug_barrier()  # all of this program's threads have written
    if tl.atomic_add(arrived + b * heads + h, 1, sem="acq_rel", scope="gpu") == splits - 1:
        tl.store(arrived + b * heads + h, 0)
        _join(parts, lse, whole, out, first_bad + b, layer, (b * heads + h) * R, splits, R, R_JOIN, D, D_PAD, S, MASS)


@triton.jit
def _join(
    parts, lse, whole, out, first_bad, layer, first_head, splits,
    R: tl.constexpr, R_JOIN: tl.constexpr, D: tl.constexpr, D_PAD: tl.constexpr, S: tl.constexpr, MASS: tl.constexpr,
):  # fmt: skip
    """Join the ranges of R query heads: the mean of their parts, weighted by 2^lse."""
    r = tl.arange(0, R_JOIN)
    d = tl.arange(0, D_PAD)
    peak = tl.full((R_JOIN,), float("-inf"), tl.float32)
    total = tl.zeros((R_JOIN,), tl.float32)
    acc = tl.zeros((R_JOIN, D_PAD), tl.float32)
    for start in range(0, splits, S):
        s = start + tl.arange(0, S)
        at = (first_head + r)[:, None] * splits + s[None, :]
        inside = (r < R)[:, None] & (s < splits)[None, :]
        x = tl.load(lse + at, mask=inside, other=float("-inf"))
        y = tl.load(parts + at[:, :, None] * D + d[None, None, :], mask=inside[:, :, None] & (d < D)[None, None, :], other=0.0)
        now = tl.maximum(peak, tl.max(x, 1))
        safe = tl.where(now == float("-inf"), 0.0, now)
        weight = tl.exp2(x - safe[:, None])
        shrink = tl.exp2(peak - safe)
        total = total * shrink + tl.sum(weight, 1)
        acc = acc * shrink[:, None] + tl.sum(weight[:, :, None] * y, 1)
        peak = now
    if MASS:
        tl.store(whole + first_head + r, tl.where(total == 0.0, 0.0, peak) + tl.log2(tl.where(total == 0.0, 1.0, total)), mask=r < R)
    result = acc / tl.where(total == 0.0, 1.0, total)[:, None]  # zeros for a row without tokens
    inside = (r < R)[:, None] & (d < D)[None, :]
    wrong = inside & ((result != result) | (tl.abs(result) == float("inf")))
    if tl.max(tl.max(wrong.to(tl.int32), 1), 0) > 0:
        tl.atomic_min(first_bad, layer)
    tl.store(out + (first_head + r)[:, None] * D + d[None, :], result.to(out.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["blocks"])
def _mass(
    whole, probs, peaks, rows, n_live, first, mass,
    live_row, live_head, blocks, mass_row, mass_head, share,
    H: tl.constexpr, R: tl.constexpr, N: tl.constexpr, GROUP: tl.constexpr, HEADS: tl.constexpr,
    WINDOW: tl.constexpr, ADD: tl.constexpr,
):  # fmt: skip
    """A share of the blocks of a row, for one group of heads: each head's weight of a block is 2^(its maximum there - its `whole`).

    GROUP: KV heads that share one slot map; share: the weight of one query head in its group's mass. HEADS: added up at once, more
    than one a thread: a single product would be rounded on its way to the other threads, and not where it is added up.
    """
    group, b = tl.program_id(1), tl.program_id(2).to(tl.int64)
    row = tl.load(rows + b).to(tl.int64)
    n = tl.load(n_live + row * live_row + group * GROUP * live_head).to(tl.int32)
    begin = 0
    if WINDOW:
        begin = tl.load(first + b).to(tl.int32)
    where = mass + b * mass_row + group.to(tl.int64) * mass_head
    g = tl.arange(0, HEADS)
    t = tl.arange(0, N)
    for block in range(tl.program_id(0), tl.cdiv(n, N), tl.num_programs(0)):
        i = block * N + t
        received = tl.zeros((N,), tl.float32)
        if ADD:
            received = tl.load(where + i, mask=i < n, other=0.0)
        for first_head in tl.static_range(0, GROUP * R, HEADS):
            real = first_head + g < GROUP * R
            head = group * GROUP * R + first_head + g
            line = (b * blocks + block) * H * R + head
            p = tl.load(probs + line[:, None] * N + t[None, :], mask=real[:, None], other=0.0)
            p = tl.where((i >= begin)[None, :], p.to(tl.float32), 0.0)  # nobody wrote what lies below
            top = tl.load(peaks + line, mask=real & (block >= begin // N), other=float("-inf"))
            weight = tl.exp2(top - tl.load(whole + b * H * R + head, mask=real, other=0.0)) * share
            received += tl.sum(p * weight[:, None], 0)
        tl.store(where + i, received, mask=i < n)


@dataclass(frozen=True)
class Tuning:
    """How `_attend` is launched: tokens a block, warps, pipeline stages, and ranges a row is split into."""

    tokens: int
    warps: int
    stages: int
    splits: int


def tuning(head_dim: int, itemsize: int, pairs: int, made_for: tuple[int, int] | None, *, mass: bool) -> Tuning:
    """pairs: rows times KV heads. Hopper's were measured on an H200; the others follow from shared memory (100 KB on Ada)."""

    def ranges(programs: int) -> int:
        return min(64, triton.cdiv(programs, pairs))

    if made_for is None:
        return Tuning(32, 4, 1, 2)  # interpreted, one program after the other
    row = triton.next_power_of_2(head_dim) * itemsize
    if row > 256:
        return Tuning(32 if row <= 512 else 16, 4, 2, ranges(2 * 132))
    if made_for[0] != 9:
        return Tuning(32, 4, 3, ranges(2 * 108))
    # All programs at once, on 132 multiprocessors: the last of one and a bit times as many would run alone. And two ranges at least, to
    # even out rows of unlike lengths.
    if mass:
        return Tuning(64, 4, 3, max(2, min(48, 4 * 132 // pairs)))
    if 2 * pairs <= 3 * 132 or itemsize > 2:  # one warp has too few registers for fp32
        return Tuning(32, 4, 6, max(2, ranges(2 * 132)))
    return Tuning(32, 1, 3, max(2, 9 * 132 // pairs))


class DecodeScratch:
    """Buffers between the launches, for one batch size: allocated once, reused by every layer.

    parts: fp32 [B, Hq, SPLITS, D]. lse: fp32 [B, Hq, SPLITS], base 2. arrived: int32 [B, H], ranges that are ready; 0 between launches.
    For the mass: probs, [B, W / tokens, Hq, tokens], fp16 for half-precision caches (a probability's error stays below 2^-11 of it,
    and below 2^-24 of the largest), fp32 for fp32; peaks, fp32 [B, W / tokens, Hq]; whole, fp32 [B, Hq], the lse of all ranges.
    """

    def __init__(
        self, batch: int, heads: int, group: int, head_dim: int, width: int, dtype: torch.dtype, device: torch.device, *, mass: bool
    ) -> None:
        made_for = capability(device)
        self.tuning = tuning(head_dim, dtype.itemsize, batch * heads, made_for, mass=mass)
        query_heads, splits, tokens = heads * group, self.tuning.splits, self.tuning.tokens
        self.parts = torch.empty(batch, query_heads, splits, head_dim, device=device)
        self.lse = torch.empty(batch, query_heads, splits, device=device)
        self.arrived = torch.zeros(batch, heads, dtype=torch.int32, device=device)
        self.mass_programs = max(16, min(256, triton.cdiv(2048, batch))) if made_for is not None else 2
        kept = torch.float32 if dtype == torch.float32 else torch.float16
        shape = (batch, triton.cdiv(width, tokens), query_heads, tokens) if mass else (1, 1, 1, 1)
        self.probs = torch.empty(shape, dtype=kept, device=device)
        self.peaks = torch.empty(shape[:-1], device=device)
        self.whole = torch.empty(batch, query_heads, device=device)


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
    t, probs, peaks = scratch.tuning, scratch.probs, scratch.peaks
    r_pad, d_pad, joined = max(16, triton.next_power_of_2(group)), triton.next_power_of_2(head_dim), triton.next_power_of_2(group)
    map_head = slot_map.stride(1) if maps > 1 else 0
    live_head = n_live.stride(1) if n_live.dim() == 2 else 0
    _attend[(t.splits, heads, batch)](
        query, keys, values, slot_map, rows, n_live, first, scratch.parts, scratch.lse, probs, peaks, scratch.whole, scratch.arrived, out,
        first_bad, layer, scale, softcap or 1.0,
        query.stride(0), query.stride(1), keys.stride(0), keys.stride(1), slot_map.stride(0), map_head, n_live.stride(0), live_head,
        probs.shape[1],
        R=group, R_PAD=r_pad, R_JOIN=joined, D=head_dim, D_PAD=d_pad, N=t.tokens, S=max(1, min(16, 2048 // (joined * d_pad))),
        WINDOW=first is not None, SOFTCAP=softcap is not None, MASS=mass is not None,
        PRECISION="ieee" if query.dtype == torch.float32 else "tf32", num_warps=t.warps, num_stages=t.stages,
    )  # fmt: skip
    if mass is not None:
        by_head = mass.stride(1) if mass.dim() == 3 else 0
        _mass[(scratch.mass_programs, maps, batch)](
            scratch.whole, probs, peaks, rows, n_live, first, mass,
            n_live.stride(0), live_head, probs.shape[1], mass.stride(0), by_head, maps / query_heads,
            H=heads, R=group, N=t.tokens, GROUP=heads // maps, HEADS=32,
            WINDOW=first is not None, ADD=add, num_warps=1,
        )  # fmt: skip
