"""What one forward pass tells the attention layers, and what they leave behind."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field

import torch
from torch import Tensor

from .attention import chunk_attention, decode_attention
from .kv_cache import KVCache
from .token_table import TokenTable


@dataclass
class StepContext(ABC):
    """A part of a forward pass: either one new token for each of B rows, or one chunk of a single row.

    rows: int64 [B]. positions, slots: int64 [B, n] of the new tokens, already entered in the table; trash slots where a row is idle.
    tokens: a bound on every row's length. chunk: None, or the row and the position of its first query.
    mass: fp32 [B, M] in slot-map order, summed over layers, where a policy reads attention.
    key_norms: fp32 [B, n] of the new tokens, mean over KV heads, summed over layers, where they are recorded.
    attended: layers that have come by.
    """

    cache: KVCache
    table: TokenTable
    rows: Tensor
    positions: Tensor
    slots: Tensor
    tokens: int
    chunk: tuple[int, int] | None
    want_mass: bool
    replay: bool = False
    record: bool = False
    mass: Tensor | None = field(default=None, init=False)
    attended: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self.layers = len(self.cache.keys)
        self.key_norms = torch.zeros(self.slots.shape, device=self.rows.device) if self.record else None

    @property
    @abstractmethod
    def bad_layer(self) -> Tensor:
        """int64 [B], the first layer whose output was not finite, -1 if none."""

    def choose(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """logits: [B, V]. Returns the greedy choice and the first layer that went wrong, int64 [B] each; `self.layers` is the head."""
        lowest, highest = logits.aminmax(dim=-1)
        finite = lowest.isfinite() & highest.isfinite()
        return logits.argmax(-1), torch.where(self.bad_layer >= 0, self.bad_layer, torch.where(finite, -1, self.layers))

    @abstractmethod
    def _attention(self, layer: int, query: Tensor, scale: float, softcap: float | None, window: int | None) -> Tensor:
        """query: [B, n, Hq, D] -> the same, once the new keys and values are written."""

    def attend(
        self, layer: int, query: Tensor, keys: Tensor, values: Tensor, scale: float, softcap: float | None, window: int | None
    ) -> Tensor:
        """Write the new keys and values, then attend. query: [B, Hq, n, D]; keys, values: [B, H, n, D]. Returns [B, n, Hq, D]."""
        self.cache.write(layer, self.slots, keys, values)
        if self.key_norms is not None:
            self.key_norms += keys.float().norm(dim=-1).mean(1)
        return self.attend_written(layer, query.transpose(1, 2), scale, softcap, window)

    def attend_written(self, layer: int, query: Tensor, scale: float, softcap: float | None, window: int | None) -> Tensor:
        """As `attend`, with keys and values in the cache already. query: [B, n, Hq, D]."""
        self.attended += 1
        if self.cache.queries is not None:
            self.cache.write_queries(layer, self.rows, self.positions, query.transpose(1, 2))
        return self._attention(layer, query, scale, softcap, window)

    def attention_by_token(self, counts: Tensor) -> Tensor:
        """The mass by token id: fp32 [B, tokens], mean over layers; 0 for tokens that were not live and rows that did not run.

        counts: int64 [B], tokens that ran.
        """
        assert self.mass is not None
        live = (self.table.slot[self.rows, : self.tokens] >= 0) & (counts[:, None] > 0)
        rank = (live.cumsum(1) - 1).clamp(0, max(self.mass.shape[1] - 1, 0))
        return torch.where(live, self.mass.gather(1, rank), 0) / self.layers


@dataclass(frozen=True)
class Part:
    """Of a forward pass. ids: int64 [B, n], at the step's positions. samples: the last position's logits are wanted."""

    ids: Tensor
    step: StepContext
    samples: bool = True


class PlainStep(StepContext):
    """In plain PyTorch: for CPUs, and the truth for the kernels."""

    def __post_init__(self) -> None:
        super().__post_init__()
        device = self.rows.device
        self._bad_layer = torch.full_like(self.rows, -1)
        self._visible: dict[int | None, Tensor] = {}
        if self.chunk is not None:
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
        if self.want_mass:
            self.mass = torch.zeros(len(self.rows), width, device=device)

    @property
    def bad_layer(self) -> Tensor:
        return self._bad_layer

    def visible(self, window: int | None) -> Tensor:
        """bool [B, M]: slot-map entries that this step's query sees. Token order makes a window one start index a row."""
        if window not in self._visible:
            assert window is not None
            start = first_in_window(self.table, self.rows, self.positions, self.tokens, window)
            self._visible[window] = self._visible[None] & (torch.arange(self.map.shape[1], device=start.device) >= start[:, None])
        return self._visible[window]

    def _attention(self, layer: int, query: Tensor, scale: float, softcap: float | None, window: int | None) -> Tensor:
        pool_k, pool_v = self.cache.keys[layer], self.cache.values[layer]
        if self.chunk is not None:
            k, v = pool_k[self.live_slots], pool_v[self.live_slots]
            args = (self.positions[0], self.live_ids, scale, softcap, window, self.died_at)
            out, mass = chunk_attention(query[0].transpose(0, 1), k, v, *args, mass=self.want_mass)
            out = out.transpose(0, 1)[None]
        else:
            out, mass = decode_attention(query[:, 0], pool_k, pool_v, self.map, self.visible(window), scale, softcap, mass=self.want_mass)
            out = out[:, None]
        if self.mass is not None and mass is not None:
            self.mass += mass
        bad = ~out.isfinite().flatten(1).all(1)
        self._bad_layer = torch.where(bad & (self._bad_layer < 0), layer, self._bad_layer)
        return out


def first_in_window(table: TokenTable, rows: Tensor, positions: Tensor, tokens: int, window: int) -> Tensor:
    """int64 [B]: the first entry of each row's slot map that the query at `positions`, int64 [B, 1], sees through a sliding window."""
    ids = torch.arange(tokens, device=rows.device)
    return ((table.slot[rows, :tokens] >= 0) & (ids <= positions - window)).sum(1)
