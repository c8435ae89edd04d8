"""Keys and values of all layers, by physical slot, and the last queries of each request where a policy wants them."""

from __future__ import annotations

import torch
from torch import Tensor


class KVCache:
    """keys, values: [L, n_slots + S + 1, H, D]; beyond the pool lie the trash block, which padding reads, and a slot that nobody reads.

    queries: [L, R + 1, Hq, W, D], a ring by position.
    """

    def __init__(
        self,
        layers: int,
        n_slots: int,
        block_size: int,
        heads: int,
        head_dim: int,
        dtype: torch.dtype,
        device: torch.device,
        *,
        kernels: bool = False,
    ) -> None:
        self.n_slots, self.kernels = n_slots, kernels
        shape = (layers, n_slots + block_size + 1, heads, head_dim)
        # Not zeros: nobody reads a slot before it is written, and memory that is never touched costs nothing on most machines.
        self.keys = torch.empty(shape, dtype=dtype, device=device)
        self.values = torch.empty(shape, dtype=dtype, device=device)
        self.keys[:, n_slots:] = self.values[:, n_slots:] = 0
        self.queries: Tensor | None = None

    def keep_queries(self, rows: int, query_heads: int, window: int) -> None:
        """Keep the last `window` queries of each row."""
        layers, _, _, head_dim = self.keys.shape
        self.queries = self.keys.new_zeros(layers, rows + 1, query_heads, window, head_dim)

    def write(self, layer: int, slots: Tensor, keys: Tensor, values: Tensor) -> None:
        """slots: int64 [B, n]; keys, values: [B, H, n, D]."""
        if self.kernels:
            from .kernels.kv_write import write_kv

            write_kv(keys, values, self.keys[layer], self.values[layer], slots)
            return
        self.keys[layer, slots.flatten()] = keys.transpose(1, 2).flatten(0, 1).to(self.keys.dtype)
        self.values[layer, slots.flatten()] = values.transpose(1, 2).flatten(0, 1).to(self.values.dtype)

    def write_queries(self, layer: int, rows: Tensor, positions: Tensor, queries: Tensor) -> None:
        """rows: int64 [B]; positions: int64 [B, n]; queries: [B, Hq, n, D]. The last W of each row stay."""
        assert self.queries is not None
        window = self.queries.shape[3]
        positions, queries = positions[:, -window:], queries[:, :, -window:]
        # Advanced indices on axes 0 and 2 of [R + 1, Hq, W, D] come first: [B, n, Hq, D].
        self.queries[layer][rows[:, None], :, positions % window] = queries.transpose(1, 2)

    def last_queries(self, layer: int, row: int, length: int) -> tuple[Tensor, Tensor]:
        """The last min(W, length) queries of a row in order: [Hq, W', D], and their positions int64 [W']."""
        assert self.queries is not None
        window = self.queries.shape[3]
        positions = torch.arange(max(0, length - window), length, device=self.queries.device)
        return self.queries[layer, row][:, positions % window], positions

    @property
    def bytes_per_token(self) -> int:
        """Bytes of one token's keys and values over all layers."""
        layers, _, heads, head_dim = self.keys.shape
        return 2 * layers * heads * head_dim * self.keys.element_size()

    def copy_slots(self, source: Tensor, target: Tensor) -> None:
        """Move tokens: source, target int64 [n], no slot in both; all layers."""
        self.keys[:, target] = self.keys[:, source]
        self.values[:, target] = self.values[:, source]

    def move(self, source: Tensor, target: Tensor, count: Tensor) -> None:
        """`copy_slots` of the first `count`, int64 [], without waiting for the number; what is beyond is padding."""
        if self.kernels:
            from .kernels.moves import move_tokens

            move_tokens(self.keys, self.values, source, target, count)
        else:
            self.copy_slots(source, target)

    def poison(self, keep: Tensor) -> None:
        """Write NaN into every slot not in `keep`, bool [n_slots]: a debugging aid."""
        if keep.is_cuda:  # how many they are, the host need not know; a masked fill would write to the others too, under a copy's hands
            unread = self.keys.shape[1] - 1
            dead = torch.arange(self.n_slots, device=keep.device).masked_fill_(keep, unread)
        else:
            dead = (~keep).nonzero().flatten()
        self.keys.index_fill_(1, dead, torch.nan)
        self.values.index_fill_(1, dead, torch.nan)
