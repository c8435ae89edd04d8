"""Attention kernels against their plain twins: on a GPU where there is one, else interpreted. Memory that nobody may read holds NaN."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from vtoken_sdk.runtime.attention import chunk_attention as plain_chunk
from vtoken_sdk.runtime.attention import decode_attention as plain_decode

kernels = pytest.importorskip("vtoken_sdk.runtime.kernels.decode_attention", reason="Triton is for Linux")
chunks = pytest.importorskip("vtoken_sdk.runtime.kernels.chunk_attention", reason="Triton is for Linux")

CUDA = torch.cuda.is_available()
DEVICE = torch.device("cuda" if CUDA else "cpu")
HALF = [torch.float32, torch.float16, *([torch.bfloat16] if CUDA else [])]  # the interpreter gets bf16 wrong (cases N07)
LENGTHS = [1, 2, 15, 16, 17, 255, 256, 257] if CUDA else [1, 2, 16, 17, 65]
FULL = 1400 if CUDA else 90


def close(got: Tensor, want: Tensor, dtype: torch.dtype) -> None:
    assert bool(got.isfinite().all())
    scale = float(want.float().abs().max()) + 1e-6
    limit = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1e-2}[dtype]
    assert float((got.float() - want.float()).abs().max()) / scale < limit


class Batch:
    """Rows of these lengths over single slots in random order; every other slot is NaN, and the maps' ends are out of range."""

    def __init__(self, lengths: list[int], heads: int, group: int, head_dim: int, dtype: torch.dtype) -> None:
        torch.manual_seed(0)
        self.rows = torch.randperm(len(lengths) + 2, device=DEVICE)[: len(lengths)]
        n_slots, self.width = sum(lengths) + 20, max(lengths) + 5
        order = torch.randperm(n_slots, device=DEVICE)
        self.map = torch.full((len(lengths) + 2, self.width), 2**30, dtype=torch.int32, device=DEVICE)
        self.n_live = torch.zeros(len(lengths) + 2, dtype=torch.int64, device=DEVICE)
        self.keys = torch.full((n_slots, heads, head_dim), torch.nan, device=DEVICE, dtype=dtype)
        self.values = torch.full_like(self.keys, torch.nan)
        at = 0
        for row, n in zip(self.rows.tolist(), lengths, strict=True):
            slots = order[at : at + n]
            self.map[row, :n] = slots.int()
            self.n_live[row] = n
            self.keys[slots] = torch.randn(n, heads, head_dim, device=DEVICE).to(dtype)
            self.values[slots] = torch.randn(n, heads, head_dim, device=DEVICE).to(dtype)
            at += n
        self.query = torch.randn(len(lengths), heads * group, head_dim, device=DEVICE).to(dtype)

    def run(
        self, softcap: float | None, first: Tensor | None, *, mass: bool, add: float | None = None
    ) -> tuple[Tensor, Tensor | None, Tensor]:
        batch, query_heads, head_dim = self.query.shape
        heads = self.keys.shape[1]
        scratch = kernels.DecodeScratch(batch, heads, query_heads // heads, head_dim, self.width, self.keys.dtype, DEVICE, mass=mass)
        for buffer in (scratch.parts, scratch.lse, scratch.probs, scratch.peaks, scratch.whole):
            buffer.fill_(torch.nan)
        out = torch.full_like(self.query, torch.nan)
        received = torch.full((batch, self.width), torch.nan if add is None else add, device=DEVICE) if mass else None
        bad = torch.full((batch,), kernels.NOT_BAD, dtype=torch.int32, device=DEVICE)
        kernels.decode_attention(
            self.query, self.keys, self.values, self.map, self.rows, self.n_live, scratch, out, bad, 3, 0.2, softcap, first, received,
            add=add is not None,
        )  # fmt: skip
        return out, received, bad

    def plain(self, softcap: float | None, first: Tensor | None) -> tuple[Tensor, Tensor]:
        ids = torch.arange(self.width, device=DEVICE)
        seen = ids < self.n_live[self.rows][:, None]
        somewhere = self.map[self.rows[:1], :1].long()  # a slot that holds something
        slots = torch.where(seen, self.map[self.rows].long(), somewhere)
        if first is not None:
            seen = seen & (ids >= first[:, None])
        out, mass = plain_decode(self.query, self.keys, self.values, slots, seen, 0.2, softcap, mass=True)
        assert mass is not None
        return out, mass


@pytest.mark.parametrize("dtype", HALF, ids=str)
@pytest.mark.parametrize("head_dim", [64, 80, 96, 128, 256] if CUDA else [80])
@pytest.mark.parametrize("group", [1, 2, 3, 4, 8] if CUDA else [3])
def test_decode(dtype: torch.dtype, head_dim: int, group: int) -> None:
    batch = Batch([*LENGTHS, FULL], 2, group, head_dim, dtype)
    want, received = batch.plain(None, None)
    got, mass, bad = batch.run(None, None, mass=True)
    close(got, want, dtype)
    close(batch.run(None, None, mass=False)[0], want, dtype)
    assert mass is not None
    assert bad.tolist() == [kernels.NOT_BAD] * len(bad)
    for i, n in enumerate(batch.n_live[batch.rows].tolist()):
        assert float((mass[i, :n] - received[i, :n]).abs().max()) < (2e-3 if dtype != torch.float32 else 1e-6)
        assert bool(mass[i, n:].isnan().all()), "written beyond the row's live tokens"
    added = batch.run(None, None, mass=True, add=1.0)[1]
    assert added is not None
    assert torch.allclose(added.nan_to_num(1.0), mass.nan_to_num(0.0) + 1.0, atol=1e-6)


@pytest.mark.parametrize("softcap", [None, 3.0])
def test_a_window_is_a_first_entry(softcap: float | None) -> None:
    batch = Batch([*LENGTHS, FULL], 2, 2, 64 if CUDA else 16, torch.float32)
    lengths = batch.n_live[batch.rows]
    first = (lengths - 40).clamp(min=0)
    want, received = batch.plain(softcap, first)
    got, mass, _ = batch.run(softcap, first, mass=True)
    close(got, want, torch.float32)
    assert mass is not None
    for i, n in enumerate(lengths.tolist()):
        assert float((mass[i, :n] - received[i, :n]).abs().max()) < 1e-6
        assert bool((mass[i, : int(first[i])] == 0).all())


def test_a_row_without_tokens_gives_zeros_and_a_bad_value_is_named() -> None:
    batch = Batch([5, 40], 1, 2, 64 if CUDA else 16, torch.float32)
    batch.n_live[batch.rows[0]] = 0
    batch.values[batch.map[batch.rows[1], 7].long()] = torch.inf
    out, _, bad = batch.run(None, None, mass=False)
    assert bool((out[0] == 0).all())
    assert bad.tolist() == [kernels.NOT_BAD, 3]


def test_zero_queries_give_the_mean_of_the_live_values() -> None:
    batch = Batch([1, 33], 2, 2, 64 if CUDA else 16, torch.float32)
    batch.query.zero_()
    out = batch.run(None, None, mass=False)[0]
    for i, row in enumerate(batch.rows.tolist()):
        live = batch.map[row, : int(batch.n_live[row])].long()
        want = batch.values[live].mean(0).repeat_interleave(2, 0)
        assert torch.allclose(out[i], want, atol=1e-6)


def test_ranges_are_joined_by_whoever_comes_last_and_a_scratch_serves_every_layer() -> None:
    batch = Batch([*LENGTHS, FULL], 2, 4, 64 if CUDA else 16, torch.float32)
    scratch = kernels.DecodeScratch(len(batch.rows), 2, 4, batch.query.shape[2], batch.width, torch.float32, DEVICE, mass=True)
    want, received = batch.plain(None, None)
    seen = torch.arange(batch.width, device=DEVICE) < batch.n_live[batch.rows][:, None]
    first: tuple[Tensor, Tensor] | None = None
    for layer in range(200 if CUDA else 2):
        out, mass = torch.full_like(batch.query, torch.nan), torch.zeros(len(batch.rows), batch.width, device=DEVICE)
        bad = torch.full((len(batch.rows),), kernels.NOT_BAD, dtype=torch.int32, device=DEVICE)
        args = (batch.query, batch.keys, batch.values, batch.map, batch.rows, batch.n_live, scratch, out, bad, layer, 0.2)
        kernels.decode_attention(*args, mass=mass)
        first = first or (out, mass)
        assert torch.equal(out, first[0]), "the same bits, in whatever order the ranges were ready"
        assert torch.equal(mass, first[1])
    assert first is not None
    close(first[0], want, torch.float32)
    assert torch.allclose(first[1], torch.where(seen, received, 0), atol=1e-6)
    assert not scratch.arrived.any()


def test_a_map_for_each_head_needs_no_other_kernel() -> None:
    """Strides alone tell one slot map a row from one a KV head; the mass then is each head's own."""
    torch.manual_seed(0)
    heads, group, head_dim, width = 3, 2, 64 if CUDA else 16, 70
    keys = torch.randn(400, heads, head_dim, device=DEVICE)
    values = torch.randn_like(keys)
    slots = torch.stack([torch.randperm(400, device=DEVICE)[: heads * width].view(heads, width) for _ in range(3)]).int()
    n_live = torch.tensor([[5, 70, 33], [1, 2, 64], [17, 16, 15]], device=DEVICE)
    rows = torch.tensor([2, 0], device=DEVICE)
    query = torch.randn(2, heads * group, head_dim, device=DEVICE)
    scratch = kernels.DecodeScratch(2, heads, group, head_dim, width, torch.float32, DEVICE, mass=True)
    out, mass = torch.empty_like(query), torch.zeros(2, heads, width, device=DEVICE)
    bad = torch.full((2,), kernels.NOT_BAD, dtype=torch.int32, device=DEVICE)
    kernels.decode_attention(query, keys, values, slots, rows, n_live, scratch, out, bad, 0, 0.2, mass=mass, add=False)
    for b, row in enumerate(rows.tolist()):
        for h in range(heads):
            n = int(n_live[row, h])
            live = slots[row, h, :n].long()
            mine = slice(h * group, (h + 1) * group)
            weights = (query[b, mine] @ keys[live, h].T * 0.2).softmax(-1)
            assert torch.allclose(out[b, mine], weights @ values[live, h], atol=1e-5)
            assert torch.allclose(mass[b, h, :n], weights.mean(0), atol=1e-6)


CHUNKS: list[dict[str, Any]] = [
    {"n": 40, "live": 40},
    {"n": 1, "live": 1},
    {"n": 33, "live": 100},
    {"n": 7, "live": 120, "softcap": 5.0},
    {"n": 50, "live": 90, "window": 25},
    {"n": 66, "live": 130, "replay": True},
    *([{"n": 700, "live": 700}, {"n": 300, "live": 1500}, {"n": 256, "live": 1024, "softcap": 20.0}] if CUDA else []),
]


@pytest.mark.parametrize("case", CHUNKS, ids=lambda c: "-".join(f"{k}{v}" for k, v in c.items()))
@pytest.mark.parametrize("dtype", HALF, ids=str)
@pytest.mark.parametrize(("heads", "group", "head_dim"), [(2, 4, 128), (1, 3, 80), (1, 1, 256)] if CUDA else [(1, 3, 80)])
def test_a_chunk_over_the_live_past(case: dict[str, Any], dtype: torch.dtype, heads: int, group: int, head_dim: int) -> None:
    torch.manual_seed(1)
    n, live = case["n"], case["live"]
    start, never = 2 * live, 2**31 - 1
    ids = torch.cat([torch.randperm(start)[: live - n].sort().values, torch.arange(start, start + n)]).to(DEVICE)
    died_at = None
    if case.get("replay"):
        died_at = torch.where(torch.rand(live, device=DEVICE) < 0.4, torch.randint(start + 1, start + n + 1, (live,), device=DEVICE), never)
        died_at[-n:] = never
    order = torch.randperm(2 * live + 9, device=DEVICE)
    slots = order[:live]
    keys = torch.full((len(order), heads, head_dim), torch.nan, device=DEVICE, dtype=dtype)
    values = torch.full_like(keys, torch.nan)
    keys[slots] = torch.randn(live, heads, head_dim, device=DEVICE).to(dtype)
    values[slots] = torch.randn(live, heads, head_dim, device=DEVICE).to(dtype)
    query = torch.randn(n, heads * group, head_dim, device=DEVICE).to(dtype)
    softcap, window = case.get("softcap"), case.get("window")
    positions = torch.arange(start, start + n, device=DEVICE)
    want, received = plain_chunk(
        query.transpose(0, 1), keys[slots], values[slots], positions, ids, 0.2, softcap, window, died_at, mass=True
    )

    def padded(x: Tensor | None) -> Tensor | None:
        return None if x is None else torch.cat([x, torch.full((99,), 2**30, device=DEVICE)]).int()

    out = torch.full_like(query, torch.nan)
    lse = torch.full((heads * group, n), torch.nan, device=DEVICE)
    bad = torch.full((1,), kernels.NOT_BAD, dtype=torch.int32, device=DEVICE)
    n_live = torch.tensor([live], device=DEVICE)
    where = (softcap, window, start, padded(ids), padded(died_at))
    chunks.chunk_attention(query, keys, values, padded(slots), n_live, out, lse, bad, 5, 0.2, *where)
    close(out.transpose(0, 1), want, dtype)
    part = chunks.chunk_mass(query, keys, padded(slots), n_live, lse, live + 30, 0.2, *where)
    assert received is not None
    assert float((part.sum(0)[:live] - received).abs().max()) < (1e-2 if dtype != torch.float32 else 1e-4)
    assert bool((part[:, live:] == 0).all())
    assert int(bad) == kernels.NOT_BAD
