"""Attention over the slot map: it reads what lives, and nothing else, whatever lies between."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from vtoken_sdk.runtime.attention import chunk_attention, decode_attention

HEADS, GROUP, DIM = 2, 3, 8
RUBBISH = {"nan": math.nan, "inf": math.inf, "largest fp16": 65504.0}
LENGTHS = (1, 2, 15, 16, 17, 255, 256, 257)
PATTERNS = ("all", "first", "last", "alternating", "one in a block")


def alive(pattern: str, n: int) -> list[int]:
    every = {"all": range(n), "first": [0], "last": [n - 1], "alternating": range(0, n, 2), "one in a block": range(n // 16 * 8 % n, n, 16)}
    return list(every[pattern])


def pool(n: int, live: list[int], rubbish: float) -> tuple[Tensor, Tensor, Tensor]:
    """Keys and values [slots, H, D] of n tokens at shuffled slots, dead ones full of rubbish, and the live ones' slots [N]."""
    random = torch.Generator().manual_seed(n)
    slots = torch.randperm(n + 20, generator=random)[live]
    keys, values = torch.full((2, n + 20, HEADS, DIM), rubbish)
    keys[slots] = torch.randn(len(live), HEADS, DIM, generator=random)
    values[slots] = torch.randn(len(live), HEADS, DIM, generator=random)
    return keys, values, slots


def by_hand(
    query: Tensor, keys: Tensor, values: Tensor, scale: float, hidden: Tensor | None = None, cap: float | None = None
) -> tuple[Tensor, Tensor]:
    """fp64, head by head. query [Hq, n, D], keys and values [N, H, D] -> outputs [Hq, n, D] and weights [Hq, n, N]."""
    out, weights = [], []
    for h in range(query.shape[0]):
        scores = query[h].double() @ keys[:, h // GROUP].double().T * scale
        scores = scores if cap is None else torch.tanh(scores / cap) * cap
        scores = scores if hidden is None else scores.masked_fill(hidden, -math.inf)
        weights.append(scores.softmax(-1))
        out.append(weights[-1] @ values[:, h // GROUP].double())
    return torch.stack(out), torch.stack(weights)


@pytest.mark.parametrize("rubbish", RUBBISH.values(), ids=list(RUBBISH))
@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("n", LENGTHS)
def test_a_decoding_row_reads_its_live_tokens_alone(n: int, pattern: str, rubbish: float) -> None:
    """Beside a longer row and an empty one; the padding of the map points at rubbish too."""
    live = alive(pattern, n)
    keys, values, slots = pool(n, live, rubbish)
    dead = next(s for s in range(n + 20) if s not in slots.tolist())
    width = len(live) + 5
    table = torch.full((2, width), dead)
    table[0, : len(live)] = slots
    visible = torch.zeros(2, width, dtype=torch.bool)
    visible[0, : len(live)] = True
    query = torch.randn(2, HEADS * GROUP, DIM, generator=torch.Generator().manual_seed(1))
    out, mass = decode_attention(query, keys, values, table, visible, 0.4, None, mass=True)
    want, weights = by_hand(query[0, :, None], keys[slots], values[slots], 0.4)
    assert mass is not None
    torch.testing.assert_close(out[0], want[:, 0].float(), atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(mass[0, : len(live)], weights[:, 0].mean(0).float(), atol=1e-6, rtol=1e-4)
    assert not out[1].any() and not mass[1].any() and not mass[0, len(live) :].any()


@pytest.mark.parametrize("cap", [None, 1.5])
@pytest.mark.parametrize("window", [None, 7])
@pytest.mark.parametrize("dying", [False, True])
@pytest.mark.parametrize("past", [0, 1, 40])
@pytest.mark.parametrize("n", [1, 16, 50])
def test_a_chunk_sees_the_living_past_and_itself(n: int, past: int, dying: bool, window: int | None, cap: float | None) -> None:
    """Holes in the past; soft cap; a sliding window by position; and, where a row is recomputed, deaths in mid-chunk."""
    random = torch.Generator().manual_seed(n + past)
    ids = torch.cat([torch.arange(0, 3 * past, 3), torch.arange(3 * past, 3 * past + n)])
    keys, values = torch.randn(2, past + n, HEADS, DIM, generator=random)
    query = torch.randn(HEADS * GROUP, n, DIM, generator=random)
    position = ids[past:]
    died_at = ids + 1 + torch.randint(0, 40, ids.shape, generator=random) if dying else None
    hidden = position[:, None] < ids
    if window is not None:
        hidden |= position[:, None] - ids >= window
    if died_at is not None:
        hidden |= position[:, None] >= died_at
    out, mass = chunk_attention(query, keys, values, position, ids, 0.3, cap, window, died_at, mass=True)
    want, weights = by_hand(query, keys, values, 0.3, hidden, cap)
    assert mass is not None
    torch.testing.assert_close(out, want.float(), atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(mass, weights.sum(1).mean(0).float(), atol=1e-5, rtol=1e-4)
    assert float(mass.sum()) == pytest.approx(n, rel=1e-5)
