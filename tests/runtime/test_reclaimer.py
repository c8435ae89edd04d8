"""The reclaimer: one plan in flight, published when due, and canceled without a trace when a copy fails."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from vtoken_sdk.runtime.block_pool import BlockPool
from vtoken_sdk.runtime.config import Packing, ReclaimOptions
from vtoken_sdk.runtime.copy_stream import DeferredStream
from vtoken_sdk.runtime.kv_cache import KVCache
from vtoken_sdk.runtime.planner import spare_blocks
from vtoken_sdk.runtime.reclaimer import Reclaimer, ReclaimError
from vtoken_sdk.runtime.token_table import TokenTable

CPU = torch.device("cpu")


class Bench:
    """Two requests of 24 and 12 tokens in blocks of 4; every slot holds its token's id and row as its key."""

    def __init__(self, options: ReclaimOptions, progress: Callable[[int], int] = lambda left: 0) -> None:
        self.pool = BlockPool(16, CPU)
        self.table = TokenTable(self.pool, 2, 4, refill=options.refill, spare_blocks=spare_blocks(options, 4))
        self.table.reserve(64)
        self.cache = KVCache(1, 64, 4, 1, 2, torch.float32, CPU)
        self.reclaimer = Reclaimer(self.table, DeferredStream(self.cache, progress), options)
        self.append([24, 12])

    def append(self, counts: list[int]) -> None:
        rows = torch.tensor([0, 1])
        first = self.table.length[rows]
        slots = self.table.append(rows, torch.tensor(counts), max(counts))
        for row in rows.tolist():
            for i in range(counts[row]):
                self.cache.keys[0, slots[row, i], 0] = torch.tensor([float(row), float(first[row] + i)])
        self.reclaimer.tick()

    def evict(self, keep_every: int, rows: int = 2) -> None:
        kill = (torch.arange(64) % keep_every != 0).expand(rows, -1)
        self.table.evict_token(torch.arange(rows), kill)
        self.reclaimer.tick()

    def assert_reads_right(self) -> None:
        """Through the slot map each live token is read, in order."""
        for row in (0, 1):
            ids = (self.table.slot[row] >= 0).nonzero().flatten()
            slots = self.table.map[row, : int(self.table.n_live[row])].long()
            assert self.cache.keys[0, slots, 0].tolist() == [[float(row), float(t)] for t in ids]

    def books(self) -> list[object]:
        table = self.table
        tensors = (table.slot, table.died_at, table.blocks, table.held, table.leaving, table.length, table.n_live, table.n_free)
        return [t[:2].tolist() for t in tensors] + [self.pool.free_blocks().tolist(), self.pool.owners[:-1].tolist()]


@pytest.mark.parametrize("packing", ["fill", "fresh"])
@pytest.mark.parametrize("after", [1, 2, 5])
def test_a_plan_is_due_after_its_steps_and_gives_blocks_back(packing: Packing, after: int) -> None:
    bench = Bench(ReclaimOptions(packing=packing, margin=0, publish_after=after), lambda left: 1)
    reclaimer = bench.reclaimer
    bench.evict(4)
    bench.assert_reads_right()
    assert reclaimer.idle
    reclaimer.plan([0, 1], step=10)
    reclaimer.launch()
    assert reclaimer.rows == {0, 1}
    assert not reclaimer.idle
    assert [reclaimer.due(step) for step in (9 + after, 10 + after)] == [False, True]
    bench.append([1, 1])
    bench.assert_reads_right()
    reclaimer.wait()
    moved, freed = reclaimer.publish()
    bench.assert_reads_right()
    assert int(moved) > 0
    assert int(freed) > 0
    assert reclaimer.idle
    assert reclaimer.rows == frozenset()
    # 6 and 3 live tokens in 2 blocks and 1. New blocks had room for the next token of each, the dead slots of full ones have none.
    assert bench.pool.n_free() == 16 - (3 if packing == "fresh" else 5)


def test_tokens_that_die_in_flight_stay_dead() -> None:
    bench = Bench(ReclaimOptions())
    bench.evict(2)
    bench.reclaimer.plan([0, 1], step=0)
    bench.reclaimer.launch()
    bench.evict(6)
    bench.reclaimer.wait()
    bench.reclaimer.publish()
    assert (bench.table.slot[0] >= 0).nonzero().flatten().tolist() == [0, 6, 12, 18]
    bench.assert_reads_right()


def test_stalls_count_publications_that_waited_for_copies() -> None:
    for progress, stalls in ((lambda left: 0, 1), (lambda left: left, 0)):
        bench = Bench(ReclaimOptions(), progress)
        bench.evict(2)
        bench.reclaimer.plan([0, 1], step=0)
        bench.reclaimer.launch()
        bench.append([1, 0])
        bench.reclaimer.wait()
        assert bench.reclaimer.stalls == stalls


def test_a_second_plan_waits_for_the_first() -> None:
    bench = Bench(ReclaimOptions())
    bench.evict(2)
    bench.reclaimer.plan([0], step=0)
    with pytest.raises(AssertionError, match="one plan in flight"):
        bench.reclaimer.plan([1], step=0)


class Full(KVCache):
    """A cache whose n-th copy finds no memory, like one that a temporary buffer did not fit beside."""

    fails_at = 1

    def copy_slots(self, source: torch.Tensor, target: torch.Tensor) -> None:
        self.fails_at -= 1
        if self.fails_at == 0:
            raise torch.OutOfMemoryError("tried to allocate 2.00 GiB")
        super().copy_slots(source, target)


@pytest.mark.parametrize("packing", ["fill", "fresh"])
@pytest.mark.parametrize("refill", [False, True])
@pytest.mark.parametrize("fails_at", [1, 2, 3])
def test_a_copy_that_fails_leaves_table_and_pool_as_before(packing: Packing, refill: bool, fails_at: int) -> None:
    """At the first tick, a later one, or while the main stream waits; nothing is raised before the plan is due."""
    bench = Bench(ReclaimOptions(packing=packing, margin=0, refill=refill), lambda left: 1)
    bench.evict(2)
    before = bench.books()
    cache = Full(1, 64, 4, 1, 2, torch.float32, CPU)
    cache.fails_at = fails_at
    cache.keys.copy_(bench.cache.keys)
    bench.cache = cache
    bench.reclaimer.stream = DeferredStream(cache, lambda left: 1)
    bench.reclaimer.plan([0, 1], step=0)
    assert bench.books() != before
    bench.reclaimer.launch()
    bench.reclaimer.tick()
    bench.reclaimer.tick()
    bench.assert_reads_right()
    bench.reclaimer.wait()
    with pytest.raises(ReclaimError, match=r"tried to allocate 2.00 GiB.*no token was lost.*lower reclaim.move_cap") as caught:
        bench.reclaimer.publish()
    assert isinstance(caught.value.__cause__, torch.OutOfMemoryError)
    assert bench.books() == before
    bench.assert_reads_right()
    assert bench.reclaimer.idle
    assert bench.reclaimer.broken
    assert bench.reclaimer.rows == frozenset()
    bench.append([2, 2])
    bench.evict(3)
    bench.assert_reads_right()


def test_what_happened_in_flight_of_a_failed_plan_stays() -> None:
    bench = Bench(ReclaimOptions(packing="fresh", margin=0))
    bench.evict(2)
    cache = Full(1, 64, 4, 1, 2, torch.float32, CPU)
    cache.keys.copy_(bench.cache.keys)
    bench.cache, bench.reclaimer.stream = cache, DeferredStream(cache)
    bench.reclaimer.plan([0, 1], step=0)
    bench.reclaimer.launch()
    bench.append([3, 1])
    bench.evict(4, rows=1)
    bench.reclaimer.wait()
    with pytest.raises(ReclaimError):
        bench.reclaimer.publish()
    assert (bench.table.slot[0] >= 0).nonzero().flatten().tolist() == [0, 4, 8, 12, 16, 20, 24]
    assert (bench.table.slot[1] >= 0).nonzero().flatten().tolist() == [0, 2, 4, 6, 8, 10, 12]
    bench.assert_reads_right()
    bench.pool.check()
