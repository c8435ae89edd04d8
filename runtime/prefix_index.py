"""Which prompts' first blocks are still in the pool. The index is an owner of its blocks, beside the requests.

The host knows the keys and a number for each entry; the block ids stay on the device. A key hashes a unit of tokens and its
parent's key, so it names the whole prefix. Only blocks written before a request's first eviction are entered.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Sequence
from hashlib import blake2b

import torch
from torch import Tensor

from .token_table import TokenTable
from .transfer import to_device


def prefix_keys(tokens: Sequence[int], unit: int) -> list[bytes]:
    """The key of each whole unit of a prompt."""
    keys, parent = [], b""
    for first in range(0, len(tokens) - unit + 1, unit):
        parent = blake2b(parent + array("q", tokens[first : first + unit]).tobytes(), digest_size=16).digest()
        keys.append(parent)
    return keys


class PrefixIndex:
    """Least recently used entries go first, children before their parents."""

    def __init__(self, table: TokenTable, unit: int) -> None:
        self.table, self.unit = table, unit
        self.blocks_per_entry = unit // table.block_size
        self.capacity = table.pool.n_blocks // self.blocks_per_entry
        self._blocks = torch.full((self.capacity, self.blocks_per_entry), table.pool.trash, device=table.device)
        self._owned = torch.zeros_like(table.pool.owners)
        self._entries: OrderedDict[bytes, int] = OrderedDict()
        self._unused = list(range(self.capacity))

    def __len__(self) -> int:
        return len(self._entries)

    def match(self, keys: Sequence[bytes]) -> list[bytes]:
        """The longest run of keys from the first that the index has."""
        n = next((i for i, key in enumerate(keys) if key not in self._entries), len(keys))
        self._touch(keys[:n])
        return list(keys[:n])

    def adopt(self, row: int, keys: Sequence[bytes]) -> None:
        """Make the blocks of these entries the first tokens of an empty row."""
        numbers = to_device([self._entries[key] for key in keys], self.table.device)
        self.table.adopt(to_device([row], self.table.device), self._blocks[numbers].flatten())

    def enter(self, row: int, keys: Sequence[bytes]) -> None:
        """Enter the first units of a row that nothing was evicted from: its own blocks for each key that is not known yet."""
        fresh = [i for i, key in enumerate(keys) if key not in self._entries]
        if fresh:
            # There is always a number left: entries have no block in common, and this row has blocks that no entry has.
            numbers = [self._unused.pop() for _ in fresh]
            self._entries.update((keys[i], number) for i, number in zip(fresh, numbers, strict=True))
            ordinals = to_device(fresh, self.table.device)[:, None] * self.blocks_per_entry
            ids = self.table.blocks[row, ordinals + torch.arange(self.blocks_per_entry, device=self.table.device)]
            self._blocks[to_device(numbers, self.table.device)] = ids
            self._owned.index_fill_(0, ids.flatten(), 1)
            self.table.pool.share(ids.flatten())
        self._touch(keys)

    def drop(self, n: int) -> Tensor:
        """Forget the n least recently used entries. Returns how many blocks became free, int64 []."""
        numbers = [self._entries.popitem(last=False)[1] for _ in range(min(n, len(self._entries)))]
        self._unused += numbers
        ids = self._blocks[to_device(numbers, self.table.device)].flatten()
        self._owned.index_fill_(0, ids, 0)
        return self.table.pool.free(ids)

    def owned(self) -> Tensor:
        """int32 [n_blocks + 1]: 1 where the index owns the block. Not a copy."""
        return self._owned

    def _touch(self, chain: Sequence[bytes]) -> None:
        """These units, each the parent of the next, were used: a child always goes before its parent."""
        for key in reversed(chain):
            self._entries.move_to_end(key)
