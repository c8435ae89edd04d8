"""How the host learns what the device did: one record a step, read some steps later, never sooner."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from .records import StepRecord
from .sequence import Sequence
from .step_books import POOL_FIELDS, ROW_FIELDS

COLUMN = {name: i for names in (ROW_FIELDS, POOL_FIELDS) for i, name in enumerate(names)}


@dataclass
class StepInFlight:
    """A launched step. ran: (row, request, whether it samples a token). failed: requests whose policy did. times: host ms by part.

    logs: of rows given back before it, (request, tokens appended) each and when their tokens died, int32 [B, tokens] on the host once
    the step is known. record: int64 [R + 1, fields] on the host, once `ready`.
    """

    step: int
    ran: list[tuple[int, Sequence, bool]] = field(default_factory=list)
    failed: list[tuple[Sequence, str]] = field(default_factory=list)
    prefill_tokens: int = 0
    running: int = 0
    waiting: int = 0
    logs: list[tuple[list[tuple[Sequence, int]], Tensor]] = field(default_factory=list)
    plans: int = 0
    preempted: int = 0
    rows: dict[int, Sequence] = field(default_factory=dict)
    times: dict[str, float] = field(default_factory=dict)
    record: Tensor | None = None
    ready: torch.cuda.Event | None = None
    values: list[list[int]] = field(default_factory=list)

    def wait(self) -> None:
        """Wait for the step to be done on the device."""
        if self.ready is not None:
            self.ready.synchronize()
        assert self.record is not None
        self.values = self.record.tolist()
        self.record = None

    def row(self, row: int, name: str) -> int:
        return self.values[row][COLUMN[name]]

    def pool(self, name: str) -> int:
        return self.values[-1][COLUMN[name]]

    def as_step_record(self, block_size: int, bytes_per_token: int, now: float) -> StepRecord:
        """For people, once it is known. now: host seconds since the first step."""
        moves, held = self.pool("moves"), self.pool("held_distinct")
        live = [self.row(row, "n_live") for row in self.rows]
        return StepRecord(
            step=self.step,
            time_s=now,
            prefill_tokens=self.prefill_tokens,
            decode_tokens=sum(self.row(row, "ran") for row, _, _ in self.ran) - self.prefill_tokens,  # rows that had stopped ran none
            running=self.running,
            waiting=self.waiting,
            live_tokens=sum(live),
            live_slots=self.pool("live_distinct"),
            blocks_held=held,
            slots_held=held * block_size,
            blocks_ideal=sum(-(-n // block_size) for n in live),
            evicted=self.pool("evicted"),
            plans=self.plans,
            moves=moves,
            bytes_moved=2 * moves * bytes_per_token,
            blocks_freed=self.pool("freed"),
            preempted=self.preempted,
            **{f"{part}_ms": ms for part, ms in self.times.items()},
        )
