"""The reclaim protocol under random interleavings: real table, pool, planner, reclaimer and prefix index, on two streams.

The host puts operations on the main stream and runs ahead of it; what it knows of the device is a record some steps old. The
main stream executes in launch order, at random moments. The side stream copies move by move, at random moments. Each slot of
the cache holds a code of (request, token), and each step reads back every live token of every row through the slot map.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from vtoken_sdk.runtime import upkeep
from vtoken_sdk.runtime.audit import check_owners, check_rows
from vtoken_sdk.runtime.block_pool import BlockPool
from vtoken_sdk.runtime.config import ReclaimOptions
from vtoken_sdk.runtime.copy_stream import DeferredStream
from vtoken_sdk.runtime.kv_cache import KVCache
from vtoken_sdk.runtime.planner import Plan, spare_blocks
from vtoken_sdk.runtime.prefix_index import PrefixIndex, prefix_keys
from vtoken_sdk.runtime.reclaimer import Reclaimer
from vtoken_sdk.runtime.token_table import TokenTable
from vtoken_sdk.runtime.upkeep import DEAD, RESERVE

ROWS, TOKENS, UNIT = 3, 64, 4
CPU = torch.device("cpu")


@dataclass
class Request:
    """The host's view. evicted: an eviction was launched; ended: to be released."""

    uid: int
    tokens: int
    evicted: bool = False
    ended: bool = False


@dataclass
class Flight:
    """A plan in flight, as the host sees it. planned, copying: how far the device is."""

    reclaimer: Reclaimer
    rows: list[int]
    due: int
    planned: bool = False
    copying: bool = False


@dataclass
class Truth:
    """What a row must hold: a code for each token id, and who lives. key: of its prefix, -1 without."""

    uid: int
    codes: Tensor = field(default_factory=lambda: torch.zeros(TOKENS, dtype=torch.float64))
    live: Tensor = field(default_factory=lambda: torch.zeros(TOKENS, dtype=torch.bool))


class Simulation:
    """One random run. `rule` names a rule of the protocol that is switched off."""

    def __init__(self, seed: int, rule: str | None = None) -> None:
        draw = self.draw = random.Random(seed)
        self.rule, self.size = rule, draw.choice([1, 2, 4, 4])
        self.lag = draw.choice([1, 2, 3])
        self.options = ReclaimOptions(
            packing=draw.choice(["fill", "fill", "fresh"]),
            margin=draw.choice([0, 1]),
            slack=draw.choice([0, 0, 0, self.size]),
            move_cap=draw.choice([4, 100]),
            publish_after=draw.choice([1, 2, 4, 6]),
            refill=draw.random() < 0.5,
        )
        n_blocks = draw.choice([72, 120]) // self.size
        self.pool = BlockPool(n_blocks, CPU)
        spare = spare_blocks(self.options, self.size)
        self.table = TokenTable(self.pool, ROWS, self.size, refill=self.options.refill, spare_blocks=spare)
        self.table.reserve(TOKENS)
        self.cache = KVCache(1, n_blocks * self.size, self.size, 1, 1, torch.float64, CPU)
        self.index = PrefixIndex(self.table, UNIT)
        self.reclaimers = [self._reclaimer() for _ in range(2 if rule == "one plan at a time" else 1)]
        self.last_plan: Plan | None = None
        self.truth: dict[int, Truth] = {}
        # The streams and the host.
        self.main: deque[tuple[Callable[[], None], Callable[[], bool]]] = deque()
        self.side: deque[Flight] = deque()
        self.rows: dict[int, Request] = {}
        self.flights: list[Flight] = []
        self.records: list[int] = []
        self.unconfirmed: deque[int] = deque()
        self.bound, self.uids, self.reads, self.moves = n_blocks, 0, 0, 0
        self.pace = 0.5  # how often the side stream goes first
        self.late_entries: list[tuple[int, int, int, list[bytes]]] = []
        if rule is not None and rule in PATCHES:
            PATCHES[rule](self)

    def _reclaimer(self) -> Reclaimer:
        kind = {"publish waits for the copies": LateStream, "copies wait for the plan": HastyStream}.get(self.rule or "", DeferredStream)
        return Reclaimer(self.table, kind(self.cache, lambda left: 1), self.options)

    # -- main-stream operations, when they execute ----------------------------------------------------------------------

    def append(self, rows: Sequence[int], counts: Sequence[int]) -> None:
        before = [int(self.table.length[r]) for r in rows]
        slots = self.table.append(torch.tensor(rows), torch.tensor(counts), max(counts))
        for i, r in enumerate(rows):
            ids, truth = slice(before[i], before[i] + counts[i]), self.truth[r]
            truth.live[ids] = True
            self.cache.keys[0, slots[i, : counts[i]], 0, 0] = truth.codes[ids]
        self.read(rows)

    def read(self, rows: Sequence[int]) -> None:
        """What attention does: every live token, through the map."""
        for r in rows:
            truth, n = self.truth[r], int(self.table.n_live[r])
            want = truth.codes[truth.live]
            got = self.cache.keys[0, self.table.map[r, :n].long(), 0, 0]
            assert torch.equal(got, want), f"request {truth.uid} reads {got.tolist()} for {want.tolist()}"
            self.reads += n

    def prefill(self, row: int, uid: int, tokens: int, key: int | None, keys: list[bytes]) -> None:
        truth = self.truth[row] = Truth(uid)
        truth.codes[:] = uid * TOKENS + torch.arange(TOKENS)
        if key is not None:
            truth.codes[: len(keys) * UNIT] = -key * TOKENS - torch.arange(len(keys) * UNIT, dtype=torch.float64)
        hit = self.index.match(keys)
        if hit:
            self.index.adopt(row, hit)
            truth.live[: len(hit) * UNIT] = True
        self.append([row], [tokens - len(hit) * UNIT])
        if self.rule != "prefixes are entered before any eviction":
            self.index.enter(row, keys)

    def enter_late(self, row: int, uid: int, keys: list[bytes]) -> None:
        if row in self.truth and self.truth[row].uid == uid:
            self.index.enter(row, keys)

    def evict(self, rows: Sequence[int], seed: float) -> None:
        draw = random.Random(seed)
        kill = torch.zeros(len(rows), TOKENS, dtype=torch.bool)
        for i, r in enumerate(rows):
            share = draw.choice([0.1, 0.3, 0.5])
            kill[i] = torch.tensor([draw.random() < share for _ in range(TOKENS)])
            kill[i, int(self.table.length[r]) - 1] = False
            self.truth[r].live &= ~kill[i]
        self.table.evict_token(torch.tensor(rows), kill)

    def release(self, rows: Sequence[int]) -> None:
        self.table.release(torch.tensor(rows))
        for r in rows:
            del self.truth[r]

    def plan(self, flight: Flight, step: int) -> None:
        flight.reclaimer.plan(flight.rows, step)
        flight.planned = True

    def publish(self, flight: Flight) -> None:
        self.last_plan = flight.reclaimer.in_flight
        flight.reclaimer.wait()
        moved, _ = flight.reclaimer.publish()
        self.moves += int(moved)
        if self.rule is not None or self.draw.random() < 0.3:
            self.audit()

    def record(self) -> None:
        self.records.append(self.pool.n_free())

    def audit(self) -> None:
        names = {r: f"request {t.uid}" for r, t in self.truth.items()}
        check_owners(self.pool, self.table, self.index, names)
        if len(self.reclaimers) == 1:
            check_rows(self.table, names, self.reclaimers[0].in_flight)

    # -- streams --------------------------------------------------------------------------------------------------------

    def put(self, act: Callable[[], None], ready: Callable[[], bool] = lambda: True) -> None:
        self.main.append((act, ready))

    def advance_main(self) -> bool:
        if not self.main or not self.main[0][1]():
            return False
        self.main.popleft()[0]()
        # Nobody owns these blocks: what they hold is rubbish from now on.
        free = (self.pool.owners[:-1] == 0).repeat_interleave(self.size)
        self.cache.keys[0, : self.cache.n_slots][free] = torch.nan
        return True

    def advance_side(self) -> bool:
        """Begin the copies of the next plan, or copy one more token."""
        waits = self.rule != "copies wait for the plan"
        if self.side and (self.side[0].planned or not waits) and not self.copying():
            flight = self.side.popleft()
            flight.copying = True
            if flight.planned:
                flight.reclaimer.launch()
            elif self.last_plan is not None:  # what the buffers held before
                flight.reclaimer.stream.submit(self.last_plan)
            return True
        for reclaimer in self.reclaimers:
            reclaimer.tick()
        return self.copying()

    def copying(self) -> bool:
        streams: list[Any] = [reclaimer.stream for reclaimer in self.reclaimers]
        return any(s._plan is not None and s._done < s._count for s in streams)

    def advance(self, moments: int) -> None:
        for _ in range(moments):
            side_first = self.draw.random() < self.pace
            first, second = (self.advance_side, self.advance_main) if side_first else (self.advance_main, self.advance_side)
            if not first() and not second():
                return

    def drain(self) -> None:
        while self.main:
            self.advance(1)

    # -- the host -------------------------------------------------------------------------------------------------------

    def run(self, steps: int) -> None:
        for step in range(steps):
            if step % 6 == 0:
                self.pace = self.draw.choice([0.03, 0.5, 0.9])
            while len(self.records) < step - self.lag:
                self.advance(1)
            while len(self.unconfirmed) > self.lag:
                self.unconfirmed.popleft()
            known = self.records[step - self.lag - 1] if step > self.lag else self.pool.n_blocks
            self.bound = known - sum(self.unconfirmed)
            self.step(step)
            self.advance(self.draw.choice([0, 3, 10, 40]))
        for request in self.rows.values():
            request.ended = True
        while self.rows or self.flights:
            self.publish_due(10**6)
            self.release_ended()
        self.put(lambda: self.index.drop(len(self.index)))
        self.put(self.audit)
        self.drain()
        assert self.pool.n_free() == self.pool.n_blocks, "the pool is not whole at the end"

    def step(self, step: int) -> None:
        draw, spent = self.draw, 0
        self.publish_due(step)
        self.release_ended()
        for entry in [e for e in self.late_entries if e[0] <= step]:
            self.late_entries.remove(entry)
            self.put(lambda entry=entry: self.enter_late(*entry[1:]))
        for row in range(ROWS):
            if row in self.rows or draw.random() < 0.4:
                continue
            key = draw.choice([1, 2, None])
            keys = prefix_keys([key] * UNIT * draw.choice([1, 2]), UNIT) if key is not None else []
            tokens = len(keys) * UNIT + draw.randint(8, 24)
            need = -(-tokens // self.size)
            if self.bound - spent - need < 2 * ROWS:
                continue
            self.uids += 1
            self.rows[row] = Request(self.uids, tokens)
            self.put(lambda row=row, uid=self.uids, tokens=tokens, key=key, keys=keys: self.prefill(row, uid, tokens, key, keys))
            self.late_entries.append((step + 3, row, self.uids, keys))
            spent += need
        if self.rule != "prefixes are entered before any eviction":
            self.late_entries.clear()
        running = sorted(row for row, request in self.rows.items() if not request.ended)
        if self.bound - spent < len(running):
            self.drain()
            self.put(lambda: self.index.drop(1))
            if running and draw.random() < 0.5:
                self.rows[draw.choice(running)].ended = True
        elif running:
            self.put(lambda rows=running: self.append(rows, [1] * len(rows)))
            spent += len(running)
            for row in running:
                self.rows[row].tokens += 1
            if draw.random() < 0.5:
                some, lot = draw.sample(running, draw.randint(1, len(running))), draw.random()
                self.put(lambda: self.evict(some, lot))
                for row in some:
                    self.rows[row].evicted = True
            for row in running:
                self.rows[row].ended = draw.random() < 0.05 or self.rows[row].tokens >= TOKENS - 1
        spent += self.plan_some(step)
        if draw.random() < 0.05:
            self.put(lambda: self.index.drop(1))
        self.unconfirmed.append(spent)
        self.put(self.record)

    def plan_some(self, step: int) -> int:
        """Returns the blocks that the plan may take."""
        busy = {id(flight.reclaimer) for flight in self.flights}
        idle = [reclaimer for reclaimer in self.reclaimers if id(reclaimer) not in busy]
        rows = sorted(row for row, request in self.rows.items() if request.evicted and not request.ended)
        if not idle or not rows or self.draw.random() < 0.2:
            return 0
        flight = Flight(idle[0], rows, step + self.options.publish_after)
        self.flights.append(flight)
        self.put(lambda: self.plan(flight, step))
        self.side.append(flight)
        if self.options.packing == "fill":
            return 0
        return sum(-(-self.rows[row].tokens // self.size) + self.options.slack for row in rows)

    def publish_due(self, step: int) -> None:
        for flight in [f for f in self.flights if f.due <= step]:
            self.flights.remove(flight)
            self.put(lambda flight=flight: self.publish(flight), lambda flight=flight: flight.copying)

    def release_ended(self) -> None:
        held = {row for flight in self.flights for row in flight.rows}
        if self.rule == "rows of a plan are released after it":
            held = set()
        gone = sorted(row for row, request in self.rows.items() if request.ended and row not in held)
        if gone:
            self.put(lambda: self.release(gone))
            for row in gone:
                del self.rows[row]


# -- rules switched off -----------------------------------------------------------------------------------------------------


class HastyStream(DeferredStream):
    """Takes the next plan before the main stream has waited for the last."""

    def submit(self, plan: Plan) -> None:
        super().join()
        super().submit(plan)


class LateStream(HastyStream):
    """Lets the main stream go on before the copies are done; they go on beside it."""

    def join(self) -> bool:
        return False


def _free_at_copy_end(sim: Simulation) -> None:
    table, (reclaimer,) = sim.table, sim.reclaimers
    stream, apply = reclaimer.stream, table.apply_moves
    assert isinstance(stream, DeferredStream)
    copy = stream._copy
    freed: set[int] = set()

    def leaving_blocks(rows: Tensor) -> Tensor:
        return torch.where(table.leaving[rows], table.blocks[rows], sim.pool.trash)

    def copy_and_free(n: int) -> None:
        copy(n)
        made = reclaimer.in_flight
        if made is not None and stream._done == stream._count and id(made) not in freed:
            freed.add(id(made))
            sim.pool.free(leaving_blocks(made.rows).flatten())

    def apply_without_free(rows: Tensor, *moves: Tensor) -> tuple[Tensor, Tensor]:
        table.blocks[rows] = torch.where(table.leaving[rows], sim.pool.trash, table.blocks[rows])
        return apply(rows, *moves)

    stream._copy = copy_and_free  # type: ignore[method-assign]
    table.apply_moves = apply_without_free  # type: ignore[method-assign]


def _do_not_reserve(sim: Simulation) -> None:
    table = sim.table
    begin, apply = table.begin_moves, table.apply_moves

    def begin_unreserved(rows: Tensor, leaving: Tensor, target: Tensor, count: Tensor) -> None:
        begin(rows, leaving, target, torch.zeros_like(count))

    def apply_anyway(rows: Tensor, source: Tensor, target: Tensor, token: Tensor, count: Tensor) -> tuple[Tensor, Tensor]:
        flat = table.held.view(-1)
        planned = torch.arange(len(target)) < count
        flat[target] = torch.where(planned & (flat[target] < 0), flat[target] - RESERVE, flat[target])
        return apply(rows, source, target, token, count)

    table.begin_moves, table.apply_moves = begin_unreserved, apply_anyway  # type: ignore[method-assign]


def _settle_blocks_by(sim: Simulation, settle_blocks: Callable[..., None]) -> None:
    changed = SimpleNamespace(**{**vars(upkeep), "settle_blocks": settle_blocks})
    sim.pool.__class__ = type("FaultyPool", (BlockPool,), {"upkeep": changed})


def _append_to_leaving(sim: Simulation) -> None:
    def settle_blocks(table: TokenTable, rows: Tensor, ordinals: int, **how: bool) -> None:
        upkeep.settle_blocks(table, rows, ordinals, **how)
        leaving = table.leaving[rows]
        table.leaving[rows] = False
        upkeep.settle_blocks(table, rows, table.max_blocks, close=False)
        table.leaving[rows] = leaving

    _settle_blocks_by(sim, settle_blocks)


def _resurrect(sim: Simulation) -> None:
    table = sim.table
    apply = table.apply_moves

    def apply_all(rows: Tensor, source: Tensor, target: Tensor, token: Tensor, count: Tensor) -> tuple[Tensor, Tensor]:
        planned = torch.arange(len(target)) < count
        flat = table.held.view(-1)
        flat[source] = torch.where(planned, token, flat[source]).to(torch.int32)
        return apply(rows, source, target, token, count)

    table.apply_moves = apply_all  # type: ignore[method-assign]


def _retire_in_flight(sim: Simulation) -> None:
    table = sim.table
    evict = table.evict_token
    evicting = [False]

    def settle_blocks(table: TokenTable, rows: Tensor, ordinals: int, **how: bool) -> None:
        if evicting[0]:
            held = table.held[rows, : ordinals * table.block_size].unflatten(1, (ordinals, -1))
            empty = ~(held >= 0).any(-1)
            table.held[rows, : ordinals * table.block_size] = held.masked_fill(empty[..., None], DEAD).flatten(1)
            table.leaving[rows, :ordinals] &= ~empty
        upkeep.settle_blocks(table, rows, ordinals, **how)

    def evict_and_retire(rows: Tensor, kill: Tensor) -> tuple[Tensor, Tensor]:
        evicting[0] = True
        result = evict(rows, kill)
        evicting[0] = False
        return result

    table.evict_token = evict_and_retire  # type: ignore[method-assign]
    _settle_blocks_by(sim, settle_blocks)


def _shared_is_private(sim: Simulation) -> None:
    table = sim.table
    table.private = lambda rows: table.blocks[rows] != sim.pool.trash  # type: ignore[method-assign]


PATCHES: dict[str, Callable[[Simulation], None]] = {
    "blocks are freed at publication, not when they are copied": _free_at_copy_end,
    "destinations are reserved": _do_not_reserve,
    "nothing is appended to leaving blocks": _append_to_leaving,
    "tokens that died in flight stay dead": _resurrect,
    "leaving and reserved blocks are not retired": _retire_in_flight,
    "shared blocks are immutable": _shared_is_private,
}
RULES = (
    "copies wait for the plan",
    "publish waits for the copies",
    "rows of a plan are released after it",
    "one plan at a time",
    "prefixes are entered before any eviction",
    *PATCHES,
)
