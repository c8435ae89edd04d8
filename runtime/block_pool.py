"""The block pool: which blocks are free, and how many owners each other block has.

All state lives on the KV device and changes by main-stream operations that never synchronize. Sizes that depend on data are
bounded by the caller and padded; a padded entry names the trash block, index `n_blocks`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from . import upkeep
from .upkeep import Upkeep


class BlockPool:
    """A stack of free block ids with reference counts.

    stack: int64 [n_blocks + 1], the first `top` entries are free. top: int64 []. owners: int32 [n_blocks + 1].
    home: int64 [n_blocks + 1], the ordinal of a block in the block list of its owner (the same in all owners of a shared block).
    freed: int8 [n_blocks + 1], blocks that lost their last owner and are not on the stack yet.
    """

    def __init__(self, n_blocks: int, device: torch.device, *, kernels: bool = False) -> None:
        self.n_blocks, self.kernels = n_blocks, kernels
        self.device = device
        self.stack = torch.arange(n_blocks, -1, -1, device=device).roll(-1)  # low ids on top, trash last
        self.top = torch.tensor(n_blocks, device=device)
        self.owners = torch.zeros(n_blocks + 1, dtype=torch.int32, device=device)
        self.home = torch.zeros(n_blocks + 1, dtype=torch.int64, device=device)
        self.freed = torch.zeros(n_blocks + 1, dtype=torch.int8, device=device)

    @property
    def upkeep(self) -> Upkeep:
        """The pool's and its tables' operations: kernels, or their twins in plain PyTorch."""
        if self.kernels:
            from .kernels import slot_map

            return slot_map
        return upkeep

    @property
    def trash(self) -> int:
        """The id that padded entries use; it is never free and never held."""
        return self.n_blocks

    def pop(self, counts: Tensor, width: int) -> Tensor:
        """Take counts[b] blocks for each row b: int64 [B] -> int64 [B, width], trash beyond the count.

        The caller has made sure that enough blocks are free; an underflow is found by `check`.
        """
        rank = torch.arange(width, device=self.device)
        wanted = rank < counts[:, None]
        depth = (counts.cumsum(0) - counts)[:, None] + rank
        ids = self.stack[(self.top - 1 - depth).clamp(min=0)]
        ids = torch.where(wanted, ids, self.trash)
        self.owners.index_fill_(0, ids.flatten(), 1)  # a number assigned by index would come from the host, which waits for it
        self.top -= counts.sum()
        return ids

    def share(self, ids: Tensor) -> None:
        """Add one owner to each block: int64 [n]; trash entries are passed over."""
        self.owners.index_add_(0, ids, torch.ones_like(ids, dtype=torch.int32))

    def free(self, ids: Tensor) -> Tensor:
        """Take one owner from each block, int64 [n] (repeats count, trash is passed over); returns how many became free, int64 [].

        For an owner that ended. Applied moves and blocks whose tokens are all dead drop owners in `settle_blocks`.
        """
        self.upkeep.drop(self, ids)
        return self.push_freed()

    def push_freed(self) -> Tensor:
        """Blocks marked in `freed` go onto the stack: how many, int64 []. No block becomes free in any other way."""
        return self.upkeep.push_freed(self)

    def n_free(self) -> int:
        """Free blocks, read on the host (synchronizes)."""
        return int(self.top)

    def free_blocks(self) -> Tensor:
        """Ids of the free blocks, int64, ascending (synchronizes). Raises AssertionError if their number cannot be right."""
        top = self.n_free()
        assert 0 <= top <= self.n_blocks, f"block pool: {top} free of {self.n_blocks}: more blocks were taken or freed than there are"
        return self.stack[:top].sort().values

    def check(self) -> None:
        """Free and held blocks are the pool, each once. Raises AssertionError that names the blocks."""
        free = self.free_blocks()
        twice = free[1:][free[1:] == free[:-1]]
        assert not len(twice), f"block pool: blocks {twice.tolist()[:16]} are free twice"
        owners = self.owners[: self.n_blocks]
        below = (owners < 0).nonzero().flatten()
        assert not len(below), f"block pool: blocks {below.tolist()[:16]} were freed more often than held"
        is_free = torch.zeros(self.n_blocks, dtype=torch.bool, device=self.device).index_fill_(0, free, True)
        wrong = ((owners == 0) != is_free).nonzero().flatten()
        counts = owners[wrong].tolist()[:16]
        assert not len(wrong), f"block pool: blocks {wrong.tolist()[:16]} have {counts} owners, and the free stack says otherwise"
