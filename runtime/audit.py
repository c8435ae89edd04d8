"""The conservation laws of table and pool, and who breaks them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from .block_pool import BlockPool
from .planner import Plan
from .prefix_index import PrefixIndex
from .token_table import TokenTable
from .upkeep import DEAD, FREE, NEVER, RESERVE, RESERVED
from .worker import Worker


def check_worker(worker: Worker, names: Mapping[int, str]) -> None:
    """Check every law of this module; reads the device. names: request of each row in use. Raises AssertionError."""
    check_owners(worker.pool, worker.table, worker.index, names)
    made = worker.reclaimer.in_flight if worker.reclaimer is not None else None
    check_rows(worker.table, names, made)


def check_owners(pool: BlockPool, table: TokenTable, index: PrefixIndex | None, names: Mapping[int, str]) -> None:
    """free + held = all; owners = rows that list the block, plus the index; nobody names a free block."""
    listed = table.blocks[:-1].flatten()
    owners = torch.zeros_like(pool.owners).index_add_(0, listed, torch.ones_like(listed, dtype=torch.int32))
    if index is not None:
        owners += index.owned()

    def who(block: int) -> str:
        rows = (table.blocks[:-1] == block).any(1).nonzero().flatten().tolist()
        named = [names.get(r, f"row {r} (no request)") for r in rows]
        cached = ["the prefix index"] if index is not None and int(index.owned()[block]) else []
        return ", ".join(named + cached) or "nobody"

    free = pool.free_blocks()
    for block in free[owners[free] > 0].tolist():
        raise AssertionError(f"block {block} is free, and named by {who(block)}")
    for block in (owners[:-1] != pool.owners[:-1]).nonzero().flatten().tolist():
        raise AssertionError(f"block {block}: the pool counts {int(pool.owners[block])} owners, but it is named by {who(block)}")
    pool.check()


def check_rows(table: TokenTable, names: Mapping[int, str], made: Plan | None) -> None:
    """What each request's row says of its tokens, its blocks and its slot map, with or without a plan in flight."""
    unused = torch.tensor([row for row in range(table.rows) if row not in names], dtype=torch.int64, device=table.device)
    dirty = (
        (table.length[unused] != 0)
        | (table.blocks[unused] != table.pool.trash).any(1)
        | (table.slot[unused] != -1).any(1)
        | (table.held[unused] != DEAD).any(1)
        | table.leaving[unused].any(1)
        | (table.died_at[unused] != NEVER).any(1)
    )
    assert not bool(dirty.any()), f"rows {unused[dirty].tolist()} have no request but hold something"
    targets = made.target[: int(made.count)] if made is not None else None
    for row, name in names.items():
        for fault in _faults(table, row, targets, planned=made is not None and bool((made.rows == row).any())):
            raise AssertionError(f"{name} (row {row}): {fault}")


def _faults(table: TokenTable, row: int, targets: Tensor | None, *, planned: bool) -> Iterator[str]:
    pool, size = table.pool, table.block_size
    n_live, n_free, length = int(table.n_live[row]), int(table.n_free[row]), int(table.length[row])
    slot, died_at, held, blocks, leaving = (x[row] for x in (table.slot, table.died_at, table.held, table.blocks, table.leaving))
    by_block, present = held.unflatten(0, (-1, size)), blocks != pool.trash
    owned = blocks[present]

    def at_block(where: Tensor) -> list[int]:
        """Block ids of flat places in `held`."""
        return sorted({int(b) for b in blocks[where.nonzero().flatten() // size]})

    # Blocks.
    if len(owned.unique()) != len(owned):
        yield f"its list names a block twice: {sorted(owned.tolist())}"
    if bool((by_block[~present] != DEAD).any()) or bool(leaving[~present].any()):
        yield f"something is entered at ordinals {(~present).nonzero().flatten().tolist()[:8]}, where it holds no block"
    home = pool.home[owned] == present.nonzero().flatten()
    if not bool(home.all()):
        yield f"blocks {owned[~home].tolist()} are not at the ordinals that the pool knows"
    # Tokens.
    ids = torch.arange(len(slot), device=slot.device)
    wrong = (slot >= 0) != ((ids < length) & (died_at > length))
    if bool(wrong.any()):
        yield f"tokens {ids[wrong].tolist()[:8]} are live and not appended, or evicted, or neither (length {length})"
    live = ids[slot >= 0]
    if len(live) != n_live:
        yield f"{len(live)} live tokens, counted {n_live}"
    back = torch.full_like(slot, -1)
    places = (held >= 0).nonzero().flatten()
    back[held[places].long()] = (blocks[places // size] * size + places % size).to(torch.int32)
    if len(places) != len(live) or not torch.equal(back, slot):
        off = back != slot
        in_blocks = sorted({int(s) // size for s in torch.cat((slot[off], back[off])).tolist() if s >= 0})
        counts = f"{len(places)} held, {len(live)} live"
        yield f"slots and held tokens disagree: {counts}, at ids {ids[off].tolist()[:8]}, blocks {in_blocks[:8]}"
    # The slot map.
    if not torch.equal(table.map[row, :n_live], slot[live]):
        yield "the slot map does not list the live tokens in order"
    free = ((by_block == FREE) & ~leaving[:, None]).flatten()
    places = free.nonzero().flatten()
    if len(places) != n_free:
        yield f"{len(places)} slots may be appended to, counted {n_free}"
    if not torch.equal(table.map[row, n_live : n_live + n_free].long(), blocks[places // size] * size + places % size):
        yield "the slot map does not end in the slots that may be appended to"
    shared = free & (pool.owners[blocks] > 1).repeat_interleave(size)
    if bool(shared.any()):
        yield f"blocks {at_block(shared)} have other owners, and may be appended to"
    # The plan in flight.
    reserved = held <= RESERVED
    if targets is None or not planned:
        if bool(reserved.any()) or bool(leaving.any()):
            yield f"slots of blocks {at_block(reserved)} are reserved, or blocks {blocks[leaving].tolist()} leave, and no plan says so"
    else:
        own = targets[targets // len(held) == row] % len(held)
        if sorted(own.tolist()) != reserved.nonzero().flatten().tolist():
            yield f"the slots reserved in blocks {at_block(reserved)} are not the targets of the plan"
    if bool((held < RESERVED - RESERVE + 1).any()):
        yield f"slots of blocks {at_block(held < RESERVED - RESERVE + 1)} are reserved twice"
    empty = present & ~((by_block >= 0) | (by_block <= RESERVED)).any(1) & ~leaving
    if not planned and bool(empty.any()):
        yield f"blocks {blocks[empty].tolist()} hold no live token and were not given back"
