"""Which live tokens move where, so that blocks become empty. Pure functions of the table; no synchronization, static shapes.

`fill` moves the live tokens of a row's sparsest blocks into dead slots of its fullest private ones: it needs no free block and
moves few tokens. The block that new tokens go to stays, and is filled last: to empty it would only open another.
`fresh` packs the sparsest blocks into new ones and waits until the pool has them to spare.
A block with more than one owner is never written. To empty one (its live bytes are copied out, this owner leaves) gives no memory
back as long as the others stay, so such blocks only get the room that emptying private blocks has left over.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .config import ReclaimOptions
from .token_table import TokenTable
from .upkeep import FREE


@dataclass(frozen=True)
class Plan:
    """Moves of one reclaim. source, target: int64 [cap], flat indices into `TokenTable.held`; token: int64 [cap], the id that moves.

    source_slot, target_slot: int64 [cap], physical slots. Entries from `count`, int64 [], on are padding: the trash row's first
    held slot, and the trash slot. rows: int64 [B], the rows that the plan looked at.
    """

    rows: Tensor
    source: Tensor
    target: Tensor
    token: Tensor
    source_slot: Tensor
    target_slot: Tensor
    count: Tensor


def spare_blocks(options: ReclaimOptions, block_size: int) -> int:
    """How many blocks one plan can add to a row before it takes others away."""
    return 0 if options.packing == "fill" else -(-(options.move_cap + options.slack) // block_size)


@dataclass(frozen=True)
class _Ranked:
    """The rows' blocks by rank: first those that stay, then private and then shared ones from sparsest to fullest. All [B, N]."""

    order: Tensor  # ordinal, int64
    live: Tensor  # live tokens, int64
    private: Tensor  # bool, may leave
    shared: Tensor  # bool, may leave
    holes: Tensor  # slots that tokens may move to if the block stays, int64
    cost: Tensor  # ascends with the rank, int64


def plan(table: TokenTable, rows: Tensor, options: ReclaimOptions) -> Plan:
    """Plan one reclaim for these rows, int64 [B], and mark it in the table: `leaving`, reserved targets, the slot map's free part.

    At most `move_cap` tokens move. Until `TokenTable.apply_moves` the sources are only read and the targets are in no map.
    """
    choose = _choose_fill if options.packing == "fill" else _choose_fresh
    ranked = _rank_blocks(table, rows, keep_open=options.packing == "fill" and not table.refill)
    take, into, holes = choose(table, rows, ranked, options)
    # More than every slot cannot move, whatever the cap.
    made = _pair(table, rows, ranked, take, into, holes, min(options.move_cap, len(rows) * table.held.shape[1]))
    leaving = torch.empty_like(take).scatter_(1, ranked.order, take)
    table.begin_moves(rows, leaving, made.target, made.count)
    return made


def _rank_blocks(table: TokenTable, rows: Tensor, *, keep_open: bool) -> _Ranked:
    """keep_open: blocks stay that new tokens may go to. (With refill these are all blocks with a dead slot.)"""
    size = table.block_size
    held = table.held[rows].unflatten(1, (-1, size))
    live = (held >= 0).sum(2)
    private, present = table.private(rows), table.blocks[rows] != table.pool.trash
    stays = private & (held == FREE).any(2) if keep_open else torch.zeros_like(private)
    kind = torch.where(private, torch.where(stays, 0, 1), torch.where(present, 2, 3))
    cost, order = (kind * (size + 1) + live).sort(dim=1, stable=True)
    live, kind = live.gather(1, order), kind.gather(1, order)
    return _Ranked(order, live, kind == 1, kind == 2, torch.where(kind <= 1, size - live, 0), cost)


def _choose_fill(table: TokenTable, rows: Tensor, ranked: _Ranked, options: ReclaimOptions) -> tuple[Tensor, Tensor, Tensor]:
    """Who leaves, bool [B, N] by rank; the blocks that are filled, ordinals int64 [B, K] in this order; their holes, int64 [B, K]."""
    size, live = table.block_size, ranked.live
    sparse = live <= int(options.threshold * size)
    room = (ranked.holes.sum(1, keepdim=True) - options.slack).clamp(min=0)
    # A private block that leaves uses a whole block's worth of room, however sparse: its tokens move, and its own holes go.
    take = ranked.private & sparse & (ranked.private.cumsum(1) * size <= room)
    room = room - size * take.sum(1, keepdim=True)
    take |= ranked.shared & sparse & (torch.where(ranked.shared, live, 0).cumsum(1) <= room)
    take = _under_cap(ranked, take, options.move_cap)
    # The fullest first, and last those that stay in any case.
    return take, ranked.order.flip(1), ranked.holes.masked_fill(take, 0).flip(1)


def _under_cap(ranked: _Ranked, take: Tensor, cap: int) -> Tensor:
    """Of all blocks to take in the batch, private before shared and sparsest first, those whose live tokens add up to the cap."""
    order = torch.where(take, ranked.cost, torch.iinfo(torch.int64).max).flatten().argsort(stable=True)
    live = torch.where(take, ranked.live, 0).flatten()[order]
    fits = live.cumsum(0) <= cap
    return torch.empty_like(fits).scatter_(0, order, fits).view_as(take) & take


def _choose_fresh(table: TokenTable, rows: Tensor, ranked: _Ranked, options: ReclaimOptions) -> tuple[Tensor, Tensor, Tensor]:
    """As `_choose_fill`, into blocks popped here. A row takes part if it gives back more than it takes and the pool keeps `margin`.

    Under the cap and the margin, rows that give back most come first.
    """
    size, live = table.block_size, ranked.live
    spare = (table.pool.top - options.margin).clamp(min=0)
    sparse = (live <= int(options.threshold * size)) & (live < size)
    take = ranked.private & sparse
    moved = torch.where(take, live, 0).cumsum(1)
    take &= (moved <= options.move_cap) & (moved + options.slack <= spare * size)
    moves = torch.where(take, live, 0).sum(1)
    pops = (moves + options.slack + size - 1) // size
    gain = (take.sum(1) - pops).clamp(min=0)
    left = torch.minimum(pops * size - options.slack, torch.full_like(moves, options.move_cap)) - moves
    take |= ranked.shared & sparse & (torch.where(ranked.shared, live, 0).cumsum(1) <= left[:, None])
    moves = torch.where(take, live, 0).sum(1)
    best = gain.argsort(descending=True, stable=True)
    fits = gain[best] > 0
    for cost, limit in ((pops, spare), (moves, options.move_cap)):
        fits &= torch.where(fits, cost[best], 0).cumsum(0) <= limit
    joins = torch.zeros_like(fits).scatter_(0, best, fits)
    pops = torch.where(joins, pops, 0)
    width = min(spare_blocks(options, size), live.shape[1])
    got = torch.arange(width, device=live.device) < pops[:, None]
    ordinals = table.open_blocks(rows, table.pool.pop(pops, width), got)
    return take & joins[:, None], ordinals, torch.where(got, size, 0)


def _pair(table: TokenTable, rows: Tensor, ranked: _Ranked, take: Tensor, into: Tensor, holes: Tensor, cap: int) -> Plan:
    """Pair each row's k-th live token of the blocks that leave, by rank, with the k-th hole of the blocks that are filled."""
    size = table.block_size
    n = torch.where(take, ranked.live, 0)  # [B, N]
    moves = n.sum(1)
    row_end = moves.cumsum(0)
    row_first = row_end - moves
    k = torch.arange(cap, device=rows.device)
    planned = k < row_end[-1]
    b = torch.searchsorted(row_end, k, right=True).clamp_(max=len(rows) - 1)

    def locate(first: Tensor, count: Tensor, ordinals: Tensor, live: bool) -> tuple[Tensor, Tensor]:
        """The k-th slot: flat index into `held`, and physical slot. first, count: slots before, and in, each block [B, K]."""
        first = first.flatten()
        at = torch.searchsorted(first + count.flatten(), k, right=True).clamp_(max=len(first) - 1)
        ordinal = ordinals.flatten()[at]
        block = table.held.unflatten(1, (-1, size))[rows[b], ordinal]  # [cap, S]
        wanted = (block >= 0) if live else (block < 0)
        offset = (wanted.cumsum(1, dtype=torch.int8) <= (k - first[at])[:, None]).sum(1).clamp_(max=size - 1)
        flat = (rows[b] * table.max_blocks + ordinal) * size + offset
        slot = table.blocks[rows[b], ordinal] * size + offset
        return torch.where(planned, flat, table.rows * table.held.shape[1]), torch.where(planned, slot, table.trash_slot)

    source, source_slot = locate(n.cumsum(1) - n + row_first[:, None], n, ranked.order, live=True)
    # A row's holes beyond its moves stay as they are.
    before = torch.minimum(holes.cumsum(1) - holes, moves[:, None])
    used = torch.minimum(holes, moves[:, None] - before)
    target, target_slot = locate(before + row_first[:, None], used, into, live=False)
    token = torch.where(planned, table.held.view(-1)[source].long(), 0)
    return Plan(rows, source, target, token, source_slot, target_slot, row_end[-1])
