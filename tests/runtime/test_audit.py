"""The audit finds every law broken on purpose, and names the blocks and the requests; it is right itself when nothing is broken."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from vtoken_sdk.policies.random import Random
from vtoken_sdk.runtime import Engine, EngineConfig, EvictOptions, ReclaimOptions, SamplingParams
from vtoken_sdk.runtime.token_table import TokenTable
from vtoken_sdk.runtime.upkeep import DEAD, FREE, RESERVE

from .oracles import make_engine, prompt, small
from .plain import rebuild_map

SIZE = 8


class Scene:
    """Three requests of 60, 61 and 62 tokens, half of them evicted; the second has its first two units from the first.

    row: of the second request. first: a block of its own with live and dead slots; shared: one that has other owners too.
    """

    def __init__(self, *, planned: bool, refill: bool = False) -> None:
        config = EngineConfig(
            pool_blocks=60,
            block_size=SIZE,
            chunk=64,
            budget=0.5,
            max_running=4,
            evict=EvictOptions("end", 1 if planned else 100),
            reclaim=ReclaimOptions(refill=refill, publish_after=2 if planned else 1),
            prefix_cache=True,
        )
        self.engine: Engine = make_engine(small().served, config, Random())
        root = prompt(0, 32)
        for i in range(3):
            ids = [*(root if i < 2 else prompt(9, 32)), *prompt(i + 1, 28 + i)]
            self.engine.add_request(ids, SamplingParams(max_tokens=200, seed=i))
        worker = self.engine.worker
        assert worker.reclaimer is not None
        for _ in range(60):
            self.engine.step()
            in_flight = worker.reclaimer.in_flight
            if self.engine.steps > 12 and (in_flight is not None and int(in_flight.count) > 0) == planned:
                break
        if not planned:  # some tokens of whole blocks die
            ids = torch.arange(worker.table.max_tokens)
            worker.table.evict_token(torch.tensor([1]), ((ids > 34) & (ids < 60) & (ids % 2 == 0))[None])
        self.table, self.pool, self.row = worker.table, worker.pool, 1
        self.engine.check()
        owners = self.pool.owners[self.table.blocks[1]]
        present = self.table.blocks[1] != self.pool.trash
        self.shared = int(self.table.blocks[1][present & (owners > 1)][-1])
        held = self.table.held[1].unflatten(0, (-1, SIZE))
        mixed = present & (owners == 1) & (held >= 0).any(1) & (held < 0).any(1)
        self.first = int(self.table.blocks[1][mixed][0])

    def place(self, block: int) -> int:
        """Where the block's slots begin in `held`."""
        return int((self.table.blocks[self.row] == block).nonzero()[0]) * SIZE

    def live(self, block: int) -> int:
        """A token of the request that lives in this block."""
        values = self.table.held[self.row, self.place(block) : self.place(block) + SIZE]
        return int(values[values >= 0][0])


def count_an_owner_too_many(s: Scene) -> str:
    s.pool.owners[s.first] += 1
    return rf"block {s.first}: the pool counts 2 owners, but it is named by request-1$"


def forget_an_owner(s: Scene) -> str:
    s.pool.owners[s.shared] -= 1
    return rf"block {s.shared}: .*named by .*request-1, the prefix index"


def free_a_block_that_is_held(s: Scene) -> str:
    s.pool.free(torch.tensor([s.first]))
    return rf"block {s.first} is free, and named by request-1"


def lose_a_block(s: Scene) -> str:
    s.table.blocks[s.row][s.table.blocks[s.row] == s.first] = s.pool.trash
    return rf"block {s.first}: the pool counts 1 owners, but it is named by nobody"


def give_one_block_to_two_requests(s: Scene) -> str:
    s.table.blocks[2, s.place(s.first) // SIZE] = s.first
    return r"named by"


def list_a_block_twice(s: Scene) -> str:
    s.table.blocks[s.row][s.table.blocks[s.row] == s.pool.trash] = s.first
    s.pool.owners[s.first] += int((s.table.blocks[s.row] == s.first).sum()) - 1
    return r"request-1 \(row 1\): its list names a block twice"


def free_a_block_twice(s: Scene) -> str:
    s.pool.stack[0] = s.pool.stack[1].clone()
    return rf"\[{int(s.pool.stack[0])}\] are free twice"


def move_a_block_to_another_ordinal(s: Scene) -> str:
    s.pool.home[s.first] += 1
    return rf"request-1 \(row 1\): blocks \[{s.first}\] are not at the ordinals"


def enter_a_token_where_no_block_is(s: Scene) -> str:
    s.table.held[s.row, -1] = 3
    return r"request-1 \(row 1\): something is entered at ordinals"


def resurrect_a_token(s: Scene) -> str:
    dead = int((s.table.slot[s.row] < 0).nonzero()[0])
    s.table.slot[s.row, dead] = s.first * SIZE
    return rf"request-1 \(row 1\): tokens \[{dead}\] are live and not appended, or evicted"


def log_the_death_of_a_live_token(s: Scene) -> str:
    token = s.live(s.first)
    s.table.died_at[s.row, token] = 5
    return rf"request-1 \(row 1\): tokens \[{token}\]"


def move_a_token_without_its_slot(s: Scene) -> str:
    token = s.live(s.first)
    s.table.slot[s.row, token] = s.pool.n_blocks * SIZE - 1
    return rf"request-1 \(row 1\): slots and held tokens disagree: .* ids \[{token}\], blocks .*{s.first}"


def enter_a_token_twice(s: Scene) -> str:
    values = s.table.held[s.row, s.place(s.first) : s.place(s.first) + SIZE]
    values[values < 0] = s.live(s.first)
    return r"request-1 \(row 1\): slots and held tokens disagree"


def miscount_the_living(s: Scene) -> str:
    s.table.n_live[s.row] += 1
    return r"request-1 \(row 1\): \d+ live tokens, counted \d+"


def miscount_the_free_slots(s: Scene) -> str:
    s.table.n_free[s.row] += 1
    return r"request-1 \(row 1\): \d+ slots may be appended to, counted \d+"


def shuffle_the_map(s: Scene) -> str:
    s.table.map[s.row, :2] = s.table.map[s.row, :2].flip(0)
    return r"request-1 \(row 1\): the slot map does not list the live tokens in order"


def shuffle_the_end_of_the_map(s: Scene) -> str:
    n_live, n_free = int(s.table.n_live[s.row]), int(s.table.n_free[s.row])
    assert n_free > 1
    s.table.map[s.row, n_live : n_live + n_free] = s.table.map[s.row, n_live : n_live + n_free].flip(0)
    return r"request-1 \(row 1\): the slot map does not end in the slots"


def append_to_a_shared_block(s: Scene) -> str:
    values = s.table.held[s.row, s.place(s.shared) : s.place(s.shared) + SIZE]
    values[values == DEAD] = FREE
    rebuild_map(s.table, torch.tensor([s.row]))
    return rf"request-1 \(row 1\): blocks \[.*{s.shared}.*\] have other owners"


def reserve_without_a_plan(s: Scene) -> str:
    values = s.table.held[s.row, s.place(s.first) : s.place(s.first) + SIZE]
    values[values == DEAD] = DEAD - RESERVE
    return rf"request-1 \(row 1\): slots of blocks \[{s.first}\] are reserved"


def leave_without_a_plan(s: Scene) -> str:
    s.table.leaving[s.row, s.place(s.first) // SIZE] = True
    rebuild_map(s.table, torch.tensor([s.row]))
    return rf"request-1 \(row 1\): .*blocks \[{s.first}\] leave, and no plan says so"


def keep_an_empty_block(s: Scene) -> str:
    places = slice(s.place(s.first), s.place(s.first) + SIZE)
    values = s.table.held[s.row, places].long()
    s.table.slot[s.row, values[values >= 0]] = -1
    s.table.died_at[s.row, values[values >= 0]] = 40
    s.table.held[s.row, places] = DEAD
    rebuild_map(s.table, torch.tensor([s.row]))
    return rf"request-1 \(row 1\): blocks \[{s.first}\] hold no live token"


def hold_something_without_a_request(s: Scene) -> str:
    s.table.slot[3, 7] = 5
    return r"rows \[3\] have no request but hold something"


IDLE: list[Callable[[Scene], str]] = [
    count_an_owner_too_many,
    forget_an_owner,
    free_a_block_that_is_held,
    lose_a_block,
    give_one_block_to_two_requests,
    list_a_block_twice,
    free_a_block_twice,
    move_a_block_to_another_ordinal,
    enter_a_token_where_no_block_is,
    resurrect_a_token,
    log_the_death_of_a_live_token,
    move_a_token_without_its_slot,
    enter_a_token_twice,
    miscount_the_living,
    miscount_the_free_slots,
    shuffle_the_map,
    append_to_a_shared_block,
    reserve_without_a_plan,
    leave_without_a_plan,
    keep_an_empty_block,
    hold_something_without_a_request,
]


@pytest.mark.parametrize("corrupt", IDLE)
def test_a_broken_law_is_found_and_named(corrupt: Callable[[Scene], str]) -> None:
    scene = Scene(planned=False)
    said = corrupt(scene)
    with pytest.raises(AssertionError, match=said):
        scene.engine.check()


def test_a_shuffled_list_of_free_slots_is_found() -> None:
    scene = Scene(planned=False, refill=True)
    said = shuffle_the_end_of_the_map(scene)
    with pytest.raises(AssertionError, match=said):
        scene.engine.check()


def unreserve(table: TokenTable, target: int) -> None:
    table.held.view(-1)[target] += RESERVE


def reserve_twice(table: TokenTable, target: int) -> None:
    table.held.view(-1)[target] -= RESERVE


@pytest.mark.parametrize(("corrupt", "said"), [(unreserve, "are not the targets of the plan"), (reserve_twice, "are reserved twice")])
def test_slots_of_a_plan_in_flight_are_checked_against_it(corrupt: Callable[[TokenTable, int], None], said: str) -> None:
    scene = Scene(planned=True)
    reclaimer = scene.engine.worker.reclaimer
    assert reclaimer is not None
    assert reclaimer.in_flight is not None
    corrupt(scene.table, int(reclaimer.in_flight.target[0]))
    rebuild_map(scene.table, torch.arange(3))
    with pytest.raises(AssertionError, match=said):
        scene.engine.check()


def test_an_idle_engine_is_in_order_before_its_first_and_after_its_last_request() -> None:
    for runtime in ("native", "naive", "refill", "vtoken", "page1"):
        config = EngineConfig(runtime=runtime, pool_blocks=20, prefix_cache=True)  # type: ignore[arg-type]  # one of the names
        engine = make_engine(small().served, config, Random())
        engine.check()
        engine.generate([prompt(1, 40), prompt(1, 40)], SamplingParams(max_tokens=5))
        engine.check()
