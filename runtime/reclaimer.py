"""Turns dead tokens into free blocks behind the decoder's back. One plan in flight.

    IDLE    --main: plan-------------> leaving and reserved set in the table
    PLANNED --side: wait for the plan-> copy source -> target, all layers
    COPYING --main, some steps later: wait for the copies, apply the moves, drop the leaving blocks--> IDLE

Sources are only read and targets are in no slot map in between; a request of the plan is released only after it is applied.
So a plan whose copies fail can be canceled: nothing has read what they wrote.

How long dead tokens hold blocks: an eviction is known to the host `lag` steps later, and a plan published `publish_after` steps after
it was made. One plan may have to wait for another, so it takes at most 2 * (lag + publish_after) steps, if the plans' caps allow.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor

from .config import ReclaimOptions
from .copy_stream import CopyStream
from .graphs import Graphs
from .planner import Plan, plan
from .token_table import TokenTable
from .transfer import to_device


class ReclaimError(RuntimeError):
    """The copies of a plan failed. The plan is canceled: table, pool and every request are as before, and the engine can go on.

    freed: int64 [], blocks that the plan had opened and that are free again.
    """

    def __init__(self, message: str, freed: Tensor) -> None:
        super().__init__(message)
        self.freed = freed


class Reclaimer:
    """Owns the plan in flight. `stalls` counts publications that found the copies unfinished.

    broken: a copy failed once; nothing is planned any more. capture: plan and publish as CUDA graphs.
    """

    def __init__(self, table: TokenTable, stream: CopyStream, options: ReclaimOptions, *, capture: bool = False) -> None:
        self.table, self.stream, self.options = table, stream, options
        self.rows: frozenset[int] = frozenset()
        self.stalls = 0
        self.broken = False
        self._plan: Plan | None = None
        self._due = 0
        self._failure: Exception | None = None
        self._graphs = Graphs(table, self._plan_rows, self._apply) if capture else None

    def _plan_rows(self, rows: Tensor) -> Plan:
        return plan(self.table, rows, self.options)

    def _apply(self, made: Plan) -> tuple[Tensor, Tensor]:
        return self.table.apply_moves(made.rows, made.source, made.target, made.token, made.count)

    def prepare(self, batches: Sequence[int]) -> None:
        """Capture the graphs of plans for these numbers of rows, where there are graphs."""
        if self._graphs is not None:
            for size in batches:
                self._graphs.prepare(size)

    @property
    def idle(self) -> bool:
        return self._plan is None

    @property
    def in_flight(self) -> Plan | None:
        return self._plan

    def plan(self, rows: Sequence[int], step: int) -> None:
        """Plan for these rows; `launch` starts the copies. Published `publish_after` steps from `step`."""
        assert self._plan is None, "one plan in flight"
        self._plan = self._graphs.run(tuple(rows)) if self._graphs is not None else self._plan_rows(to_device(rows, self.table.device))
        self.rows, self._due = frozenset(rows), step + self.options.publish_after

    def launch(self) -> None:
        made = self._plan
        assert made is not None
        self._attempt(lambda: self.stream.submit(made))

    def tick(self) -> None:
        """The main stream has launched another operation."""
        self._attempt(self.stream.tick)

    def due(self, step: int) -> bool:
        return self._plan is not None and step >= self._due

    def wait(self) -> None:
        """Order the main stream behind the copies."""
        self.stalls += bool(self._attempt(self.stream.join))

    def publish(self) -> tuple[Tensor, Tensor]:
        """Apply the plan, after `wait`. Returns moves that counted and blocks that became free, int64 [] each.

        Raises ReclaimError if a copy failed: the plan is canceled, once and for all.
        """
        made = self._plan
        assert made is not None
        self._plan, self.rows = None, frozenset()
        if self._failure is None:
            return self._graphs.follow() if self._graphs is not None else self._apply(made)
        self.stream.abandon()
        freed = self.table.cancel_moves(made.rows)
        failure, self._failure = self._failure, None
        self.broken = True
        raise ReclaimError(
            f"a copy of the reclaimer failed ({type(failure).__name__}: {failure}). Its plan is canceled, no token was lost; the engine "
            "can go on, without compaction. If memory ran out, lower reclaim.move_cap or pool_blocks and start again",
            freed,
        ) from failure

    def _attempt(self, act: Callable[[], bool | None]) -> bool | None:
        """A failure waits for `publish`, where the plan can be canceled between two steps."""
        if self._failure is not None:
            return None
        try:
            return act()
        except Exception as failure:
            self._failure = failure
            return None
