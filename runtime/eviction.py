"""What follows a step's attention: the policy learns, is asked where it is due, and tokens die. From the next step on, everywhere."""

from __future__ import annotations

from collections.abc import Sequence as Seq

from torch import Tensor

from vtoken_sdk.policy import PolicyError

from .decoded import Decoded
from .request import Eviction
from .sequence import Sequence
from .worker import Worker


class Evictor:
    """When and for whom the policy of a worker is called."""

    def __init__(self, worker: Worker) -> None:
        self.worker, self.config = worker, worker.config
        self.window = worker.model.death_window

    def after_step(self, made: Seq[tuple[Seq[Sequence], Decoded]], replaying: Seq[Sequence], width: int) -> dict[int, PolicyError]:
        """made: requests that ran new tokens, with what they gave; replaying: those that ran again what a preemption had dropped.

        Returns the rows whose policy failed.
        """
        worker, watch = self.worker, self.worker.watch
        ran = [seq for seqs, _ in made for seq in seqs]
        new = [part for part in made if not part[1].learned]
        if far := [s for s in ran if self._leaves_window(s)]:
            with watch.part("table"):
                worker.evict_out_of_window(far, width)
            _count(far)
        for seq in replaying:
            with watch.part("table"):
                worker.apply_logged_deaths(seq)
        _count(replaying)
        if worker.runner is None or not ran:
            return {}
        failed: dict[int, PolicyError] = {}
        if worker.runner.learns and new:
            with watch.part("policy"):
                failed = worker.sync_new_tokens(new, width)
        if due := [s for s in ran if s.row not in failed and self._due(s)]:
            if worker.graphs is not None and worker.graphs.captured:
                with watch.part("policy"):
                    worker.graphs.evict(tuple(seq.held_row for seq in due))
                worker.main_operation()
            else:
                with watch.part("policy"):
                    kill, refused = worker.ask_policy(due, width)
                with watch.part("table"):
                    worker.evict_token(due, kill)
                failed |= refused
            _count(due)
        return failed

    def _leaves_window(self, seq: Sequence) -> bool:
        """Is this the time for tokens out of every sliding window to die? Once a block of tokens, and before a policy is asked.

        A function of the cursor alone, and not of the pool's block size, so that the log is the same under every runtime.
        """
        size = self.config.block_size
        if self.window is None or seq.cursor <= self.window:
            return False
        generated = seq.cursor - len(seq.prompt)
        before = seq.cursor - 1 if generated > 0 else (seq.cursor - 1) // self.config.chunk * self.config.chunk
        return before // size < seq.cursor // size or self._due(seq)

    def _due(self, seq: Sequence) -> bool:
        """Is this the time to evict from the request? (Whether it is over its budget, the device decides.)"""
        when, generated = self.config.evict, seq.cursor - len(seq.prompt)
        if seq.budget >= seq.cursor or seq.launched_all:
            return False
        if generated < 0:
            return when.prefill == "chunk"
        return when.prefill != "never" if generated == 0 else bool(when.every) and generated % when.every == 0


def _count(seqs: Seq[Sequence]) -> None:
    for seq in seqs:
        seq.evictions += 1


def eviction_log(died_at: Tensor, length: int) -> list[Eviction]:
    """int32 [tokens] on the host, the length at which each died -> the eviction log up to this length, ascending."""
    ids = (died_at[:length] <= length).nonzero().flatten()
    log: dict[int, list[int]] = {}
    for token, length in zip(ids.tolist(), died_at[ids].tolist(), strict=True):
        log.setdefault(length, []).append(token)
    return [Eviction(length, tuple(tokens)) for length, tokens in sorted(log.items())]


def known_part(log: Seq[Eviction], length: int) -> list[Eviction]:
    """The log without what was evicted after this length."""
    return [Eviction(e.length, tuple(token for token in e.ids if token < length)) for e in log if e.length <= length]
