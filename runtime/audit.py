"""The conservation laws of table and pool, and who breaks them."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from .token_table import DEAD, FREE, RESERVED
from .worker import Worker


def check_worker(worker: Worker, names: Mapping[int, str]) -> None:
    """Check every law; reads the device. names: request of each row in use.

    free + held = all; owners = rows that list the block, plus the index; one live token, one slot, and both directions agree;
    the slot map is the live slots in token order, then the slots that may be appended to; nobody names a free block.
    """
    pool, table, size = worker.pool, worker.table, worker.table.block_size
    pool.check()
    owners = torch.zeros_like(pool.owners)
    listed = table.blocks[:-1].flatten()
    owners.index_add_(0, listed, torch.ones_like(listed, dtype=torch.int32))
    if worker.index is not None:
        owners += worker.index.owned()
    wrong = (owners[:-1] != pool.owners[:-1]).nonzero().flatten()
    if len(wrong):
        block = int(wrong[0])
        rows = (table.blocks[:-1] == block).any(1).nonzero().flatten().tolist()
        requests = [names.get(r, f"row {r} (no request)") for r in rows]
        raise AssertionError(f"block {block}: the pool counts {int(pool.owners[block])} owners, but {int(owners[block])} name it: {requests}")
    for row in range(table.rows):
        who = names.get(row)
        n_live, n_free, length = int(table.n_live[row]), int(table.n_free[row]), int(table.length[row])
        held, blocks = table.held[row], table.blocks[row]
        if who is None:
            assert length == 0 and not bool((blocks != pool.trash).any()), f"row {row} has no request but holds {length} tokens"
            continue
        slot = table.slot[row].long()
        ids = (slot >= 0).nonzero().flatten()
        assert len(ids) == n_live, f"{who}: {len(ids)} live tokens, counted {n_live}"
        assert not len(ids) or int(ids[-1]) < length, f"{who}: token {int(ids[-1])} lives, but only {length} were appended"
        assert torch.equal(table.map[row, :n_live], slot[ids]), f"{who}: the slot map does not list the live tokens in order"
        at = (held >= 0).nonzero().flatten()
        back = torch.full_like(slot, -1)
        back[held[at].long()] = blocks[at // size] * size + at % size
        assert len(at) == n_live and torch.equal(back, slot), f"{who}: slots and held tokens disagree at ids {(back != slot).nonzero().flatten().tolist()[:8]}"
        free = (held == FREE).nonzero().flatten()
        assert len(free) == n_free, f"{who}: {len(free)} free slots, counted {n_free}"
        assert torch.equal(table.map[row, n_live : n_live + n_free], blocks[free // size] * size + free % size), f"{who}: free slots of the map"
        bad = (free // size)[(pool.owners[blocks[free // size]] > 1) | table.leaving[row, free // size]]
        assert not len(bad), f"{who}: slots of shared or leaving blocks {blocks[bad].tolist()} may be appended to"
        absent = (blocks == pool.trash).repeat_interleave(size)
        assert bool((held[absent] == DEAD).all()), f"{who}: tokens in a block that it does not hold"
        idle = worker.reclaimer is None or worker.reclaimer.idle
        assert not (idle and bool((held == RESERVED).any())), f"{who}: slots reserved with no plan in flight"
