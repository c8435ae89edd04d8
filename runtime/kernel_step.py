"""A forward pass by kernels: the fast twin of `PlainStep`. Nothing here waits for the device."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from .kernels.choose import choose
from .kernels.chunk_attention import chunk_attention, chunk_mass
from .kernels.decode_attention import LOG2E, NOT_BAD, DecodeScratch, decode_attention
from .kernels.kv_write import rope_and_write
from .kernels.slot_map import mass_by_token
from .step_context import StepContext, first_in_window

CUDNN_TOKENS = 512  # shorter chunks are faster without a plan of cuDNN's, which takes tens of milliseconds to make
CUDNN_BUCKET = 256  # it makes one a shape


class KernelStep(StepContext):
    """first_bad: int32 [B], the first layer whose output was not finite, `NOT_BAD` if none."""

    def __post_init__(self) -> None:
        super().__post_init__()
        device, table = self.rows.device, self.table
        self.first_bad = torch.full((len(self.rows),), NOT_BAD, dtype=torch.int32, device=device)
        self._first: dict[int, Tensor] = {}
        self._scratch: DecodeScratch | None = None
        width = min(self.tokens, table.map.shape[1])
        if self.chunk is not None:
            row = self.chunk[0]
            self._slots = table.map[row]
            self._n_live = table.n_live[row : row + 1]
            self._ids: Tensor | None = None
            self._died_at: Tensor | None = None
            if self.replay:
                self._died_at = table.died_at[row][self._token_ids().clamp(0, table.max_tokens - 1).long()]
        if self.want_mass:
            # Written by the first layer; what lies beyond a row's live tokens is never read.
            make = torch.zeros if self.chunk is not None else torch.empty
            self.mass = make(len(self.rows), width, device=device)

    @property
    def bad_layer(self) -> Tensor:
        return torch.where(self.first_bad == NOT_BAD, -1, self.first_bad).long()

    def choose(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        return choose(logits, self.first_bad, self.layers)

    def attention_by_token(self, counts: Tensor) -> Tensor:
        assert self.mass is not None
        return mass_by_token(self.table, self.rows, counts, self.mass, self.tokens, self.layers)

    def attend_projected(
        self, layer: int, qkv: Tensor, cos: Tensor, sin: Tensor, norms: tuple[Tensor, Tensor, float] | None, heads: int, scale: float,
        window: int | None,
    ) -> Tensor:  # fmt: skip
        """qkv: [B * n, (Hq + 2 H) * D], heads: Hq. Norms, rotates and writes, then attends. Returns [B * n, Hq * D]."""
        pool_k, pool_v = self.cache.keys[layer], self.cache.values[layer]
        query = qkv.new_empty(len(qkv), heads, pool_k.shape[2])
        rope_and_write(qkv, cos, sin, self.slots, query, pool_k, pool_v, norms)
        if self.key_norms is not None:
            self.key_norms += pool_k[self.slots].float().norm(dim=-1).mean(-1)
        out = self.attend_written(layer, query.unflatten(0, self.slots.shape), scale, None, window)
        return out.reshape(len(qkv), -1)

    def _attention(self, layer: int, query: Tensor, scale: float, softcap: float | None, window: int | None) -> Tensor:
        if self.chunk is None:
            return self._decode(layer, query[:, 0], scale, softcap, window)[:, None]
        if self._fits_cudnn(query, softcap, window):
            return self._own_chunk(layer, query[0], scale)[None]
        return self._chunk(layer, query[0], scale, softcap, window)[None]

    # -- decode ---------------------------------------------------------------------------------------------------------

    def _decode(self, layer: int, query: Tensor, scale: float, softcap: float | None, window: int | None) -> Tensor:
        cache, table = self.cache, self.table
        pool_k, pool_v = cache.keys[layer], cache.values[layer]
        if self._scratch is None:
            batch, query_heads, head_dim = query.shape
            heads, width = pool_k.shape[1], min(self.tokens, table.map.shape[1])
            self._scratch = DecodeScratch(
                batch, heads, query_heads // heads, head_dim, width, pool_k.dtype, query.device, mass=self.want_mass
            )
        if window is not None and window not in self._first:
            self._first[window] = first_in_window(table, self.rows, self.positions, self.tokens, window)
        out = torch.empty(query.shape, dtype=query.dtype, device=query.device)
        first = None if window is None else self._first[window]
        decode_attention(
            query, pool_k, pool_v, table.map, self.rows, table.n_live, self._scratch, out, self.first_bad, layer, scale, softcap, first,
            self.mass, add=self.attended > 1,
        )  # fmt: skip
        return out

    # -- a chunk of a prompt --------------------------------------------------------------------------------------------

    def _token_ids(self) -> Tensor:
        """int32 [W]: the token id of each entry of the row's slot map."""
        if self._ids is None:
            assert self.chunk is not None
            self._ids = self.table.tokens_at(self.chunk[0], self._slots)
        return self._ids

    def _chunk(self, layer: int, query: Tensor, scale: float, softcap: float | None, window: int | None) -> Tensor:
        """query: [n, Hq, D]."""
        assert self.chunk is not None
        pool_k, pool_v, start = self.cache.keys[layer], self.cache.values[layer], self.chunk[1]
        ids = self._token_ids() if window is not None else None
        out = torch.empty(query.shape, dtype=query.dtype, device=query.device)
        lse = torch.empty(query.shape[1], len(query), device=query.device)
        chunk_attention(
            query, pool_k, pool_v, self._slots, self._n_live, out, lse, self.first_bad, layer, scale, softcap, window, start, ids,
            self._died_at,
        )  # fmt: skip
        self._add_mass(query, pool_k, lse, scale, softcap, window, ids)
        return out

    def _add_mass(
        self, query: Tensor, pool_k: Tensor, lse: Tensor, scale: float, softcap: float | None, window: int | None, ids: Tensor | None
    ) -> None:
        if self.mass is not None:
            assert self.chunk is not None
            self.mass += chunk_mass(
                query, pool_k, self._slots, self._n_live, lse, self.mass.shape[1], scale, softcap, window, self.chunk[1], ids, self._died_at
            ).sum(0)

    def _fits_cudnn(self, query: Tensor, softcap: float | None, window: int | None) -> bool:
        """May cuDNN attend for this chunk? It knows square causal attention, which a row's first chunk is."""
        assert self.chunk is not None
        n = query.shape[1]
        plain = softcap is None and not self.replay and self.chunk[1] == 0 and (window is None or window >= n)
        half = query.dtype in (torch.float16, torch.bfloat16) and self.cache.keys.dtype == query.dtype
        return plain and half and query.is_cuda and n >= CUDNN_TOKENS and query.shape[-1] <= 128

    def _own_chunk(self, layer: int, query: Tensor, scale: float) -> Tensor:
        """query: [n, Hq, D], of a row that holds nothing but this chunk."""
        pool_k, pool_v, slots = self.cache.keys[layer], self.cache.values[layer], self.slots[0]
        n, query_heads, _ = query.shape
        short = -n % CUDNN_BUCKET

        def heads_first(x: Tensor) -> Tensor:
            x = x if x.shape[1] == query_heads else x.repeat_interleave(query_heads // x.shape[1], 1)
            return F.pad(x, (0, 0, 0, 0, 0, short)).transpose(0, 1)[None] if short else x.transpose(0, 1)[None]

        made = torch.ops.aten._scaled_dot_product_cudnn_attention(
            heads_first(query), heads_first(pool_k[slots]), heads_first(pool_v[slots]), None, self.want_mass, 0.0, True, scale=scale
        )
        out = made[0][0].transpose(0, 1)[:n]  # later queries and keys are padding, which causality hides
        bad = ~torch.linalg.vector_norm(out, torch.inf).isfinite()
        self.first_bad.copy_(torch.where(bad, self.first_bad.clamp(max=layer), self.first_bad))
        if self.want_mass:
            lse = (made[1].view(query_heads, -1)[:, :n] * LOG2E).contiguous()
            self._add_mass(query, pool_k, lse, scale, None, None, None)
        return out
