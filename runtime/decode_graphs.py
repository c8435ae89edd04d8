"""Decode steps as CUDA graphs: captured once a batch size, replayed for every mix of lengths.

A graph holds what `Worker.decode_rows` launches: the new tokens' slots, the model, the attention mass by token. Its only input is
which rows run; padded entries name the trash row, which owns nothing. Everything else is read from the table on the device, so
evictions, compaction and growing requests need no other graph. Reallocating the table does: graphs hold addresses.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from collections.abc import Sequence as Seq
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .decoded import Decoded

if TYPE_CHECKING:
    from .worker import Worker

BATCHES = (1, 2, 4, *range(8, 65, 8), *range(80, 257, 16), *range(288, 513, 32))


@dataclass(frozen=True)
class _Captured:
    """rows: int64 [B], the graph's input. made: its outputs, overwritten by the next replay of any graph."""

    graph: torch.cuda.CUDAGraph
    rows: Tensor
    made: Decoded


@contextmanager
def _no_collection() -> Iterator[None]:
    """Python's collector may come upon the graphs of an engine that is gone, and to destroy one spoils a capture."""
    gc.collect()
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


class DecodeGraphs:
    """Graphs of one worker, by batch size and whether they give attention mass."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self._captured: dict[tuple[int, bool], _Captured] = {}
        self._generation = -1
        self._memory: Any = None  # the pool of memory that the graphs share

    def run(self, rows: Seq[int], *, mass: bool) -> Decoded:
        """As `Worker.decode_rows`; the result is valid until the next run."""
        n, trash = len(rows), self.worker.table.rows
        size = next((b for b in BATCHES if b >= n), -(-n // 64) * 64)
        if self._generation != self.worker.table.generation:
            self._captured.clear()
            self._memory, self._generation = None, self.worker.table.generation
        found = self._captured.get((size, mass))
        if found is None:
            found = self._captured[size, mass] = self._capture(size, mass=mass)
        padded = torch.tensor([*rows, *[trash] * (size - n)], dtype=torch.int64, pin_memory=True)
        found.rows.copy_(padded, non_blocking=True)
        found.graph.replay()
        made = found.made
        by_token = None if made.mass is None else made.mass[:n]
        return Decoded(made.rows[:n], made.count[:n], made.logits[:n], made.chosen[:n], made.bad_layer[:n], by_token)

    def _capture(self, size: int, *, mass: bool) -> _Captured:
        worker = self.worker
        rows = torch.full((size,), worker.table.rows, dtype=torch.int64, device=worker.model.device)
        width = worker.table.max_tokens
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):  # compiles kernels and makes handles; rows of trash change nothing
            worker.decode_rows(rows, width, mass=mass)
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with (
            _no_collection(),
            torch.cuda.graph(graph, pool=self._memory, stream=stream, capture_error_mode="thread_local"),
        ):
            made = worker.decode_rows(rows, width, mass=mass)
        self._memory = self._memory or graph.pool()
        return _Captured(graph, rows, made)
