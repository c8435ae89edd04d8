"""Operations on rows as CUDA graphs: captured once a batch size, replayed for every mix of lengths.

The only input of a graph is which rows take part; padded entries name the trash row, which owns nothing. Everything else is read
from the table on the device, so evictions, compaction and growing requests need no other graph. Reallocating the table does: graphs
hold addresses.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from .token_table import TokenTable

T = TypeVar("T")

BATCHES = (1, 2, 4, *range(8, 65, 8), *range(80, 257, 16), *range(288, 513, 32))


@dataclass
class _Captured(Generic[T]):
    """rows: int64 [B], the graph's input, and what it holds. made: its outputs, overwritten by the next replay of this `Graphs`."""

    rows: Tensor
    holds: tuple[int, ...]
    graph: torch.cuda.CUDAGraph
    made: T
    then: torch.cuda.CUDAGraph | None
    afterwards: Any


class Graphs(Generic[T]):
    """The graphs of one operation on rows, by batch size.

    act: launches it for rows int64 [B] and returns its outputs; it never waits for the device. then: launches a second operation on
    what the first one made, replayed by `follow`; nothing may come from the host in between. What a replay made stays until the
    next replay of the same object.
    """

    def __init__(self, table: TokenTable, act: Callable[[Tensor], T], then: Callable[[T], Any] | None = None) -> None:
        self.table, self.act, self.then = table, act, then
        self._captured: dict[int, _Captured[T]] = {}
        self._generation = -1
        self._memory: Any = None  # the pool of memory that these graphs share
        self._last: _Captured[T] | None = None

    def run(self, rows: tuple[int, ...]) -> T:
        """Outputs are of the padded batch: the first `len(rows)` entries are meant."""
        n, size = len(rows), bucket(len(rows))
        found = self.prepare(n)
        if found.holds != rows:
            padded = torch.tensor([*rows, *[self.table.rows] * (size - n)], dtype=torch.int64, pin_memory=True)
            found.rows.copy_(padded, non_blocking=True)
            found.holds = rows
        found.graph.replay()
        self._last = found
        return found.made

    def prepare(self, n: int, *, warm: bool = False) -> _Captured[T]:
        """Capture the graph of such a batch, unless it is there. warm: its operations have run before; else they run once first."""
        size = bucket(n)
        if not self.holds(n):
            self._captured[size] = self._capture(size, warm)
        return self._captured[size]

    def holds(self, n: int) -> bool:
        """Is the graph of such a batch captured?"""
        self._forget_old_addresses()
        return bucket(n) in self._captured

    def follow(self) -> Any:
        """The second operation, on what the last run made."""
        assert self._last is not None and self._last.then is not None
        self._last.then.replay()
        return self._last.afterwards

    def _forget_old_addresses(self) -> None:
        if self._generation != self.table.generation:
            self._captured.clear()
            self._memory, self._generation = None, self.table.generation

    def _capture(self, size: int, warm: bool) -> _Captured[T]:
        rows = torch.full((size,), self.table.rows, dtype=torch.int64, device=self.table.device)
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        if not warm:
            with torch.cuda.stream(stream):  # compiles kernels and makes handles; rows of trash change nothing
                made = self.act(rows)
                if self.then is not None:
                    self.then(made)
            torch.cuda.current_stream().wait_stream(stream)
        graph, made = self._record(lambda: self.act(rows), stream)
        if self.then is None:
            return _Captured(rows, (), graph, made, None, None)
        then = self.then
        return _Captured(rows, (), graph, made, *self._record(lambda: then(made), stream))

    def _record(self, act: Callable[[], Any], stream: torch.cuda.Stream) -> tuple[torch.cuda.CUDAGraph, Any]:
        graph = torch.cuda.CUDAGraph()
        with _no_collection(), torch.cuda.graph(graph, pool=self._memory, stream=stream, capture_error_mode="thread_local"):
            made = act()
        self._memory = self._memory or graph.pool()
        return graph, made


@cache
def bucket(n: int) -> int:
    """The batch size that n rows are padded to."""
    return next((b for b in BATCHES if b >= n), -(-n // 64) * 64)


@contextmanager
def _no_collection() -> Iterator[None]:
    """Python's collector may come upon the graphs of an engine that is gone, and to destroy one spoils a capture."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
