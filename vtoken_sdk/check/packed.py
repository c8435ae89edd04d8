"""`CacheView.score` over requests in memory: one layer of one request at a time, live tokens packed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .requests import HEADS, LAYERS, SCALE, Request, rotary
from .watched import WatchedKV


@dataclass(frozen=True)
class Packed:
    """KV heads `heads` of a layer of the request in a row: as LiveKV, and where an answer [h, N] goes."""

    row: int
    layer: int
    heads: slice
    keys: Tensor
    values: Tensor
    positions: Tensor
    query_positions: Tensor
    queries: Tensor | None

    def kv(self, device: torch.device, reads: set[str], hand: Callable[[str, Tensor], Tensor]) -> WatchedKV:
        """What the policy gets. hand: notes each tensor, to see later whether it was changed."""

        def given(name: str, tensor: Tensor) -> Tensor:
            return hand(f"kv.{name}", tensor.to(device))

        return WatchedKV(
            keys=given("keys", self.keys),
            values=given("values", self.values),
            positions=given("positions", self.positions),
            query_positions=given("query_positions", self.query_positions),
            scale=SCALE,
            rotary=rotary,
            _queries=None if self.queries is None else given("queries", self.queries),
            _reads=reads,
        )


def packed(row: int, request: Request, live: Sequence[Sequence[list[int]]], length: int, window: int | None) -> Iterator[Packed]:
    """live: ids of each layer and KV head, as lists: nothing here reads a tensor. window: queries kept, None: not declared.

    Heads that hold equally many tokens go together.
    """
    for layer in range(LAYERS):
        together = len(set(map(len, live[layer]))) == 1
        for heads in [range(HEADS)] if together else [range(h, h + 1) for h in range(HEADS)]:
            ids = torch.tensor([live[layer][h] for h in heads])  # [h, N]
            first, part = length - min(window or 0, length), slice(heads.start, heads.stop)
            keys, values = (x[layer, part].gather(1, ids[..., None].expand(-1, -1, x.shape[-1])) for x in (request.keys, request.values))
            queries = None if window is None else request.queries[layer, part, :, first:length].clone()
            yield Packed(row, layer, part, keys, values, ids, torch.arange(first, length), queries)
