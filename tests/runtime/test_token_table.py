"""The Token Table against dictionaries, after every operation of random lives: appends, evictions, sharing, plans, ends."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from torch import Tensor

from vtoken_sdk.runtime.audit import check_owners, check_rows
from vtoken_sdk.runtime.block_pool import BlockPool
from vtoken_sdk.runtime.config import ReclaimOptions
from vtoken_sdk.runtime.planner import Plan, plan, spare_blocks
from vtoken_sdk.runtime.token_table import PAD, TokenTable
from vtoken_sdk.runtime.upkeep import NEVER

from .no_sync import NoHostReads
from .plain import PlainPlan, PlainTable, rebuild_map

CPU = torch.device("cpu")
ROWS, BLOCKS = 3, 24


def rows_of(rows: Sequence[int]) -> Tensor:
    return torch.tensor(rows, dtype=torch.int64)


def kill_of(ids: Sequence[set[int]], width: int) -> Tensor:
    kill = torch.zeros(len(ids), width, dtype=torch.bool)
    for i, tokens in enumerate(ids):
        kill[i, [t for t in tokens if t < width]] = True
    return kill


class Lives(RuleBasedStateMachine):
    """Random lives of three rows in a small pool; the tensors and the dictionaries go through the same operations."""

    @initialize(
        size=st.sampled_from([1, 2, 4]),
        refill=st.booleans(),
        packing=st.sampled_from(["fill", "fresh"]),
        cap=st.sampled_from([1, 3, 100]),
        slack=st.sampled_from([0, 1, 4]),
        threshold=st.sampled_from([0.5, 1.0]),
        margin=st.sampled_from([0, 2]),
    )
    def begin(self, size: int, refill: bool, **options: Any) -> None:
        self.options = ReclaimOptions(move_cap=options.pop("cap"), refill=refill, **options)
        pool = BlockPool(BLOCKS, CPU)
        self.table = TokenTable(pool, ROWS, size, refill=refill, spare_blocks=spare_blocks(self.options, size))
        self.table.reserve(PAD)
        self.plain = PlainTable(ROWS, BLOCKS, size, refill=refill)
        self.made: tuple[Plan, PlainPlan] | None = None

    def busy(self, row: int) -> bool:
        return self.made is not None and row in self.made[1].rows

    @rule(counts=st.lists(st.integers(0, 9), min_size=ROWS, max_size=ROWS), only=st.sets(st.integers(0, ROWS - 1), min_size=1))
    def append(self, counts: list[int], only: set[int]) -> None:
        rows = sorted(only)
        size, plain = self.plain.size, self.plain
        counts = [min(counts[r], self.table.max_tokens - plain.rows[r].length) for r in rows]
        need = sum(-(-max(0, n - len(plain.rows[r].free)) // size) for r, n in zip(rows, counts, strict=True))
        if need > len(plain.pool.stack):
            return
        before = [plain.rows[r].length for r in rows]
        width = max(1, *counts)
        with NoHostReads():
            slots = self.table.append(rows_of(rows), rows_of(counts), width)
        plain.append(rows, counts)
        for i, r in enumerate(rows):
            live = plain.rows[r].live
            new = [live[t] for t in range(before[i], before[i] + counts[i])]
            assert slots[i].tolist() == plain.slots(r, new) + [self.table.trash_slot] * (width - counts[i])

    @rule(seed=st.integers(0, 10**6), share=st.sampled_from([0.0, 0.2, 0.6, 1.0]), rows=st.sets(st.integers(0, ROWS - 1), min_size=1))
    def evict(self, seed: int, share: float, rows: set[int]) -> None:
        draw, order = random.Random(seed), sorted(rows)
        ids = [{t for t in range(self.plain.rows[r].length) if draw.random() < share} for r in order]
        width = min(self.table.max_tokens, max(self.plain.rows[r].length for r in order) + draw.randrange(1, 9))
        with NoHostReads():
            died, freed = self.table.evict_token(rows_of(order), kill_of(ids, width))
        assert (int(died), int(freed)) == self.plain.evict(order, ids)

    @rule(source=st.integers(0, ROWS - 1), to=st.integers(0, ROWS - 1), n=st.integers(1, 5))
    def adopt(self, source: int, to: int, n: int) -> None:
        """An empty row takes the first blocks of a row that nothing was evicted from."""
        row, size = self.plain.rows[source], self.plain.size
        n = min(n, row.length // size)
        if source == to or row.died_at or self.plain.rows[to].length or n == 0 or self.busy(source) or self.busy(to):
            return
        blocks = [row.blocks[j] for j in range(n)]
        with NoHostReads():
            self.table.adopt(rows_of([to]), rows_of(blocks))
        self.plain.adopt(to, blocks)

    @rule(rows=st.sets(st.integers(0, ROWS - 1), min_size=1))
    def release(self, rows: set[int]) -> None:
        order = [r for r in sorted(rows) if not self.busy(r)]
        if order:
            with NoHostReads():
                freed = self.table.release(rows_of(order))
            assert int(freed) == self.plain.release(order)

    @precondition(lambda self: self.made is None and self.table.max_tokens < 4 * PAD)
    @rule(tokens=st.sampled_from([PAD + 1, 3 * PAD]))
    def grow(self, tokens: int) -> None:
        self.table.reserve(tokens)
        assert self.table.max_tokens >= tokens

    @precondition(lambda self: self.made is None)
    @rule(rows=st.sets(st.integers(0, ROWS - 1), min_size=1))
    def plan(self, rows: set[int]) -> None:
        # The engine plans only rows that were evicted from: a private block never becomes shared under a plan.
        order = [r for r in sorted(rows) if self.plain.rows[r].died_at]
        if order:
            with NoHostReads():
                made = plan(self.table, rows_of(order), self.options)
            self.made = made, self.plain.plan(order, self.options)

    @precondition(lambda self: self.made is not None)
    @rule()
    def apply(self) -> None:
        assert self.made is not None
        real, plain = self.made
        self.made = None
        with NoHostReads():
            moved, freed = self.table.apply_moves(real.rows, real.source, real.target, real.token, real.count)
        assert (int(moved), int(freed)) == self.plain.apply(plain)

    @precondition(lambda self: self.made is not None)
    @rule()
    def cancel(self) -> None:
        assert self.made is not None
        real, plain = self.made
        self.made = None
        with NoHostReads():
            freed = self.table.cancel_moves(real.rows)
        assert int(freed) == self.plain.cancel(plain)

    @rule(rows=st.sets(st.integers(0, ROWS - 1), min_size=1))
    def rebuild(self, rows: set[int]) -> None:
        """Changes the order of free slots at most: the map can be made anew at any time."""
        with NoHostReads():
            rebuild_map(self.table, rows_of(sorted(rows)))
        for r in rows:
            self.plain.list_free(r)

    @invariant()
    def same(self) -> None:
        if hasattr(self, "plain"):
            self.plain.assert_same(self.table)
            names = {r: f"request-{r}" for r, row in enumerate(self.plain.rows) if row.length}
            check_owners(self.table.pool, self.table, None, names)
            check_rows(self.table, names, self.made[0] if self.made is not None else None)


Lives.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None, derandomize=True)
TestLives = Lives.TestCase


# -- what the machine does not reach ----------------------------------------------------------------------------------------


def make_table(block_size: int = 4, n_blocks: int = 16, rows: int = 2, tokens: int = 64, *, refill: bool = False) -> TokenTable:
    table = TokenTable(BlockPool(n_blocks, CPU), rows, block_size, refill=refill)
    table.reserve(tokens)
    return table


def test_a_token_that_died_keeps_the_length_of_its_first_death() -> None:
    table = make_table()
    table.append(rows_of([0]), rows_of([5]), 5)
    table.evict_token(rows_of([0]), kill_of([{1}], 64))
    table.append(rows_of([0]), rows_of([3]), 3)
    table.evict_token(rows_of([0]), kill_of([{1, 2}], 64))
    assert table.died_at[0, :4].tolist() == [NEVER, 5, 8, NEVER]


def test_a_recomputed_row_loses_the_tokens_of_its_log_at_their_lengths() -> None:
    table = make_table()
    table.died_at[0, :6] = torch.tensor([NEVER, 4, 8, NEVER, 8, 4], dtype=torch.int32)
    for length, live in ((4, [0, 2, 3]), (8, [0, 3, 6, 7])):
        table.append(rows_of([0]), rows_of([4]), 4)
        table.apply_logged_deaths(rows_of([0]))
        assert int(table.length[0]) == length
        assert (table.slot[0] >= 0).nonzero().flatten().tolist() == live
    check_rows(table, {0: "again"}, None)


def test_an_idle_row_of_a_batch_gets_the_trash_slot_and_nothing_else() -> None:
    table = make_table()
    slots = table.append(rows_of([0, 1]), rows_of([0, 1]), 1)
    assert slots[:, 0].tolist() == [table.trash_slot, 0]
    assert table.length.tolist()[:2] == [0, 1]
    assert table.pool.n_free() == 15


def test_rows_that_fill_the_table_to_its_last_token_can_be_packed_into_new_blocks() -> None:
    """Packing into new blocks holds both the old and the new ones for a while: more than the row's tokens need."""
    options = ReclaimOptions(packing="fresh", margin=0)
    table = TokenTable(BlockPool(64, CPU), 1, 4, refill=False, spare_blocks=spare_blocks(options, 4))
    table.reserve(128)
    rows = rows_of([0])
    table.append(rows, rows_of([127]), 127)
    table.evict_token(rows, (torch.arange(128) % 2 == 1)[None])
    made = plan(table, rows, options)
    slots = table.append(rows, rows_of([1]), 1)
    assert int((table.blocks[0] != table.pool.trash).sum()) == 32 + 16 + 1
    check_rows(table, {0: "full"}, made)
    table.apply_moves(made.rows, made.source, made.target, made.token, made.count)
    assert int((table.slot[0] >= 0).sum()) == 65
    assert int(slots[0, 0]) == int(table.slot[0, 127])
    assert table.pool.n_free() == 64 - 17
    check_rows(table, {0: "full"}, None)


@pytest.mark.parametrize("refill", [False, True])
def test_cancelling_a_plan_leaves_table_and_pool_as_they_were(refill: bool) -> None:
    for packing in ("fill", "fresh"):
        options = ReclaimOptions(packing=packing, margin=0, refill=refill)
        table = TokenTable(BlockPool(32, CPU), 2, 4, refill=refill, spare_blocks=spare_blocks(options, 4))
        table.reserve(64)
        rows = rows_of([0, 1])
        table.append(rows, rows_of([30, 13]), 30)
        table.evict_token(rows, torch.arange(64).expand(2, -1) % 3 != 0)
        names = ("slot", "died_at", "blocks", "held", "leaving", "length", "n_live", "n_free")
        before = {name: getattr(table, name)[:2].clone() for name in names}
        maps = [table.map[r, : int(table.n_live[r] + table.n_free[r])].tolist() for r in (0, 1)]
        free = table.pool.free_blocks().tolist()
        made = plan(table, rows, options)
        assert int(made.count) > 0
        table.cancel_moves(made.rows)
        for name in names:
            assert torch.equal(getattr(table, name)[:2], before[name]), name
        assert [table.map[r, : int(table.n_live[r] + table.n_free[r])].tolist() for r in (0, 1)] == maps
        assert table.pool.free_blocks().tolist() == free


def test_state_takes_at_most_seventeen_bytes_a_token() -> None:
    table = make_table(block_size=16, n_blocks=4, rows=7, tokens=1 << 14)
    tensors = (table.slot, table.died_at, table.blocks, table.held, table.map, table.leaving)
    assert sum(t.numel() * t.element_size() for t in tensors) / (8 * table.max_tokens) < 17
