"""The Token Table: where each token of each request lives, and whether it lives.

One row a request (a lane: with G groups a request has G of them; at token granularity G = 1). T = token ids, N = ordinals of
held blocks, S = slots a block. Vectorized over rows, never synchronizing; the same code runs on CPU and CUDA tensors.
Masked writes land in a trash row (the last), so that no index is ever -1.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .block_pool import BlockPool
from .upkeep import DEAD, FREE, NEVER, RESERVE, RESERVED

PAD = 64


def round_up(n: int, multiple: int) -> int:
    return -(-n // multiple) * multiple


class TokenTable:
    """State of all rows, by token id, by held slot, and as the slot map that attention reads.

    slot:    int32 [R + 1, T]     physical slot of a live token id, -1 when dead or not yet appended
    died_at: int32 [R + 1, T]     the length at which a token died: queries at positions >= died_at do not see it; NEVER if live
    blocks:  int64 [R + 1, N]     block id of each ordinal, the trash id where there is none
    held:    int32 [R + 1, N * S] token id living in each held slot, or FREE, DEAD, reserved (the reverse of `slot`)
    map:     int32 [R + 1, N * S] the slot map: live slots in token order, then slots that new tokens may take
    leaving: bool  [R + 1, N]     blocks that a plan in flight is emptying; nothing is appended to them
    length, n_live, n_free: int64 [R + 1]

    spare_blocks: how many blocks a plan may add to a row before it takes others away. The pool's `kernels` hold for the table too.
    generation: counts reallocations.
    """

    def __init__(self, pool: BlockPool, rows: int, block_size: int, *, refill: bool, spare_blocks: int = 0) -> None:
        self.kernels, self.generation = pool.kernels, 0
        self.pool, self.rows, self.block_size, self.refill, self.spare_blocks = pool, rows, block_size, refill, spare_blocks
        self.device = pool.device
        self.max_tokens = self.max_blocks = 0
        self.length = torch.zeros(rows + 1, dtype=torch.int64, device=self.device)
        self.n_live, self.n_free = self.length.clone(), self.length.clone()
        self._offsets = torch.arange(block_size, device=self.device)
        self._allocate(0)

    # -- capacity -------------------------------------------------------------------------------------------------------

    def ordinals(self, tokens: int) -> int:
        """Block ordinals that a row of so many tokens can use: it never held more blocks at once, and takes the lowest free one."""
        whole = -(-tokens // self.block_size)
        # One block for the ragged end, one for appends while a plan closes the block that they would go to.
        return whole + 2 + min(self.spare_blocks, whole)

    def _allocate(self, max_tokens: int) -> None:
        max_blocks = self.ordinals(max_tokens)

        def full(width: int, value: int, dtype: torch.dtype) -> Tensor:
            return torch.full((self.rows + 1, width), value, dtype=dtype, device=self.device)

        self.slot = full(max_tokens, -1, torch.int32)
        self.died_at = full(max_tokens, NEVER, torch.int32)
        self.blocks = full(max_blocks, self.pool.trash, torch.int64)
        self.held = full(max_blocks * self.block_size, DEAD, torch.int32)
        self.map = full(max_blocks * self.block_size, self.trash_slot, torch.int32)
        self.leaving = full(max_blocks, False, torch.bool)
        self.max_tokens, self.max_blocks = max_tokens, max_blocks
        self.generation += 1

    def reserve(self, tokens: int) -> None:
        """Make room for rows of `tokens` token ids. Grows by reallocation, between steps and with no plan in flight."""
        tokens = round_up(tokens, PAD)
        if tokens <= self.max_tokens:
            return
        old = (self.slot, self.died_at, self.blocks, self.held, self.map, self.leaving)
        self._allocate(max(tokens, min(2 * self.max_tokens, tokens + 4096)))
        for new, was in zip((self.slot, self.died_at, self.blocks, self.held, self.map, self.leaving), old, strict=True):
            new[:, : was.shape[1]] = was

    @property
    def trash_slot(self) -> int:
        """The slot that padded entries read and write: the first slot of the trash block."""
        return self.pool.trash * self.block_size

    # -- operations -----------------------------------------------------------------------------------------------------

    def append(self, rows: Tensor, counts: Tensor, width: int) -> Tensor:
        """Give slots to counts[b] new tokens of row rows[b]; both int64 [B]. Returns int64 [B, width], trash beyond the count.

        Takes the row's free private slots first, then pops blocks. The caller has bounded the pops by the free blocks.
        """
        if self.kernels and width == 1:
            from .kernels import slot_map

            return slot_map.append_one(self, rows, counts)
        size, trash_row = self.block_size, self.rows
        n_live, n_free, length = self.n_live[rows], self.n_free[rows], self.length[rows]
        pops = (counts - n_free + size - 1).clamp(min=0) // size
        rank = torch.arange(-(-width // size), device=self.device)
        new = self.pool.pop(pops, len(rank))  # [B, k]
        got = rank < pops[:, None]
        self.open_blocks(rows, new, got)
        slots = new[..., None] * size + self._offsets  # [B, k, S]
        at = (n_live + n_free)[:, None, None] + rank[:, None] * size + self._offsets
        self.scatter(self.map, rows[:, None, None], at, got[..., None].expand_as(at), slots)
        token = torch.arange(width, device=self.device)
        real = token < counts[:, None]  # [B, width]
        taken = self.map[torch.where(real, rows[:, None], trash_row), torch.where(real, n_live[:, None] + token, 0)]
        taken = torch.where(real, taken, self.trash_slot).long()
        ids = length[:, None] + token
        self.scatter(self.slot, rows[:, None], ids, real, taken)
        self.scatter(self.held, rows[:, None], self.pool.home[taken // size] * size + taken % size, real, ids)
        self.n_live[rows] = n_live + counts
        self.n_free[rows] = n_free + pops * size - counts
        self.length[rows] = length + counts
        return taken

    def evict_token(self, rows: Tensor, kill: Tensor) -> tuple[Tensor, Tensor]:
        """Clear the live bit of tokens: rows int64 [B], kill bool [B, W], no row longer than W. All-dead blocks go back at once.

        Returns how many tokens died and how many blocks became free, int64 [] each.
        """
        killed = self.pool.upkeep.settle_tokens(self, rows, kill)
        self.pool.upkeep.settle_blocks(self, rows, min(self.ordinals(kill.shape[1]), self.max_blocks))
        return killed.sum(), self.pool.push_freed()

    def apply_logged_deaths(self, rows: Tensor) -> Tensor:
        """Kill what the eviction log says is dead by now: for rows that are being recomputed. Returns the blocks that became free."""
        return self.evict_token(rows, self.died_at[rows] <= self.length[rows, None])[1]

    def adopt(self, row: Tensor, ids: Tensor) -> None:
        """Give an empty row the shared blocks ids, int64 [k], as tokens 0 .. k * S - 1. row: int64 [1]."""
        n = len(ids) * self.block_size
        self.pool.share(ids)
        slots = (ids[:, None] * self.block_size + self._offsets).flatten().to(torch.int32)
        self.blocks[row, : len(ids)] = ids
        self.held[row, :n] = torch.arange(n, dtype=torch.int32, device=self.device)
        self.slot[row, :n] = slots
        self.map[row, :n] = slots
        for x, value in ((self.n_live, n), (self.n_free, 0), (self.length, n)):
            x.index_fill_(0, row, value)

    def release(self, rows: Tensor) -> Tensor:
        """The requests of these rows, int64 [B], ended: drop their blocks and forget them. Returns the blocks that became free."""
        freed = self.pool.free(self.blocks[rows].flatten())
        by_token, by_block = (
            ((self.slot, -1), (self.died_at, NEVER)),
            ((self.blocks, self.pool.trash), (self.held, DEAD), (self.leaving, 0)),
        )
        for x, value in (*by_token, *by_block, (self.map, self.trash_slot), (self.length, 0), (self.n_live, 0), (self.n_free, 0)):
            x.index_fill_(0, rows, value)
        return freed

    # -- moves ----------------------------------------------------------------------------------------------------------

    def private(self, rows: Tensor) -> Tensor:
        """Blocks that only this row owns, bool [B, N]: the others are immutable."""
        blocks = self.blocks[rows]
        return (blocks != self.pool.trash) & (self.pool.owners[blocks] == 1)

    def begin_moves(self, rows: Tensor, leaving: Tensor, target: Tensor, count: Tensor) -> None:
        """Mark a plan: leaving bool [B, N]; target int64 [cap], the first `count` of them flat indices into `held`."""
        flat = self.held.view(-1)
        planned = torch.arange(len(target), device=self.device) < count
        flat[target] = torch.where(planned, flat[target] - RESERVE, DEAD)
        self.leaving[rows] = leaving
        self.pool.upkeep.settle_blocks(self, rows, self.max_blocks, close=False)

    def apply_moves(self, rows: Tensor, source: Tensor, target: Tensor, token: Tensor, count: Tensor) -> tuple[Tensor, Tensor]:
        """Publish a plan: a move counts only if its source still holds that token. Leaving blocks lose this owner.

        rows: int64 [B] of the plan. source, target: int64 [cap], flat indices into `held`, the trash row's beyond `count`;
        token: int64 [cap]; count: int64 [].
        Returns how many moves counted and how many blocks became free, int64 [] each.
        """
        flat, width = self.held.view(-1), self.held.shape[1]
        planned = torch.arange(len(source), device=self.device) < count
        counts = planned & (flat[source] == token)
        flat[target] = torch.where(counts, token.to(torch.int32), torch.where(planned, flat[target] + RESERVE, DEAD))
        row, at = target // width, target % width
        where = self.blocks[row, at // self.block_size] * self.block_size + at % self.block_size
        self.scatter(self.slot, row, token, counts, where)
        return counts.sum(), self._settle(rows, drop_leaving=True)

    def cancel_moves(self, rows: Tensor) -> Tensor:
        """Undo the marks of a plan. Returns how many blocks became free: those that were opened for it or died in the meantime."""
        held = self.held[rows]
        self.held[rows] = torch.where(held <= RESERVED, held + RESERVE, held)
        self.leaving.index_fill_(0, rows, 0)
        return self._settle(rows)

    def open_blocks(self, rows: Tensor, new: Tensor, got: Tensor) -> Tensor:
        """Enter new blocks, int64 [B, k] where `got`, at the rows' lowest free ordinals; returns these, int64 [B, k]."""
        k, absent = new.shape[1], self.blocks[rows] == self.pool.trash  # [B, N]
        rank = absent.cumsum(1) - 1
        at = torch.arange(self.max_blocks, device=self.device).expand_as(absent)
        ordinals = torch.zeros(len(rows), k + 1, dtype=torch.int64, device=self.device)
        ordinals = ordinals.scatter_(1, torch.where(absent & (rank < k), rank, k), at)[:, :k]
        self.scatter(self.blocks, rows[:, None], ordinals, got, new)
        self.pool.home[new.flatten()] = ordinals.flatten()
        slots = ordinals[..., None] * self.block_size + self._offsets
        self.scatter(self.held, rows[:, None, None], slots, got[..., None].expand_as(slots), slots.new_full((), FREE))
        return ordinals

    def tokens_at(self, row: int, slots: Tensor) -> Tensor:
        """The token ids that live in these slots of a row: int32 [n]. Slots that are not the row's give anything."""
        slots = slots.long()
        place = self.pool.home[slots // self.block_size] * self.block_size + slots % self.block_size
        return self.held[row][place.clamp_(max=self.held.shape[1] - 1)]

    # -- parts ----------------------------------------------------------------------------------------------------------

    def _settle(self, rows: Tensor, *, drop_leaving: bool = False) -> Tensor:
        """After moves: rewrite the slot maps from the table as it is. Returns how many blocks became free."""
        self.pool.upkeep.settle_tokens(self, rows, None)
        self.pool.upkeep.settle_blocks(self, rows, self.max_blocks, drop_leaving=drop_leaving)
        return self.pool.push_freed()

    def scatter(self, table: Tensor, rows: Tensor, at: Tensor, where: Tensor, value: Tensor) -> None:
        """table[rows, at] = value where `where`; the other entries go to the trash row."""
        width = table.shape[1]
        index = at.to(torch.int64, copy=True).add_(rows * width).masked_fill_(~where, self.rows * width)
        table.view(-1).scatter_(0, index.flatten(), value.to(table.dtype).expand(index.shape).flatten())
