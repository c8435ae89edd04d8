"""A worker's decode step, its record, and its policy's calls, as CUDA graphs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from .config import ConfigError
from .decoded import Decoded
from .graphs import Graphs, bucket
from .policy_runner import PolicyRunner
from .token_table import PAD

if TYPE_CHECKING:
    from .worker import Worker


class WorkerGraphs:
    """captured: the policy's calls are in graphs. learns: a decode step's graph holds `sync_new_tokens`."""

    def __init__(self, worker: Worker) -> None:
        self.worker, self.table = worker, worker.table
        wanted, runner = worker.config.capture_policy, worker.runner
        self.captured = runner is not None and (type(runner.policy).capturable if wanted is None else wanted)
        self.learns = self.captured and self._runner.learns
        self._decode = Graphs(worker.table, self._decode_rows)
        self._evict = Graphs(worker.table, worker.ask_and_evict)
        self._records = [Graphs(worker.table, partial(self._write_record, place)) for place in worker.ring.places]
        self._compared: set[tuple[str, int, int]] = set()  # a policy's call, the table's generation and the batch size, once compared
        if self.captured:  # so that a policy which cannot be is refused before there is work
            self._try_capture()

    def prepare(self, batch: int) -> None:
        """Capture the graphs of all batch sizes for up to so many rows, none of which holds anything yet."""
        for size in sizes_up_to(batch):
            self._decode.prepare(size)
            if self.captured:
                self._evict.prepare(size)
        if self.worker.index is None:
            for i in range(len(self._records)):
                self.record(i)

    def decode(self, rows: tuple[int, ...]) -> Decoded:
        """As `Worker.decode_rows`, and with `learns` the policy has learned from it. Valid until the next call."""
        if self.learns and self._first_time("sync_new_tokens", rows):
            return self._compare_learning(rows)
        return self._decode.run(rows).first(len(rows))

    def evict(self, rows: tuple[int, ...]) -> None:
        """`Worker.ask_and_evict`."""
        runner, n = self._runner, len(rows)
        own = runner.answer(self.worker.send(rows), self.table.max_tokens) if self._first_time("evict_token", rows) else None
        answer = self._evict.run(rows)
        if own is not None and not torch.equal(own, answer[:n]):
            raise self._differs("evict_token")

    def record(self, place: int) -> None:
        """`Worker.record_by_kernel` to this place of the worker's ring."""
        graphs = self._records[place]
        if graphs.holds(0):
            graphs.run(())
        else:
            self.worker.record_by_kernel(self.worker.ring.places[place])
            graphs.prepare(0, warm=True)

    def _write_record(self, place: Tensor, rows: Tensor) -> Tensor:
        return self.worker.record_by_kernel(place)

    def _first_time(self, call: str, rows: tuple[int, ...]) -> bool:
        """Is this the first batch of its size, at which a graph's answer is compared with the policy's own?"""
        key = call, self.table.generation, bucket(len(rows))
        first = key not in self._compared
        self._compared.add(key)
        return first

    @property
    def _runner(self) -> PolicyRunner:
        assert self.worker.runner is not None
        return self.worker.runner

    def _decode_rows(self, rows: Tensor) -> Decoded:
        made = self.worker.decode_rows(rows, self.table.max_tokens)
        if self.learns:
            self._runner.learn(rows, made.count, made.mass, self.table.max_tokens)
            made = replace(made, learned=True)
        return made

    def _compare_learning(self, rows: tuple[int, ...]) -> Decoded:
        runner, index = self._runner, self.worker.send(rows)
        before = {name: store[index] for name, store in runner.state.items()}
        made = self._decode.run(rows).first(len(rows))
        after = {name: store[index] for name, store in runner.state.items()}
        for name, store in runner.state.items():
            store.index_fill_(0, index, 0)
            if name in before:  # stores grow with the table
                store[index, ..., : before[name].shape[-1]] = before[name]
        runner.learn(index, made.count, made.mass, self.table.max_tokens)
        for name, store in runner.state.items():
            if name not in after or not torch.allclose(store[index], after[name], equal_nan=True):
                raise self._differs("sync_new_tokens")
        return made

    def _try_capture(self) -> None:
        """Before any work: on rows that hold nothing."""
        self.table.reserve(PAD)
        trash: tuple[int, ...] = (self.table.rows,)
        calls: list[tuple[str, Callable[[], object]]] = [("evict_token", lambda: self._evict.run(trash))]
        if self.learns:
            calls.insert(0, ("sync_new_tokens", lambda: self._decode.run(trash)))
        for call, act in calls:
            try:
                act()
            except torch.OutOfMemoryError:
                raise
            except Exception as error:
                name = f"{self._runner.name}.{call}"
                raise ConfigError(
                    f"{name} cannot be captured in a CUDA graph ({error}); use capture_policy=False, or leave out its `capturable`"
                ) from error

    def _differs(self, call: str) -> ConfigError:
        return ConfigError(
            f"{self._runner.name}.{call} gives something else in a CUDA graph than when called, so it reads what a graph cannot see "
            "(numbers on the host, a counter of its own, a random generator); use capture_policy=False, or leave out its `capturable`"
        )


def sizes_up_to(batch: int) -> list[int]:
    """The batch sizes that up to so many rows are padded to."""
    return sorted({bucket(n) for n in range(1, batch + 1)})
