"""Who runs: queues, rows, and a lower bound on the free blocks. Host state only; it never looks at the device."""

from __future__ import annotations

import bisect
import heapq

from .capacity import peak_blocks
from .config import EngineConfig
from .sequence import Sequence
from .step_in_flight import StepInFlight


class Scheduler:
    """First come, first served. A request that was preempted keeps its place.

    free_bound: free blocks of the last confirmed step, less what later steps may have taken. It depends on record n - lag alone,
    never on what has arrived early, so that a run repeats exactly.
    """

    def __init__(self, config: EngineConfig, *, evicts: bool) -> None:
        self.config, self.evicts = config, evicts
        self.waiting: list[Sequence] = []
        self.running: list[Sequence] = []
        self._rows = list(range(config.max_running))
        self._confirmed = config.n_blocks
        self._unconfirmed: dict[int, int] = {}

    # -- the bound on free blocks ---------------------------------------------------------------------------------------

    @property
    def free_bound(self) -> int:
        return self._confirmed - sum(self._unconfirmed.values())

    def confirm(self, step: StepInFlight) -> None:
        self._confirmed = step.pool("free")
        self._unconfirmed = {n: pops for n, pops in self._unconfirmed.items() if n > step.step}

    def confirm_exactly(self, free: int) -> None:
        """All launched steps are done and `free` blocks are free."""
        self._confirmed, self._unconfirmed = free, {}

    def spend(self, step: int, pops: int) -> None:
        self._unconfirmed[step] = self._unconfirmed.get(step, 0) + pops

    # -- queues ---------------------------------------------------------------------------------------------------------

    def enqueue(self, seq: Sequence) -> None:
        bisect.insort(self.waiting, seq, key=lambda s: s.number)

    def start(self, seq: Sequence) -> None:
        self.waiting.remove(seq)
        seq.row = heapq.heappop(self._rows)
        bisect.insort(self.running, seq, key=lambda s: s.number)

    def stop(self, seq: Sequence) -> None:
        heapq.heappush(self._rows, seq.held_row)
        self.running.remove(seq)
        seq.row = None

    def runnable(self) -> tuple[list[Sequence], list[Sequence]]:
        """Requests that decode in this step, and those that prefill a chunk."""
        decode: list[Sequence] = []
        prefill: list[Sequence] = []
        for seq in self._going_on:
            (prefill if seq.prefilling else decode).append(seq)
        while not self.has_room(prefill):
            prefill.pop()
        return decode, prefill

    @property
    def _going_on(self) -> list[Sequence]:
        return [s for s in self.running if not (s.finished or s.failed or s.launched_all)]

    @property
    def prompts(self) -> list[Sequence]:
        """Running requests whose prompt is not read yet."""
        return [s for s in self._going_on if s.prefilling]

    def has_room(self, prefill: list[Sequence]) -> bool:
        """May the next chunks of these requests run in one step? One alone always may."""
        return len(prefill) < 2 or sum(s.chunk_end(self.config) - s.cursor for s in prefill) <= self.config.step_tokens

    # -- blocks ---------------------------------------------------------------------------------------------------------

    def growth_bound(self, decode: list[Sequence], prefill: list[Sequence]) -> int:
        """The most blocks that this step's appends can take."""
        size = self.config.slots_per_block
        return len(decode) + sum(-(-(s.chunk_end(self.config) - s.cursor) // size) for s in prefill)

    def peak(self, seq: Sequence) -> int:
        """Blocks that a request needs to get started, or to get back to where it was preempted."""
        first = peak_blocks(self.config, len(seq.prompt), seq.total, self.evicts)
        return first if seq.saved is None else min(max(first, seq.saved.blocks + 1), self.config.n_blocks)

    def admissible(self, seq: Sequence, decode: list[Sequence], prefill: list[Sequence]) -> int:
        """Blocks left over if the request were admitted now: negative if it must wait."""
        left = self.free_bound - len(decode) - sum(self.peak(s) for s in prefill) - self.peak(seq)
        # A preempted request comes back only when the others have room to grow, lest it be thrown out again at once.
        return left - len(self.running) if seq.saved is not None else left
