"""Attention of a prefill chunk over a row's live tokens, through the slot map: the Triton twin of `attention.chunk_attention`.

n queries of the chunk, N live tokens of the row, the chunk's own the last n; Hq query heads, H KV heads, R = Hq / H, D head size.
The mass is a second pass from the log-sum-exp: no matrix of queries x keys exists, in memory or otherwise.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from . import capability
from .decode_attention import _tanh

Launch = tuple[int, int, int, int]  # queries and keys a tile, warps, stages
ATTEND: Launch = 128, 64, 4, 2  # on Hopper
MASS: Launch = 64, 64, 4, 3


@triton.jit
def _hidden(i, past, j, start, ids, died_at, n, WINDOW: tl.constexpr, REPLAY: tl.constexpr, window):
    """bool [queries, keys]: what query j of the chunk does not see of entry i of the slot map."""
    hidden = (i[None, :] > past + j[:, None]) | (i >= n)[None, :]
    if WINDOW:
        key = tl.load(ids + i, mask=i < n, other=0)
        hidden = hidden | (start + j[:, None] - key[None, :] >= window)
    if REPLAY:
        gone = tl.load(died_at + i, mask=i < n, other=0)
        hidden = hidden | (start + j[:, None] >= gone[None, :])
    return hidden


@triton.jit(do_not_specialize=["layer", "start"])
def _attend(
    query, keys, values, slots, n_live, ids, died_at, out, lse, first_bad, layer, scale, softcap, window, start, n_queries,
    query_token, query_head, slot_stride, head_stride, out_token, out_head,
    R: tl.constexpr, D: tl.constexpr, D_PAD: tl.constexpr, M: tl.constexpr, N: tl.constexpr,
    WINDOW: tl.constexpr, REPLAY: tl.constexpr, SOFTCAP: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    # The last queries see most: they start first.
    block = tl.num_programs(1) - 1 - tl.program_id(1)
    head = tl.program_id(0)
    n = tl.load(n_live).to(tl.int32)
    past = n - n_queries
    j = block * M + tl.arange(0, M)
    d = tl.arange(0, D_PAD)
    real = j < n_queries
    q = tl.load(
        query + j.to(tl.int64)[:, None] * query_token + head * query_head + d[None, :], mask=real[:, None] & (d < D)[None, :], other=0.0
    )
    base = (head // R).to(tl.int64) * head_stride
    peak = tl.full((M,), float("-inf"), tl.float32)
    total = tl.zeros((M,), tl.float32)
    acc = tl.zeros((M, D_PAD), tl.float32)
    end = tl.minimum(past + (block + 1) * M, n)
    # The scale comes after the maximum (it is positive), so that it and the subtraction are one operation.
    to_log2 = scale
    if SOFTCAP:
        to_log2 = 1.4426950408889634
    # Up to here every query of the block sees every key, unless a window or a replay hides some.
    clear = 0
    if not (WINDOW or REPLAY):
        clear = tl.maximum(past + block * M + 1, 0) // N * N
        for first in range(0, clear, N):
            i = first + tl.arange(0, N)
            at = base + tl.load(slots + i).to(tl.int64)[:, None] * slot_stride + d[None, :]
            if D == D_PAD:
                k = tl.load(keys + at)
                v = tl.load(values + at)
            else:
                k = tl.load(keys + at, mask=(d < D)[None, :], other=0.0)
                v = tl.load(values + at, mask=(d < D)[None, :], other=0.0)
            s = tl.dot(q, tl.trans(k), input_precision=PRECISION)
            if SOFTCAP:
                s = _tanh(s * scale / softcap) * softcap
            now = tl.maximum(peak, tl.max(s, 1) * to_log2)
            p = tl.exp2(s * to_log2 - now[:, None])
            shrink = tl.exp2(peak - now)
            total = total * shrink + tl.sum(p, 1)
            acc = tl.dot(p.to(v.dtype), v, acc * shrink[:, None], input_precision=PRECISION)
            peak = now
    for first in range(clear, end, N):
        i = first + tl.arange(0, N)
        at = base + tl.load(slots + i, mask=i < n, other=0).to(tl.int64)[:, None] * slot_stride + d[None, :]
        inside = (i < n)[:, None] & (d < D)[None, :]
        k = tl.load(keys + at, mask=inside, other=0.0)
        v = tl.load(values + at, mask=inside, other=0.0)
        s = tl.dot(q, tl.trans(k), input_precision=PRECISION)
        if SOFTCAP:
            s = _tanh(s * scale / softcap) * softcap
        s = tl.where(_hidden(i, past, j, start, ids, died_at, n, WINDOW, REPLAY, window), float("-inf"), s)
        now = tl.maximum(peak, tl.max(s, 1) * to_log2)
        safe = tl.where(now == float("-inf"), 0.0, now)
        p = tl.exp2(s * to_log2 - safe[:, None])
        shrink = tl.exp2(peak - safe)
        total = total * shrink + tl.sum(p, 1)
        acc = tl.dot(p.to(v.dtype), v, acc * shrink[:, None], input_precision=PRECISION)
        peak = now
    result = acc / tl.where(total == 0.0, 1.0, total)[:, None]
    inside = real[:, None] & (d < D)[None, :]
    wrong = tl.where(inside, (result != result) | (tl.abs(result) == float("inf")), False)
    if tl.max(tl.max(wrong.to(tl.int32), 1), 0) > 0:
        tl.atomic_min(first_bad, layer)
    tl.store(lse + head.to(tl.int64) * n_queries + j, peak + tl.log2(tl.maximum(total, 1e-37)), mask=real)
    tl.store(out + j.to(tl.int64)[:, None] * out_token + head * out_head + d[None, :], result.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _weights(query, lse, k, first, head, i, past, start, ids, died_at, n, n_queries, scale, softcap, window, query_token, query_head,
             D: tl.constexpr, D_PAD: tl.constexpr, M: tl.constexpr, WINDOW: tl.constexpr, REPLAY: tl.constexpr, SOFTCAP: tl.constexpr,
             PRECISION: tl.constexpr, SOME_HIDDEN: tl.constexpr):  # fmt: skip
    """fp32 [M, keys]: the attention weights of queries first .. first + M - 1."""
    j = first + tl.arange(0, M)
    d = tl.arange(0, D_PAD)
    at = query + first.to(tl.int64) * query_token + head * query_head + (tl.arange(0, M)[:, None] * query_token + d[None, :])
    if SOME_HIDDEN:
        q = tl.load(at, mask=(j < n_queries)[:, None] & (d < D)[None, :], other=0.0)
        whole = tl.load(lse + head.to(tl.int64) * n_queries + j, mask=j < n_queries, other=float("inf"))
    else:
        if D == D_PAD:
            q = tl.load(at)
        else:
            q = tl.load(at, mask=(d < D)[None, :], other=0.0)
        whole = tl.load(lse + head.to(tl.int64) * n_queries + j)
    s = tl.dot(q, tl.trans(k), input_precision=PRECISION) * scale
    if SOFTCAP:
        s = _tanh(s / softcap) * softcap * 1.4426950408889634
    p = tl.exp2(s - whole[:, None])
    if SOME_HIDDEN:
        p = tl.where(_hidden(i, past, j, start, ids, died_at, n, WINDOW, REPLAY, window), 0.0, p)
    return p


@triton.jit(do_not_specialize=["start"])
def _received(
    query, keys, slots, n_live, ids, died_at, lse, part, scale, softcap, window, start, n_queries, part_head, share,
    query_token, query_head, slot_stride, head_stride,
    R: tl.constexpr, D: tl.constexpr, D_PAD: tl.constexpr, M: tl.constexpr, N: tl.constexpr,
    WINDOW: tl.constexpr, REPLAY: tl.constexpr, SOFTCAP: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """part[h, i] = share * the sum over a KV head's query heads and all queries of what entry i receives."""
    block, h = tl.program_id(0), tl.program_id(1)
    n = tl.load(n_live).to(tl.int32)
    past = n - n_queries
    i = block * N + tl.arange(0, N)
    if block * N >= n:
        return
    d = tl.arange(0, D_PAD)
    at = h.to(tl.int64) * head_stride + tl.load(slots + i, mask=i < n, other=0).to(tl.int64)[:, None] * slot_stride + d[None, :]
    k = tl.load(keys + at, mask=(i < n)[:, None] & (d < D)[None, :], other=0.0)
    # Summed over queries at the very end: a sum a tile would make warps wait for each other.
    received = tl.zeros((M, N), tl.float32)
    begin = tl.maximum(block * N - past, 0) // M * M  # the first queries that see the block's first key
    # From here to `whole_end` every query sees every key of the block.
    clear = tl.cdiv(tl.maximum((block + 1) * N - 1 - past, 0), M) * M
    whole_end = n_queries // M * M
    if WINDOW or REPLAY or (block + 1) * N > n:
        clear = n_queries
    clear = tl.minimum(clear, n_queries)
    # All heads in one loop, so that loads run ahead of it without a pause.
    for t in range(R * (tl.maximum(whole_end - clear, 0) // M)):
        received += _weights(query, lse, k, clear + t // R * M, h * R + t % R, i, past, start, ids, died_at, n, n_queries, scale, softcap,
                             window, query_token, query_head, D, D_PAD, M, WINDOW, REPLAY, SOFTCAP, PRECISION, False)  # fmt: skip
    hidden = tl.cdiv(clear - begin, M)  # blocks of queries before and after those, of which some see some keys only
    for t in range(R * (hidden + tl.cdiv(tl.maximum(n_queries - tl.maximum(clear, whole_end), 0), M))):
        first = tl.where(t // R < hidden, begin, tl.maximum(clear, whole_end) - hidden * M) + t // R * M
        received += _weights(query, lse, k, first, h * R + t % R, i, past, start, ids, died_at, n, n_queries, scale, softcap, window,
                             query_token, query_head, D, D_PAD, M, WINDOW, REPLAY, SOFTCAP, PRECISION, True)  # fmt: skip
    tl.store(part + h.to(tl.int64) * part_head + i, tl.sum(received, 0) * share, mask=i < n)


def _launch(head_dim: int, dtype: torch.dtype, device: torch.device, on_hopper: Launch) -> Launch:
    """on_hopper: as measured there for half precision and heads of up to 128."""
    if dtype == torch.float32:
        return 32, 32, 4, 1
    if triton.next_power_of_2(head_dim) > 128:
        return 64, 32, 4, 2
    made_for = capability(device)
    return on_hopper if made_for is not None and made_for[0] == 9 else (64, 64, 4, 2)


def chunk_attention(
    query: Tensor, keys: Tensor, values: Tensor, slots: Tensor, n_live: Tensor, out: Tensor, lse: Tensor, first_bad: Tensor, layer: int,
    scale: float, softcap: float | None = None, window: int | None = None, start: int = 0, ids: Tensor | None = None,
    died_at: Tensor | None = None,
) -> None:  # fmt: skip
    """A chunk of one row over that row's live tokens, its own included, for one layer.

    query, out: [n, Hq, D], last axis dense. keys, values: [n_slots, H, D]. slots: int32 [>= N], the row's slot map; n_live:
    int64 [1], N. lse: fp32 [Hq, n], base 2, written. window: tokens a sliding-window layer sees, with ids: int32 [>= N], the token
    id of each entry. died_at: int32 [>= N], where a row is recomputed. start: position of the first query.
    first_bad: int32 [1], the lowest layer whose output is not finite.
    """
    n, query_heads, head_dim = query.shape
    group = query_heads // keys.shape[1]
    m, k, warps, stages = _launch(head_dim, query.dtype, query.device, ATTEND)
    _attend[(query_heads, triton.cdiv(n, m))](
        query, keys, values, slots, n_live, ids, died_at, out, lse, first_bad, layer,
        scale if softcap is not None else scale * 1.4426950408889634, softcap or 1.0, window or 0, start, n,
        query.stride(0), query.stride(1), keys.stride(0), keys.stride(1), out.stride(0), out.stride(1),
        R=group, D=head_dim, D_PAD=triton.next_power_of_2(head_dim), M=m, N=k,
        WINDOW=window is not None, REPLAY=died_at is not None, SOFTCAP=softcap is not None,
        PRECISION="ieee" if query.dtype == torch.float32 else "tf32", num_warps=warps, num_stages=stages,
    )  # fmt: skip


def chunk_mass(
    query: Tensor, keys: Tensor, slots: Tensor, n_live: Tensor, lse: Tensor, tokens: int, scale: float, softcap: float | None = None,
    window: int | None = None, start: int = 0, ids: Tensor | None = None, died_at: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """What each live token received from the chunk's queries: fp32 [H, tokens] in slot-map order, whose sum over H is the mean over
    query heads of the sum over queries. tokens: a bound on N; what is beyond N is 0. Other arguments as in `chunk_attention`.
    """
    n, query_heads, head_dim = query.shape
    heads = keys.shape[1]
    m, k, warps, stages = _launch(head_dim, query.dtype, query.device, MASS)
    part = torch.zeros(heads, tokens, device=query.device)
    _received[(triton.cdiv(tokens, k), heads)](
        query, keys, slots, n_live, ids, died_at, lse, part, scale if softcap is not None else scale * 1.4426950408889634,
        softcap or 1.0, window or 0, start, n, part.stride(0), 1 / query_heads,
        query.stride(0), query.stride(1), keys.stride(0), keys.stride(1),
        R=query_heads // heads, D=head_dim, D_PAD=triton.next_power_of_2(head_dim), M=m, N=k,
        WINDOW=window is not None, REPLAY=died_at is not None, SOFTCAP=softcap is not None,
        PRECISION="ieee" if query.dtype == torch.float32 else "tf32", num_warps=warps, num_stages=stages,
    )  # fmt: skip
    return part
