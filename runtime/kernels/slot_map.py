"""Upkeep of the Token Table by kernels: one new token for each row, deaths, and the slot map after them. The twin of `upkeep`.

R rows, T token ids, N ordinals of held blocks, S slots a block.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl
from torch import Tensor

from .. import upkeep

if TYPE_CHECKING:
    from ..block_pool import BlockPool
    from ..token_table import TokenTable

FREE: tl.constexpr = tl.constexpr(upkeep.FREE)
DEAD: tl.constexpr = tl.constexpr(upkeep.DEAD)
RESERVED: tl.constexpr = tl.constexpr(upkeep.RESERVED)
NEVER: tl.constexpr = tl.constexpr(upkeep.NEVER)


@triton.jit
def _pop(rows, counts, n_free, stack, top, owners, got, n_rows, trash, B: tl.constexpr):
    """A block for each row that runs and has no free slot, in the order of the rows: got[b], or -1."""
    b = tl.arange(0, B)
    real = b < n_rows
    row = tl.load(rows + b, mask=real, other=0)
    wants = real & (tl.load(counts + b, mask=real, other=0) > 0) & (tl.load(n_free + row, mask=real, other=1) == 0)
    take = wants.to(tl.int32)
    rank = tl.cumsum(take, 0) - take
    n = tl.load(top)
    block = tl.load(stack + tl.maximum(n - 1 - rank, 0), mask=wants, other=-1)
    tl.store(got + b, block, mask=real)
    tl.store(owners + block, 1, mask=wants)
    tl.debug_barrier()  # nobody reads `top` after it is written
    tl.store(top, n - tl.sum(take, 0))


@triton.jit
def _append_one(
    rows, counts, got, slot, blocks, held, slot_map, length, n_live, n_free, home, out, trash, max_tokens, max_blocks,
    S: tl.constexpr, S_PAD: tl.constexpr, O: tl.constexpr,
):  # fmt: skip
    b = tl.program_id(0)
    row = tl.load(rows + b)
    count, n = tl.load(counts + b), tl.load(length + row)
    if count == 0:
        tl.store(out + b, trash * S)
        return
    block, live, free = tl.load(got + b), tl.load(n_live + row), tl.load(n_free + row)
    s = tl.arange(0, S_PAD)
    if block >= 0:
        lowest = max_blocks
        for first in range(0, max_blocks, O):
            o = first + tl.arange(0, O)
            absent = tl.load(blocks + row * max_blocks + o, mask=o < max_blocks, other=-1) == trash
            lowest = tl.minimum(lowest, tl.min(tl.where(absent, o, max_blocks), 0))
        ordinal = lowest.to(tl.int64)
        tl.store(blocks + row * max_blocks + ordinal, block)
        tl.store(home + block, ordinal)
        tl.store(held + row * max_blocks * S + ordinal * S + s, tl.where(s == 0, n, -1).to(tl.int32), mask=s < S)
        tl.store(slot_map + row * max_blocks * S + live + s, (block * S + s).to(tl.int32), mask=s < S)
        place = block * S
        free += S
    else:
        place = tl.load(slot_map + row * max_blocks * S + live).to(tl.int64)
        ordinal = tl.load(home + place // S)
        tl.store(held + row * max_blocks * S + ordinal * S + place % S, n.to(tl.int32))
    tl.store(slot + row * max_tokens + n, place.to(tl.int32))
    tl.store(out + b, place)
    tl.store(n_live + row, live + 1)
    tl.store(n_free + row, free - 1)
    tl.store(length + row, n + 1)


def append_one(table: TokenTable, rows: Tensor, counts: Tensor) -> Tensor:
    """`TokenTable.append` of at most one token a row: rows, counts int64 [B]. Returns its slots, int64 [B, 1]."""
    t, pool, n = table, table.pool, len(rows)
    got, slots = torch.empty_like(counts), torch.empty_like(counts)
    _pop[(1,)](rows, counts, t.n_free, pool.stack, pool.top, pool.owners, got, n, pool.trash, B=triton.next_power_of_2(n), num_warps=4)
    _append_one[(n,)](
        rows, counts, got, t.slot, t.blocks, t.held, t.map, t.length, t.n_live, t.n_free, pool.home, slots, pool.trash,
        t.max_tokens, t.max_blocks, S=t.block_size, S_PAD=triton.next_power_of_2(t.block_size), O=1024, num_warps=4,
    )  # fmt: skip
    return slots[:, None]


@triton.jit
def _settle_tokens(
    rows, kill, slot, died_at, held, slot_map, length, n_live, home, owners, killed, kill_row, max_tokens, held_row,
    S: tl.constexpr, T: tl.constexpr, KILL: tl.constexpr, REFILL: tl.constexpr,
):  # fmt: skip
    b = tl.program_id(0).to(tl.int64)
    row = tl.load(rows + b)
    n = tl.load(length + row)
    running = tl.zeros((), tl.int32)
    deaths = tl.zeros((), tl.int64)
    for first in range(0, n, T):
        t = first + tl.arange(0, T)
        s = tl.load(slot + row * max_tokens + t, mask=t < n, other=-1)
        if KILL:
            dies = (s >= 0) & (tl.load(kill + b * kill_row + t, mask=t < n, other=0) != 0)
            block = s // S
            place = tl.load(home + block, mask=dies, other=0) * S + s % S
            closed = tl.full((T,), DEAD, tl.int32)
            if REFILL:
                closed = tl.where(tl.load(owners + block, mask=dies, other=0) == 1, FREE, closed)
            tl.store(held + row * held_row + place, closed, mask=dies)
            first_time = dies & (tl.load(died_at + row * max_tokens + t, mask=dies, other=0) == NEVER)
            tl.store(died_at + row * max_tokens + t, tl.zeros((T,), tl.int32) + n.to(tl.int32), mask=first_time)
            tl.store(slot + row * max_tokens + t, tl.full((T,), -1, tl.int32), mask=dies)
            s = tl.where(dies, -1, s)
            deaths += tl.sum(dies.to(tl.int64), 0)
        live = (s >= 0).to(tl.int32)
        rank = running + tl.cumsum(live, 0) - live
        tl.store(slot_map + row * held_row + rank, s, mask=s >= 0)
        running += tl.sum(live, 0)
    tl.store(n_live + row, running.to(tl.int64))
    tl.store(killed + b, deaths)


@triton.jit
def _settle_blocks(
    rows, held, blocks, leaving, slot_map, n_live, n_free, owners, freed, ordinals, max_blocks, trash,
    S: tl.constexpr, S_PAD: tl.constexpr, O: tl.constexpr, DROP_LEAVING: tl.constexpr, CLOSE: tl.constexpr,
):  # fmt: skip
    row = tl.load(rows + tl.program_id(0))
    s = tl.arange(0, S_PAD)
    live = tl.load(n_live + row).to(tl.int32)
    running = tl.zeros((), tl.int32)
    for first in range(0, ordinals, O):
        o = first + tl.arange(0, O)
        real = o < ordinals
        at = row * max_blocks * S + o[:, None].to(tl.int64) * S + s[None, :]
        inside = real[:, None] & (s < S)[None, :]
        h = tl.load(held + at, mask=inside, other=-2)
        block = tl.load(blocks + row * max_blocks + o, mask=real, other=0)
        block = tl.where(real, block, trash)
        leaves = tl.load(leaving + row * max_blocks + o, mask=real, other=0) != 0
        if DROP_LEAVING:
            h = tl.where(leaves[:, None], DEAD, h)
            tl.store(leaving + row * max_blocks + o, tl.zeros((O,), tl.int8), mask=real & leaves)
            leaves = leaves & False
        if CLOSE:
            wanted = (tl.max(((h >= 0) | (h <= RESERVED)).to(tl.int32), 1) > 0) | leaves
            gone = (block != trash) & ~wanted
            h = tl.where(wanted[:, None], h, DEAD)
            tl.store(held + at, h, mask=inside)
            tl.store(blocks + row * max_blocks + o, tl.zeros((O,), tl.int64) + trash, mask=gone)
            left = tl.atomic_add(owners + block, -1, mask=gone)
            tl.store(freed + block, tl.full((O,), 1, tl.int8), mask=gone & (left == 1))
        free = ((h == FREE) & ~leaves[:, None]).to(tl.int32)
        each = tl.sum(free, 1)
        rank = running + (tl.cumsum(each, 0) - each)[:, None] + tl.cumsum(free, 1) - free
        tl.store(slot_map + row * max_blocks * S + live + rank, (block[:, None] * S + s[None, :]).to(tl.int32), mask=(free > 0) & inside)
        running += tl.sum(each, 0)
    tl.store(n_free + row, running.to(tl.int64))


@triton.jit
def _drop(ids, owners, freed, n, trash, I: tl.constexpr):
    i = tl.program_id(0) * I + tl.arange(0, I)
    block = tl.load(ids + i, mask=i < n, other=0)
    real = (i < n) & (block != trash)
    left = tl.atomic_add(owners + block, -1, mask=real)
    tl.store(freed + block, tl.full((I,), 1, tl.int8), mask=real & (left == 1))


@triton.jit
def _push(freed, stack, top, count, n_blocks, I: tl.constexpr):
    """One program: blocks marked in `freed`, ascending, onto the stack."""
    n = tl.load(top)
    pushed = tl.zeros((), tl.int64)
    for first in range(0, n_blocks, I):
        i = first + tl.arange(0, I)
        mark = tl.load(freed + i, mask=i < n_blocks, other=0).to(tl.int64)
        rank = pushed + tl.cumsum(mark, 0) - mark
        tl.store(stack + n + rank, i.to(tl.int64), mask=mark > 0)
        tl.store(freed + i, tl.zeros((I,), tl.int8), mask=mark > 0)
        pushed += tl.sum(mark, 0)
    tl.debug_barrier()
    tl.store(top, n + pushed)
    tl.store(count, pushed)


def push_freed(pool: BlockPool) -> Tensor:
    """Blocks marked as freed go onto the stack: how many, int64 []."""
    count = torch.empty_like(pool.top)
    _push[(1,)](pool.freed, pool.stack, pool.top, count, pool.n_blocks, I=4096, num_warps=8)
    return count


def drop(pool: BlockPool, ids: Tensor) -> None:
    """Take one owner from each block, int64 [n]; those without any are marked in `freed`."""
    n = len(ids)
    _drop[(triton.cdiv(n, 1024),)](ids, pool.owners, pool.freed, n, pool.trash, I=1024, num_warps=4)


def settle_tokens(table: TokenTable, rows: Tensor, kill: Tensor | None) -> Tensor:
    """Deaths, bool [B, W] (None: nobody dies), and the live part of the rows' maps. Returns how many died, int64 [B]."""
    t = table
    killed = torch.empty_like(rows)
    _settle_tokens[(len(rows),)](
        rows, kill, t.slot, t.died_at, t.held, t.map, t.length, t.n_live, t.pool.home, t.pool.owners, killed,
        kill.stride(0) if kill is not None else 0, t.max_tokens, t.held.shape[1],
        S=t.block_size, T=1024, KILL=kill is not None, REFILL=t.refill, num_warps=4,
    )  # fmt: skip
    return killed


def settle_blocks(table: TokenTable, rows: Tensor, ordinals: int, *, drop_leaving: bool = False, close: bool = True) -> None:
    """Drop blocks of the first `ordinals` that hold nothing any more (see `push_freed`), and write the free part of the rows' maps.

    drop_leaving: leaving blocks lose this owner. close=False: only the map is written.
    """
    t, padded = table, triton.next_power_of_2(table.block_size)
    _settle_blocks[(len(rows),)](
        rows, t.held, t.blocks, t.leaving, t.map, t.n_live, t.n_free, t.pool.owners, t.pool.freed, ordinals, t.max_blocks, t.pool.trash,
        S=t.block_size, S_PAD=padded, O=max(16, 2048 // padded), DROP_LEAVING=drop_leaving, CLOSE=close, num_warps=4,
    )  # fmt: skip


@triton.jit
def _by_token(rows, counts, mass, slot_map, held, n_live, home, out, share, mass_row, out_row, held_row, S: tl.constexpr, T: tl.constexpr):
    b = tl.program_id(0).to(tl.int64)
    row = tl.load(rows + b)
    n = tl.load(n_live + row)
    i = tl.program_id(1) * T + tl.arange(0, T)
    real = (i < n) & (tl.load(counts + b) > 0)
    slot = tl.load(slot_map + row * held_row + i, mask=real, other=0)
    place = tl.load(home + slot // S, mask=real, other=0) * S + slot % S
    token = tl.load(held + row * held_row + place, mask=real, other=0)
    tl.store(out + b * out_row + token, tl.load(mass + b * mass_row + i, mask=real, other=0.0) * share, mask=real)


def mass_by_token(table: TokenTable, rows: Tensor, counts: Tensor, mass: Tensor, width: int, layers: int) -> Tensor:
    """mass: fp32 [B, M] in slot-map order, summed over layers -> fp32 [B, width] by token id, their mean; 0 for rows that did not run."""
    t = table
    out = torch.zeros(len(rows), width, device=mass.device)
    _by_token[(len(rows), triton.cdiv(mass.shape[1], 1024))](
        rows, counts, mass, t.map, t.held, t.n_live, t.pool.home, out, 1 / layers, mass.stride(0), out.stride(0), t.held.shape[1],
        S=t.block_size, T=1024, num_warps=4,
    )  # fmt: skip
    return out
