"""The planner: equal to loops, as good as brute force on tiny boards, and what every plan promises."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable

import pytest
import torch

from vtoken_sdk.runtime.block_pool import BlockPool
from vtoken_sdk.runtime.config import ReclaimOptions
from vtoken_sdk.runtime.planner import Plan, plan, spare_blocks
from vtoken_sdk.runtime.token_table import TokenTable

from .boards import Shape, make_board, random_shape
from .no_sync import NoHostReads, finds
from .plain import Place, PlainTable

Moves = list[tuple[int, Place, Place, int]]


def options_of(draw: random.Random, packing: str, size: int, *, cap: bool = True, slack: bool = True) -> ReclaimOptions:
    return ReclaimOptions(
        packing=packing,  # type: ignore[arg-type]  # the test's own words
        move_cap=draw.choice([1, 7, 64, 10_000]) if cap else 10_000,
        slack=draw.choice([0, 1, size, 2 * size]) if slack else 0,
        threshold=draw.choice([1.0, 0.75, 0.5, 0.25]),
        margin=draw.choice([0, 1, 3]),
        refill=draw.random() < 0.5,
    )


def moves_of(table: TokenTable, made: Plan) -> Moves:
    """The moves of a plan as (row, source place, target place, token)."""
    count, width, size = int(made.count), table.held.shape[1], table.block_size
    moves = []
    for source, target, token in zip(made.source[:count].tolist(), made.target[:count].tolist(), made.token[:count].tolist(), strict=True):
        assert source // width == target // width, "a move from one request to another"
        moves.append((source // width, divmod(source % width, size), divmod(target % width, size), token))
    return moves


def first_fill(plain: PlainTable, options: ReclaimOptions) -> tuple[Moves, list[set[int]]]:
    """`fill` for private blocks in loops, as first written down: not by way of `PlainTable.plan`."""
    size, rows = plain.size, plain.rows
    eligible, ranks = [], []
    for r, row in enumerate(rows):
        order = sorted(row.blocks, key=lambda j: (row.live_in(j), j))
        spare = len(order) - -(-(len(row.live) + options.slack) // size)
        ranks.append(order)
        sparse = [(rank, j) for rank, j in enumerate(order[: max(0, spare)]) if row.live_in(j) <= int(options.threshold * size)]
        eligible += [(row.live_in(j), r, rank, j) for rank, j in sparse]
    leaving: list[set[int]] = [set() for _ in rows]
    used = 0
    for live, r, _, j in sorted(eligible):
        used += live
        if used > options.move_cap:
            break
        leaving[r].add(j)
    moves: Moves = []
    for r, row in enumerate(rows):
        source = [(j, o) for j in ranks[r] if j in leaving[r] for o in range(size) if row.held[j, o] >= 0]
        target = [(j, o) for j in reversed(ranks[r]) if j not in leaving[r] for o in range(size) if row.held[j, o] < 0]
        moves += [(r, s, t, row.held[s]) for s, t in zip(source, target, strict=False)]
    return moves, leaving


@pytest.mark.parametrize("seed", range(4))
def test_fill_of_private_blocks_equals_the_loops(seed: int) -> None:
    draw = random.Random(seed)
    for _ in range(500):
        shape = random_shape(draw, shared=False, may_be_open=False)
        options = options_of(draw, "fill", shape.size)
        table, plain = make_board(draw, shape, options)
        moves, leaving = first_fill(plain, options)
        made = plan(table, torch.arange(shape.rows), options)
        assert moves_of(table, made) == moves
        assert [set(x.nonzero().flatten().tolist()) for x in table.leaving[:-1]] == leaving


@pytest.mark.parametrize("packing", ["fill", "fresh"])
@pytest.mark.parametrize("seed", range(2))
def test_plans_equal_the_loops_with_shared_blocks_and_are_published_as_they_say(packing: str, seed: int) -> None:
    draw = random.Random(100 + seed)
    for _ in range(250):
        shape = random_shape(draw, shared=draw.random() < 0.7)
        options = options_of(draw, packing, shape.size)
        table, plain = make_board(draw, shape, options)
        rows = sorted(draw.sample(range(shape.rows), draw.randint(1, shape.rows)))
        with NoHostReads():
            made = plan(table, torch.tensor(rows), options)
        want = plain.plan(rows, options)
        assert moves_of(table, made) == want.moves
        plain.assert_same(table)
        moved, freed = table.apply_moves(made.rows, made.source, made.target, made.token, made.count)
        assert (int(moved), int(freed)) == plain.apply(want)
        plain.assert_same(table)


# -- as good as any plan can be ---------------------------------------------------------------------------------------------


def subsets(items: list[int]) -> list[tuple[int, ...]]:
    return [s for n in range(len(items) + 1) for s in itertools.combinations(items, n)]


def best_fill(plain: PlainTable, options: ReclaimOptions) -> int:
    """The most private blocks that any choice of moves can empty, over the batch and under the cap; open ones stay."""
    per_row = []
    for r, row in enumerate(plain.rows):
        private = [j for j in row.blocks if plain.private(r, j)]
        cheapest: dict[int, int] = {0: 0}
        may_leave = [j for j in private if row.live_in(j) <= int(options.threshold * plain.size) and j not in plain.open_in(r)]
        for chosen in subsets(may_leave):
            moves = sum(row.live_in(j) for j in chosen)
            holes = sum(plain.size - row.live_in(j) for j in private if j not in chosen)
            if moves + options.slack <= holes:
                cheapest[len(chosen)] = min(moves, cheapest.get(len(chosen), moves))
        per_row.append(cheapest)
    choices = itertools.product(*per_row)
    return max(sum(c) for c in choices if sum(per_row[r][n] for r, n in enumerate(c)) <= options.move_cap)


def best_shared(plain: PlainTable, r: int, options: ReclaimOptions, private: set[int]) -> int:
    """The most shared blocks that row r can leave once these private blocks leave."""
    row = plain.rows[r]
    holes = sum(plain.size - row.live_in(j) for j in row.blocks if plain.private(r, j) and j not in private)
    holes -= sum(row.live_in(j) for j in private) + options.slack
    sparse = [j for j in row.blocks if not plain.private(r, j) and row.live_in(j) <= int(options.threshold * plain.size)]
    return max(len(s) for s in subsets(sparse) if sum(row.live_in(j) for j in s) <= max(holes, 0))


def test_fill_empties_as_many_blocks_as_brute_force() -> None:
    draw = random.Random(7)
    seen = 0
    for _ in range(400):
        live, shared = draw.choice([0.1, 0.3, 0.5, 0.8]), draw.choice([0, 0.4])
        shape = Shape(draw.choice([1, 2]), draw.choice([3, 5]), draw.choice([2, 4]), live, shared, open=draw.random() < 0.5)
        cap, threshold = draw.choice([1, 3, 6, 100]), draw.choice([1.0, 0.75, 0.5])
        options = ReclaimOptions(move_cap=cap, slack=draw.choice([0, 1, shape.size]), threshold=threshold)
        table, plain = make_board(draw, shape, options)
        plan(table, torch.arange(shape.rows), options)
        leaving = [set(x.nonzero().flatten().tolist()) for x in table.leaving[:-1]]
        private = [{j for j in js if plain.private(r, j)} for r, js in enumerate(leaving)]
        assert sum(map(len, private)) == best_fill(plain, options)
        if options.move_cap == 100:
            for r, js in enumerate(leaving):
                assert len(js - private[r]) == best_shared(plain, r, options, private[r])
                seen += len(js)
    assert seen > 100


def test_fresh_gains_as_many_blocks_as_brute_force() -> None:
    draw = random.Random(8)
    seen = 0
    for _ in range(300):
        shape = Shape(1, draw.choice([3, 5, 7]), draw.choice([2, 4]), draw.choice([0.1, 0.3, 0.5, 0.8]), spare=draw.choice([1, 2, 5]))
        options = ReclaimOptions(
            packing="fresh",
            move_cap=draw.choice([3, 6, 100]),
            slack=draw.choice([0, 1, shape.size]),
            threshold=draw.choice([0.5, 1.0]),
            margin=draw.choice([0, 1]),
        )
        table, plain = make_board(draw, shape, options)
        row, before = plain.rows[0], len(plain.pool.stack)
        gains = [0]
        for chosen in subsets([j for j in row.blocks if row.live_in(j) <= int(options.threshold * shape.size)]):
            moves = sum(row.live_in(j) for j in chosen)
            pops = -(-(moves + options.slack) // shape.size)
            if moves <= options.move_cap and before - pops >= options.margin:
                gains.append(len(chosen) - pops)
        made = plan(table, torch.tensor([0]), options)
        table.apply_moves(made.rows, made.source, made.target, made.token, made.count)
        # Slack is a block of free slots; one that stays empty goes back when the plan is published.
        gained = int(table.pool.top) - before
        assert max(gains) <= gained <= max(gains) + -(-options.slack // shape.size) * (max(gains) > 0)
        seen += gained
    assert seen > 100


# -- what every plan promises -----------------------------------------------------------------------------------------------


def room(table: TokenTable, row: int) -> int:
    """Slots without a live token in private blocks that stay."""
    rows = torch.tensor([row])
    stays = table.private(rows)[0] & ~table.leaving[row]
    return int(((table.held[row].unflatten(0, (-1, table.block_size)) < 0) & stays[:, None]).sum())


@pytest.mark.parametrize("packing", ["fill", "fresh"])
def test_promises(packing: str) -> None:
    draw = random.Random(9)
    moved = 0
    for _ in range(300):
        shape = random_shape(draw, shared=draw.random() < 0.5)
        options = options_of(draw, packing, shape.size)
        table, _ = make_board(draw, shape, options)
        rows = torch.arange(shape.rows)
        held, slot, blocks = table.held.clone(), table.slot.clone(), table.blocks.clone()
        shared = table.pool.owners[blocks] > 1
        rooms = [room(table, r) for r in range(shape.rows)]
        maps = [table.map[r, : int(table.n_live[r])].tolist() for r in range(shape.rows)]
        free_before = table.pool.n_free()
        made = plan(table, rows, options)
        count = int(made.count)
        moved += count
        # The cap, the margin, and no more blocks taken than are given back.
        assert count <= options.move_cap
        taken = free_before - table.pool.n_free()
        assert taken == 0 or table.pool.n_free() >= options.margin
        private_leaving = int((table.leaving & ~shared).sum())
        assert taken == 0 or private_leaving > taken
        # Who leaves is sparse enough; sources are in leaving blocks, targets in private ones that stay.
        live = (held.unflatten(1, (-1, shape.size)) >= 0).sum(2)
        assert bool((live[table.leaving] <= int(options.threshold * shape.size)).all())
        source, target = made.source[:count], made.target[:count]
        assert bool(table.leaving.view(-1)[source // shape.size].all())
        assert not bool(table.leaving.view(-1)[target // shape.size].any())
        owners = table.pool.owners[table.blocks.view(-1)[target // shape.size]]
        assert bool((owners == 1).all())
        assert bool((held.view(-1)[target] < 0).all())
        assert len(set(source.tolist())) == len(set(target.tolist())) == count
        # A leaving block leaves whole.
        assert int((live * table.leaving).sum()) == count
        # In flight nothing moves for a reader, and no slot of the plan can be appended to.
        assert torch.equal(table.slot[:-1], slot[:-1])
        for r in range(shape.rows):
            n_live, n_free = int(table.n_live[r]), int(table.n_free[r])
            assert table.map[r, :n_live].tolist() == maps[r]
            appendable = set(table.map[r, n_live : n_live + n_free].tolist())
            assert not appendable & {*made.target_slot[:count].tolist(), *made.source_slot[:count].tolist()}
        # Padding points at the trash.
        assert bool((made.target_slot[count:] == table.trash_slot).all())
        assert bool((made.source_slot[count:] == table.trash_slot).all())
        table.apply_moves(made.rows, made.source, made.target, made.token, made.count)
        # Nothing is lost, and the slack is kept.
        assert torch.equal(table.slot[:-1] >= 0, slot[:-1] >= 0)
        if packing == "fill":
            assert all(room(table, r) >= min(options.slack, rooms[r]) for r in range(shape.rows))
    assert moved > 200


def test_a_full_block_never_moves() -> None:
    """It could only change places with another."""
    draw = random.Random(3)
    for packing in ("fill", "fresh"):
        options = ReclaimOptions(packing=packing, margin=0)
        for shared in (0.0, 0.5):
            table, _ = make_board(draw, Shape(2, 9, 4, 0.9, shared, spare=30), options)
            full = (table.held.unflatten(1, (-1, 4)) >= 0).all(2)
            plan(table, torch.arange(2), options)
            assert not bool((table.leaving & full).any())


def test_fill_keeps_the_block_that_new_tokens_go_to_and_its_slots_for_the_last() -> None:
    """Else the next token would open another block, and each plan would move the newest tokens again."""
    table = TokenTable(BlockPool(8, torch.device("cpu")), 1, 4, refill=False)
    table.reserve(32)
    rows = torch.tensor([0])
    table.append(rows, torch.tensor([13]), 13)
    table.evict_token(rows, torch.tensor([i in (1, 2, 3, 5, 6, 10) for i in range(32)])[None])  # live: 1, 2, 3 of 4, and the newest
    made = plan(table, rows, ReclaimOptions())
    assert table.leaving[0, :4].tolist() == [True, True, False, False]
    assert moves_of(table, made) == [(0, (0, 0), (2, 2), 0), (0, (1, 0), (3, 1), 4), (0, (1, 3), (3, 2), 7)]
    assert int(table.n_free[0]) == 1
    table.apply_moves(made.rows, made.source, made.target, made.token, made.count)
    table.append(rows, torch.tensor([1]), 1)
    assert table.pool.n_free() == 6


def test_shared_blocks_get_only_the_room_that_private_ones_leave_over() -> None:
    """To copy out of a shared block frees nothing as long as the other owners stay: it must not cost a private one."""
    draw, left_shared = random.Random(4), 0
    for packing in ("fill", "fresh"):
        for _ in range(50):
            options = ReclaimOptions(packing=packing, margin=0)  # type: ignore[arg-type]  # one of the two words
            table, plain = make_board(draw, Shape(1, 9, 8, 0.4, 0.5, spare=9), options)
            row, before = plain.rows[0], table.pool.n_free()
            private = [j for j in row.blocks if plain.private(0, j)]
            made = plan(table, torch.tensor([0]), options)
            left_shared += sum(bool(table.leaving[0, j]) for j in row.blocks if j not in private)
            table.apply_moves(made.rows, made.source, made.target, made.token, made.count)
            assert table.pool.n_free() - before == len(private) - -(-sum(map(row.live_in, private)) // 8)
    assert left_shared > 20


def test_fresh_moves_nothing_for_shared_blocks_alone() -> None:
    options = ReclaimOptions(packing="fresh", margin=0)
    table, _ = make_board(random.Random(5), Shape(3, 9, 8, 0.3, shared=1.0, spare=50), options)
    made = plan(table, torch.arange(3), options)
    assert int(made.count) == 0
    assert table.pool.n_free() == 50


def test_fresh_lets_those_go_first_who_give_back_most() -> None:
    options = ReclaimOptions(packing="fresh", margin=1)
    table = TokenTable(BlockPool(15, torch.device("cpu")), 2, 4, refill=False, spare_blocks=spare_blocks(options, 4))
    table.reserve(32)
    rows = torch.tensor([0, 1])
    table.append(rows, torch.tensor([16, 32]), 32)
    ids = torch.arange(32)
    table.evict_token(rows, torch.stack((ids % 2 == 0, ids % 4 != 0)))  # either could go into the two blocks to spare
    made = plan(table, rows, options)
    assert table.leaving.sum(1).tolist() == [0, 8, 0]
    assert int(made.count) == 8
    assert table.pool.n_free() == 1


def test_repeated_small_plans_converge_to_the_fewest_blocks() -> None:
    options = ReclaimOptions(move_cap=32, slack=16, refill=True)
    table, _ = make_board(random.Random(2), Shape(4, 64, 16, 0.5), options)
    rows = torch.arange(4)
    plans = 0
    while plans < 200:
        plans += 1
        made = plan(table, rows, options)
        table.apply_moves(made.rows, made.source, made.target, made.token, made.count)
        if not int(made.count):
            break
    assert plans < 80
    for row in range(4):
        held = int((table.blocks[row] != table.pool.trash).sum())
        assert held == -(-(int(table.n_live[row]) + 16) // 16)


def test_sizes_depend_on_rows_and_options_alone() -> None:
    def sizes(packing: str, live: float, seed: int) -> list[torch.Size]:
        options = ReclaimOptions(packing=packing, move_cap=40, margin=0)  # type: ignore[arg-type]  # the test's own words
        table, _ = make_board(random.Random(seed), Shape(2, 9, 4, live, spare=20), options)
        made = plan(table, torch.arange(2), options)
        return [getattr(made, name).shape for name in ("source", "target", "token", "source_slot", "target_slot", "count")]

    for packing in ("fill", "fresh"):
        assert sizes(packing, 0.1, 1) == sizes(packing, 0.5, 2) == sizes(packing, 1.0, 3)


def test_a_cap_beyond_all_slots_costs_no_memory() -> None:
    options = ReclaimOptions(move_cap=10**12)
    table, _ = make_board(random.Random(1), Shape(2, 9, 4, 0.5), options)
    made = plan(table, torch.arange(2), options)
    assert len(made.source) == 2 * table.held.shape[1]


@pytest.mark.parametrize(
    "act",
    [
        lambda x: int(x[0]),
        lambda x: bool((x > 0).any()),
        lambda x: x.nonzero(),
        lambda x: x[x > 0],
        lambda x: x.masked_select(x > 0),
        lambda x: x.tolist()[x[0].item()],
        lambda x: x.__setitem__(x > 1, 0),
        lambda x: x.unique(),
        torch.repeat_interleave,
    ],
)
def test_the_guard_against_host_reads_finds_them(act: Callable[[torch.Tensor], object]) -> None:
    x = torch.arange(4)
    assert finds(lambda: act(x))
    assert not finds(lambda: x.masked_fill(x > 1, 0)[x].scatter_(0, x, x))
