"""What the slots of a pool hold, seen from the table: for audits, reports, and for finding reads of what is dead."""

from __future__ import annotations

import torch
from torch import Tensor

from .kv_cache import KVCache
from .prefix_index import PrefixIndex
from .token_table import TokenTable
from .upkeep import RESERVED


def live_slots(table: TokenTable) -> Tensor:
    """bool [n_slots]: slots that hold a live token of some request."""
    slot = table.slot[:-1].long()
    return _marked(table, torch.where(slot >= 0, slot, table.trash_slot))[:-1]


def occupancy(table: TokenTable) -> Tensor:
    """int64 [S + 1]: how many blocks that requests hold, each once, have 0, 1, ... S live tokens."""
    size, blocks = table.block_size, table.blocks[:-1].flatten()
    held = torch.zeros_like(table.pool.freed, dtype=torch.bool).index_fill_(0, blocks, 1)[:-1]
    live = live_slots(table).view(-1, size).sum(1)
    return torch.bincount(torch.where(held, live, size + 1), minlength=size + 2)[:-1]


def poison_dead_slots(table: TokenTable, cache: KVCache, index: PrefixIndex | None) -> None:
    """NaN into every slot that holds nothing of value; a move's target holds a value once it is copied. Never waits."""
    size = table.block_size
    held_slots = (table.blocks[..., None] * size + torch.arange(size, device=table.device)).flatten(1)  # [R + 1, N * S]
    reserved = torch.where(table.held <= RESERVED, held_slots, table.trash_slot).clamp(max=table.trash_slot)
    keep = live_slots(table) | _marked(table, reserved)[:-1]
    if index is not None:
        keep |= (index.owned()[:-1] > 0).repeat_interleave(size)
    cache.poison(keep)


def _marked(table: TokenTable, slots: Tensor) -> Tensor:
    """bool [n_slots + 1]: the slots of an int64 tensor that names the trash slot, the last one, where it means none."""
    mark = torch.zeros(table.trash_slot + 1, dtype=torch.bool, device=table.device)
    return mark.index_fill_(0, slots.flatten(), 1)
