"""What one forward pass tells the attention layers, and what they leave behind."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from .attention import chunk_attention, decode_attention
from .kv_cache import KVCache
from .token_table import TokenTable


@dataclass
class StepContext:
    """One forward pass: either one new token for each of B rows, or one chunk of a single row.

    rows: int64 [B]. positions, slots: int64 [B, n] of the new tokens, already entered in the table; trash slots where a row is idle.
    tokens: a bound on every row's length. mass: fp32 [B, M] in slot-map order, summed over layers, where a policy reads attention.
    key_norms: fp32 [B, n] of the new tokens, mean over KV heads, summed over layers, where they are recorded.
    first_bad: int64 [B], the first layer whose output was not finite, -1 if none. attended: layers that have come by.
    """

    cache: KVCache
    table: TokenTable
    rows: Tensor
    positions: Tensor
    slots: Tensor
    tokens: int
    chunk: bool
    want_mass: bool
    replay: bool = False
    record: bool = False
    mass: Tensor | None = None
    first_bad: Tensor = field(init=False)
    attended: int = 0

    def __post_init__(self) -> None:
        device = self.rows.device
        self.first_bad = torch.full_like(self.rows, -1)
        self._visible: dict[int | None, Tensor] = {}
        if self.chunk:
            slot = self.table.slot[self.rows[0], : self.tokens]
            self.live_ids = (slot >= 0).nonzero().flatten()  # [N], token order
            self.live_slots = slot[self.live_ids].long()
            self.died_at = self.table.died_at[self.rows[0]][self.live_ids].long() if self.replay else None
            width = len(self.live_ids)
        else:
            width = min(self.tokens, self.table.map.shape[1])
            self.n_live = self.table.n_live[self.rows]
            valid = torch.arange(width, device=device) < self.n_live[:, None]
            self.map = torch.where(valid, self.table.map[self.rows, :width], self.table.trash_slot)
            self._visible[None] = valid
        self.key_norms = torch.zeros(self.slots.shape, device=device)
        if self.want_mass:
            self.mass = torch.zeros(len(self.rows), width, device=device)

    def visible(self, window: int | None) -> Tensor:
        """bool [B, M]: slot-map entries that this step's query sees. Token order makes a window one start index a row."""
        if window not in self._visible:
            assert window is not None
            ids = torch.arange(self.tokens, device=self.rows.device)
            slot = self.table.slot[self.rows, : self.tokens]
            start = ((slot >= 0) & (ids <= self.positions[:, :1] - window)).sum(1)
            self._visible[window] = self._visible[None] & (torch.arange(self.map.shape[1], device=ids.device) >= start[:, None])
        return self._visible[window]

    def attend(
        self, layer: int, query: Tensor, keys: Tensor, values: Tensor, scale: float, softcap: float | None, window: int | None
    ) -> Tensor:
        """Write the new keys and values, then attend. query: [B, Hq, n, D]; keys, values: [B, H, n, D]. Returns [B, n, Hq, D]."""
        cache = self.cache
        self.attended += 1
        cache.write(layer, self.slots, keys, values)
        if cache.queries is not None:
            cache.write_queries(layer, self.rows, self.positions, query)
        if self.record:
            self.key_norms += keys.float().norm(dim=-1).mean(1)
        pool_k, pool_v = cache.keys[layer], cache.values[layer]
        if self.chunk:
            k, v = pool_k[self.live_slots], pool_v[self.live_slots]
            args = (self.positions[0], self.live_ids, scale, softcap, window, self.died_at)
            out, mass = chunk_attention(query[0], k, v, *args, mass=self.want_mass)
            out = out.transpose(0, 1)[None]
        else:
            out, mass = decode_attention(
                query[:, :, 0], pool_k, pool_v, self.map, self.visible(window), scale, softcap, mass=self.want_mass
            )
            out = out[:, None]
        if self.mass is not None and mass is not None:
            self.mass += mass
        bad = ~out.isfinite().flatten(1).all(1)
        self.first_bad = torch.where(bad & (self.first_bad < 0), layer, self.first_bad)
        return out

    def attention_by_token(self, width: int, layers: int) -> Tensor:
        """The mass by token id: fp32 [B, width], mean over layers, 0 for tokens that were not live."""
        assert self.mass is not None
        live = self.table.slot[self.rows, :width] >= 0
        rank = (live.cumsum(1) - 1).clamp(0, max(self.mass.shape[1] - 1, 0))
        return torch.where(live, self.mass.gather(1, rank), 0) / layers
