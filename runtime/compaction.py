"""When to reclaim: the host's side of it. Decides from the last known record whether a plan can gain a block."""

from __future__ import annotations

from .record_ring import StepInFlight
from .scheduler import Scheduler
from .worker import Worker


class Compaction:
    """Drives a worker's reclaimer; does nothing under runtimes without one. plans: begun so far."""

    def __init__(self, worker: Worker, scheduler: Scheduler) -> None:
        self.worker, self.scheduler, self.config = worker, scheduler, worker.config
        self.plans = 0
        self._published_at = -1

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

    def plan_if_worth_it(self, step: int, last: StepInFlight | None) -> None:
        """Start a plan if the last known state says that a block can be had."""
        reclaimer = self.worker.reclaimer
        if reclaimer is None or reclaimer.broken or not reclaimer.idle or last is None or last.step < self._published_at:
            return
        size, slack = self.worker.table.block_size, self.config.reclaim.slack
        rows = [
            seq.row
            for seq in self.scheduler.running
            if seq.row is not None and seq.evicted and not seq.finished and last.rows.get(seq.row) is seq
            # With refill, the prompt's next chunk takes the dead slots without a copy.
            if not (self.config.refill and seq.prefilling) and last.row(seq.row, "held") > -(-(last.row(seq.row, "n_live") + slack) // size)
        ]
        if not rows:
            return
        if self.config.reclaim.packing == "fresh":
            held = sum(last.row(row, "held") for row in rows)
            self.scheduler.spend(step, min(-(-self.config.reclaim.move_cap // size) + len(rows), held))
        self._plan(rows, step)

    def reclaim_now(self, step: int) -> bool:
        """Compact at once, for use when drained: True if blocks became free."""
        reclaimer = self.worker.reclaimer
        rows = [s.row for s in self.scheduler.running if s.evicted and s.row is not None]
        if reclaimer is None or reclaimer.broken or not rows:
            return False
        before = self.worker.pool.n_free()
        self._plan(rows, step)
        self._publish(step)
        return self.worker.pool.n_free() > before

    def _plan(self, rows: list[int], step: int) -> None:
        reclaimer, watch = self.worker.reclaimer, self.worker.watch
        assert reclaimer is not None
        with watch.part("plan"):
            reclaimer.plan(rows, step)
        with watch.part("copy"):
            reclaimer.launch()
        self.plans += 1
        self.worker.main_operation()

    def _publish(self, step: int) -> None:
        reclaimer, watch = self.worker.reclaimer, self.worker.watch
        assert reclaimer is not None
        with watch.part("copy"):
            reclaimer.wait()
        with watch.part("plan"):
            self.worker.publish()
        self._published_at = step
