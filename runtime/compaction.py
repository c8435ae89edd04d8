"""When to reclaim: the host's side of it. Decides from the last known record whether a plan can gain a block."""

from __future__ import annotations

from .scheduler import Scheduler
from .sequence import Sequence
from .step_in_flight import StepInFlight
from .worker import Worker


class Compaction:
    """Drives a worker's reclaimer; does nothing under runtimes without one. plans: begun so far."""

    def __init__(self, worker: Worker, scheduler: Scheduler) -> None:
        self.worker, self.scheduler, self.config = worker, scheduler, worker.config
        self.plans = 0
        self._published_at = -1
        self._planned: list[tuple[Sequence, int]] = []  # requests of the last plan, and their evictions by then

    @property
    def busy_rows(self) -> frozenset[int]:
        """Rows with tokens on the move: they are not released before the plan is published."""
        return self.worker.reclaimer.rows if self.worker.reclaimer is not None else frozenset()

    def publish_if_due(self, step: int) -> None:
        if self.worker.reclaimer is not None and self.worker.reclaimer.due(step):
            self._publish(step)

    def settle(self, step: int) -> None:
        """Publish what is in flight, now."""
        if self.worker.reclaimer is not None and not self.worker.reclaimer.idle:
            self._publish(step)

    def confirm(self, flight: StepInFlight) -> None:
        """A plan that moved nothing would move nothing again, until more tokens die. (`fresh` may have lacked free blocks.)"""
        if flight.step == self._published_at and not flight.pool("moves") and self.config.reclaim.packing == "fill":
            for seq, evictions in self._planned:
                seq.fruitless = evictions

    def plan_if_worth_it(self, step: int, last: StepInFlight | None) -> None:
        """Start a plan if the last known state says that a block can be had."""
        reclaimer = self.worker.reclaimer
        if reclaimer is None or reclaimer.broken or not reclaimer.idle or last is None or last.step < self._published_at:
            return
        size, slack = self.worker.table.block_size, self.config.reclaim.slack
        seqs = [
            seq
            for seq in self.scheduler.running
            if seq.row is not None and seq.evictions > seq.fruitless and not seq.finished and last.rows.get(seq.row) is seq
            # With refill, the prompt's next chunk takes the dead slots without a copy.
            if not (self.config.refill and seq.prefilling) and last.row(seq.row, "held") > -(-(last.row(seq.row, "n_live") + slack) // size)
        ]
        if not seqs:
            return
        if self.config.reclaim.packing == "fresh":
            # Every row rounds up once, and gives back more than it takes.
            self.scheduler.spend(step, (self.config.reclaim.move_cap + len(seqs) * slack) // size + len(seqs))
        self._plan(seqs, step)

    def reclaim_now(self, step: int) -> bool:
        """Compact at once, for use when drained: True if blocks became free."""
        reclaimer = self.worker.reclaimer
        seqs = [s for s in self.scheduler.running if s.evictions and s.row is not None]
        if reclaimer is None or reclaimer.broken or not seqs:
            return False
        before = self.worker.pool.n_free()
        self._plan(seqs, step)
        self._publish(step)
        return self.worker.pool.n_free() > before

    def _plan(self, seqs: list[Sequence], step: int) -> None:
        reclaimer, watch = self.worker.reclaimer, self.worker.watch
        assert reclaimer is not None
        with watch.part("plan"):
            reclaimer.plan([seq.held_row for seq in seqs], step)
        with watch.part("copy"):
            reclaimer.launch()
        self.plans += 1
        self._planned = [(seq, seq.evictions) for seq in seqs]
        self.worker.main_operation()

    def _publish(self, step: int) -> None:
        reclaimer, watch = self.worker.reclaimer, self.worker.watch
        assert reclaimer is not None
        with watch.part("copy"):
            reclaimer.wait()
        with watch.part("plan"):
            self.worker.publish()
        self._published_at = step
