"""Upkeep of the Token Table in plain PyTorch: deaths, and the slot map after them. The twin of `kernels.slot_map`, and its truth."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

if TYPE_CHECKING:
    from .block_pool import BlockPool
    from .token_table import TokenTable

# A held slot without a live token: may be appended to; may not; waits for a move. A reserved slot remembers what it was:
# FREE or DEAD, RESERVE lower. So `<= RESERVED` is reserved, and a plan can be undone.
FREE, DEAD, RESERVED = -1, -2, -3
RESERVE = 2
NEVER = 2**31 - 1


class Upkeep(Protocol):
    """What this module and its twin offer."""

    def drop(self, pool: BlockPool, ids: Tensor) -> None: ...

    def push_freed(self, pool: BlockPool) -> Tensor: ...

    def settle_tokens(self, table: TokenTable, rows: Tensor, kill: Tensor | None) -> Tensor: ...

    def settle_blocks(self, table: TokenTable, rows: Tensor, ordinals: int, *, drop_leaving: bool = False, close: bool = True) -> None: ...


def drop(pool: BlockPool, ids: Tensor) -> None:
    """Take one owner from each block, int64 [n]; those without any are marked in `freed`."""
    dropped = torch.zeros_like(pool.owners).index_add_(0, ids, torch.ones_like(ids, dtype=torch.int32))
    dropped[pool.trash].zero_()
    pool.owners -= dropped
    pool.freed |= (dropped > 0) & (pool.owners == 0)


def push_freed(pool: BlockPool) -> Tensor:
    """Blocks marked as freed go onto the stack: how many, int64 []."""
    freed = pool.freed > 0
    at = torch.where(freed, pool.top + freed.cumsum(0) - 1, pool.trash)
    block = torch.arange(pool.n_blocks + 1, device=pool.device)
    pool.stack.scatter_(0, at, torch.where(freed, block, pool.trash))
    count = freed.sum()
    pool.top += count
    pool.freed.zero_()
    return count


def settle_tokens(table: TokenTable, rows: Tensor, kill: Tensor | None) -> Tensor:
    """Deaths, bool [B, W] (None: nobody dies), and the live part of the rows' maps. Returns how many died, int64 [B]."""
    width = table.max_tokens if kill is None else kill.shape[1]
    slot = table.slot[rows, :width]
    killed = torch.zeros_like(rows)
    if kill is not None:
        kill = kill & (slot >= 0)
        killed = kill.sum(1)
        table.slot[rows, :width] = slot.masked_fill_(kill, -1)
        died = table.died_at[rows, :width]
        table.died_at[rows, :width] = torch.where(kill & (died == NEVER), table.length[rows, None].to(torch.int32), died)
        n = min(table.ordinals(width), table.max_blocks)
        held = table.held[rows, : n * table.block_size]
        dead = (held >= 0) & kill.gather(1, held.clamp(min=0).long())
        if table.refill:
            closed = torch.where(table.private(rows)[:, :n], FREE, DEAD).to(torch.int32).repeat_interleave(table.block_size, 1)
            table.held[rows, : held.shape[1]] = torch.where(dead, closed, held)
        else:
            table.held[rows, : held.shape[1]] = held.masked_fill_(dead, DEAD)
    live = slot >= 0
    rank = live.cumsum(1, dtype=torch.int32)
    table.n_live[rows] = rank[:, -1].long()
    table.scatter(table.map, rows[:, None], rank.sub_(1), live, slot)
    return killed


def settle_blocks(table: TokenTable, rows: Tensor, ordinals: int, *, drop_leaving: bool = False, close: bool = True) -> None:
    """Drop blocks of the first `ordinals` that hold nothing any more (see `push_freed`), and write the free part of the rows' maps.

    drop_leaving: leaving blocks lose this owner. close=False: only the map is written.
    """
    size = table.block_size
    held = table.held[rows, : ordinals * size].unflatten(1, (-1, size))
    leaving, blocks = table.leaving[rows, :ordinals], table.blocks[rows, :ordinals]
    if drop_leaving:
        held.masked_fill_(leaving[..., None], DEAD)
        table.leaving.index_fill_(0, rows, 0)
        leaving = torch.zeros_like(leaving)
    if close:
        wanted = ((held >= 0) | (held <= RESERVED)).any(-1) | leaving
        held.masked_fill_(~wanted[..., None], DEAD)
        table.held[rows, : ordinals * size] = held.flatten(1)
        table.blocks[rows, :ordinals] = torch.where(wanted, blocks, table.pool.trash)
        drop(table.pool, torch.where(wanted, table.pool.trash, blocks).flatten())
    free = ((held == FREE) & ~leaving[..., None]).flatten(1)
    rank = free.cumsum(1, dtype=torch.int32)
    slots = (blocks[..., None] * size + torch.arange(size, device=rows.device)).flatten(1)
    table.n_free[rows] = rank[:, -1].long()
    table.scatter(table.map, rows[:, None], rank.add_(table.n_live[rows, None] - 1), free, slots)
