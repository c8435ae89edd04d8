"""Attention over the slot map, in plain PyTorch: the CPU path, and the truth for every kernel.

It reads live tokens only, whatever the blocks look like: a slot outside the map may hold NaN. B rows, Hq query heads, H KV
heads, R = Hq / H, D head size, M a bound on live tokens, n queries of a chunk, N live tokens of one row.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

SCORES_PER_TILE = 1 << 20  # fp32 scores in flight: 4 MB; smaller ones cost more in synchronizing threads than the caches give
QUERIES_PER_FUSED_TILE = 256


def _capped(scores: Tensor, softcap: float | None) -> Tensor:
    return scores if softcap is None else torch.tanh(scores / softcap) * softcap


def decode_attention(
    query: Tensor, keys: Tensor, values: Tensor, slots: Tensor, visible: Tensor, scale: float, softcap: float | None, *, mass: bool
) -> tuple[Tensor, Tensor | None]:
    """One query a row over its live tokens.

    query: [B, Hq, D]. keys, values: [n_slots, H, D], one layer of the pool. slots: int64 [B, M], the slot map.
    visible: bool [B, M], which entries the query sees; the others are never read into the result, whatever they hold.
    Returns [B, Hq, D] in the query's dtype, and the attention mass fp32 [B, M], mean over the query heads, where asked for.
    A row that sees nothing gets zeros.
    """
    rows, n_heads, head_dim = query.shape
    heads = keys.shape[1]
    k = keys[slots].permute(0, 2, 3, 1).float()  # [B, H, D, M]
    v = values[slots].permute(0, 2, 1, 3).float().masked_fill(~visible[:, None, :, None], 0)
    scores = (query.float() * scale).view(rows, heads, -1, head_dim) @ k  # [B, H, R, M]
    scores = _capped(scores, softcap).masked_fill_(~visible[:, None, None], -torch.inf)
    weights = scores.softmax(-1).masked_fill(~visible[:, None, None], 0)
    out = (weights @ v).view(rows, n_heads, head_dim).to(query.dtype)
    return out, weights.mean((1, 2)) if mass else None


def chunk_attention(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    query_positions: Tensor,
    key_positions: Tensor,
    scale: float,
    softcap: float | None,
    window: int | None,
    died_at: Tensor | None,
    *,
    mass: bool,
) -> tuple[Tensor, Tensor | None]:
    """A chunk of one row over that row's live tokens, its own included.

    query: [Hq, n, D]. keys, values: [N, H, D] in token order; the chunk's own tokens are the last n.
    query_positions: int64 [n]; key_positions: int64 [N]. window: tokens a sliding-window layer sees. died_at: int64 [N], where a
    row is recomputed: the query at position p sees a token only if p < died_at.
    Returns [Hq, n, D] in the query's dtype, and the mass fp32 [N], summed over queries, mean over query heads, where asked for.
    """
    n_heads, n, head_dim = query.shape
    total, heads, _ = keys.shape
    past = total - n
    k = keys.transpose(0, 1).float().contiguous()  # [H, N, D]
    v = values.transpose(0, 1).float().contiguous()
    q = (query.float() * scale).view(heads, -1, n, head_dim)
    if not mass and softcap is None:
        return _fused_chunk(q, k, v, query_positions, key_positions, window, died_at).to(query.dtype), None
    received = torch.zeros(total, device=query.device) if mass else None
    out = torch.empty_like(query)
    tile = max(16, SCORES_PER_TILE // (total * n_heads))
    for first in range(0, n, tile):
        last = min(first + tile, n)
        end = past + last  # later keys are in the future of the whole tile
        scores = _capped(q[:, :, first:last].flatten(1, 2) @ k[:, :end].mT, softcap)  # [H, R * t, end]
        _hide(scores.view(heads, -1, last - first, end), query_positions[first:last], key_positions[:end], window, died_at)
        weights = scores.softmax(-1)  # a query always sees itself
        out[:, first:last] = (weights @ v[:, :end]).view(n_heads, last - first, head_dim).to(query.dtype)
        if received is not None:
            received[:end] += weights.sum((0, 1))
    return out, None if received is None else received / n_heads


def _hide(scores: Tensor, query_positions: Tensor, key_positions: Tensor, window: int | None, died_at: Tensor | None) -> None:
    """Write -inf where a query sees nothing, in place. scores: [..., t, e]; the last t of the e keys are the queries' own tokens."""
    if window is None and died_at is None:  # nothing else can be hidden
        scores, key_positions = scores[..., -len(query_positions) :], key_positions[-len(query_positions) :]
    distance = query_positions[:, None] - key_positions
    hidden = distance < 0
    if window is not None:
        hidden |= distance >= window
    if died_at is not None:
        hidden |= query_positions[:, None] >= died_at[: len(key_positions)]
    scores.masked_fill_(hidden, -torch.inf)


def _fused_chunk(
    q: Tensor, k: Tensor, v: Tensor, query_positions: Tensor, key_positions: Tensor, window: int | None, died_at: Tensor | None
) -> Tensor:
    """torch's own fused attention, tile by tile so that the mask stays small. q: [H, R, n, D], scaled; k, v: [H, N, D]."""
    heads, group, n, head_dim = q.shape
    past = k.shape[1] - n
    out = torch.empty_like(q)
    for first in range(0, n, QUERIES_PER_FUSED_TILE):
        last = min(first + QUERIES_PER_FUSED_TILE, n)
        end = past + last
        bias = q.new_zeros(last - first, end)
        _hide(bias, query_positions[first:last], key_positions[:end], window, died_at)
        keys = k[:, None, :end].expand(heads, group, end, head_dim)
        values = v[:, None, :end].expand(heads, group, end, head_dim)
        out[:, :, first:last] = F.scaled_dot_product_attention(q[:, :, first:last], keys, values, attn_mask=bias, scale=1.0)
    return out.flatten(0, 1)
