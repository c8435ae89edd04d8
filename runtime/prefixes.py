"""When prompts share blocks: what a request may take from the index, enter into it, and when the index gives blocks back."""

from __future__ import annotations

from .sequence import Sequence
from .worker import Worker


class Prefixes:
    """Drives a worker's prefix index; does nothing without one."""

    def __init__(self, worker: Worker) -> None:
        self.worker, self.index, self.config = worker, worker.index, worker.config
        self._gave_at = -self.config.lag

    def match(self, seq: Sequence) -> list[bytes]:
        """The units of its prompt that a request can take over as it starts."""
        return self.index.match(seq.keys[: self._longest_hit(seq)]) if self.index is not None else []

    def enter(self, seq: Sequence) -> None:
        """The index becomes an owner of full blocks of the prompt, before anything of the request is evicted."""
        if self.index is None or seq.evictions or seq.replay_until:
            return
        full = min(seq.cursor, len(seq.prompt)) // self.config.prefix_unit
        if full > seq.entered:
            self.index.enter(seq.held_row, seq.keys[:full])
            seq.entered = full

    def give(self, blocks: int, seq: Sequence, step: int) -> None:
        """Drop entries, its own last, for a request that waits for this many blocks; not again before the effect is known."""
        if self.index is None or not len(self.index) or step - self._gave_at <= self.config.lag:
            return
        self.index.match(seq.keys)
        self.worker.drop_prefixes(-(-blocks // self.index.blocks_per_entry))
        self._gave_at = step

    def give_some(self) -> bool:
        """Drop a quarter of the entries; False if there are none."""
        if self.index is None or not len(self.index):
            return False
        self.worker.drop_prefixes(max(1, len(self.index) // 4))
        return True

    def _longest_hit(self, seq: Sequence) -> int:
        """Units of a prompt that a prefix hit may cover, so that the policy sees and evicts what it would have without the hit."""
        runner, window = self.worker.runner, self.worker.model.death_window
        if seq.replay_until or seq.params.record or (runner is not None and runner.learns):
            return 0
        limit = len(seq.prompt) - 1
        if runner is not None:
            first_asked = len(seq.prompt)
            if self.config.evict.prefill == "chunk":
                first_asked = min(first_asked, (seq.budget // self.config.chunk + 1) * self.config.chunk)
            limit = min(limit, first_asked - max(1, runner.window))
        if window is not None:
            limit = min(limit, window)
        return max(0, limit) // self.config.prefix_unit
