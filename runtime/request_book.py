"""What the host knows of every request: its output, which grows as records of steps arrive, and how it ends."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

import torch

from vtoken_sdk.policy import EvictionPolicy, PolicyError

from .eviction import eviction_log, known_part
from .recording import Recording
from .records import StepRecord
from .request import FinishReason, RequestOutput
from .scheduler import Scheduler
from .sequence import Sequence
from .step_in_flight import StepInFlight
from .worker import Worker

if TYPE_CHECKING:
    from .model_loader import LoadedModel

LOG = logging.getLogger(__name__)


class RequestBook:
    """outputs: of every request ever entered. unfinished: by id, those whose end is not known yet."""

    def __init__(self, worker: Worker, scheduler: Scheduler, model: LoadedModel, policy: EvictionPolicy | None) -> None:
        self.worker, self.scheduler, self.model, self.policy = worker, scheduler, model, policy
        self.outputs: dict[str, RequestOutput] = {}
        self.unfinished: dict[str, Sequence] = {}
        self._known: list[StepRecord] = []
        self._began: float | None = None

    def enter(self, seq: Sequence) -> None:
        self.outputs[seq.id], self.unfinished[seq.id] = seq.output, seq

    def take_known(self) -> list[StepRecord]:
        """Records of steps that became known since the last call."""
        known, self._known = self._known, []
        return known

    def now(self) -> float:
        """Seconds since the first request or step."""
        if self._began is None:
            self._began = time.perf_counter()
        return time.perf_counter() - self._began

    def confirm(self, flight: StepInFlight) -> None:
        """Read a step's record, which has arrived: tokens, ends, errors."""
        now = self.now()
        for row, seq, samples in flight.ran:
            if seq.finished:
                continue
            layer = flight.row(row, "bad_layer")
            if layer >= 0:  # before the policy is blamed: attention that is not finite spoils its scores too
                where = f"layer {layer}" if layer < self.worker.model.layers else "the output head"
                self.finish(
                    seq, "error", f"request {seq.id}, step {flight.step}: {where} gave numbers that are not finite ({self.model.dtype})"
                )
                continue
            if samples and flight.row(row, "ran"):
                self._append_token(seq, flight.row(row, "token"), stopped=bool(flight.row(row, "stopped")), now=now)
            if flight.row(row, "bad_answer") and not seq.finished:  # the step's token came before the policy was asked
                error = PolicyError("evict_lowest was given a NaN score for a live token")
                self.finish(seq, "error", self.blame(seq, error, flight.step))
        for seq, message in flight.failed:
            if not seq.finished:
                self.finish(seq, "error", message)
        for released, died_at in flight.logs:
            for (seq, cursor), log in zip(released, died_at, strict=True):
                seq.output.evictions = eviction_log(log, self._stored(seq.output) if seq.finished else cursor)
        self._known.append(flight.as_step_record(self.worker.table.block_size, self.worker.cache.bytes_per_token, now))

    def _append_token(self, seq: Sequence, token: int, *, stopped: bool, now: float) -> None:
        output = seq.output
        output.token_ids.append(token)
        output.token_times_s.append(now)
        if seq.detokenizer is not None:
            stopped |= seq.detokenizer.append(token)
            output.text = seq.detokenizer.text
        if stopped:
            self.finish(seq, "stop")
        elif len(output.token_ids) >= seq.params.max_tokens:
            self.finish(seq, "length")

    def finish(self, seq: Sequence, reason: FinishReason, error: str | None = None) -> None:
        output = seq.output
        seq.finished = True
        output.finish_reason, output.error = reason, error
        output.evictions = known_part(output.evictions, self._stored(output))  # empty, if it has not given its row back
        if seq.params.logits:
            output.logits = torch.stack(seq.logits[: len(output.token_ids)]) if output.token_ids else None
        if seq.params.record:  # steps launched after an end token ran nothing
            kept = [step for step in seq.recorded if step[0] <= self._stored(output)]
            lengths, attention, norms = zip(*kept, strict=True) if kept else ((), (), ())
            output.recording = Recording.from_steps(lengths, attention, norms)
        if seq.detokenizer is not None:
            output.text = seq.detokenizer.finish()
        del self.unfinished[seq.id]
        if seq.row is None:
            if seq in self.scheduler.waiting:
                self.scheduler.waiting.remove(seq)
                if seq.saved is not None:
                    output.evictions = eviction_log(seq.saved.died_at.cpu(), self._stored(output))
        else:
            self.worker.freeze(seq.row)

    def blame(self, seq: Sequence, error: PolicyError, step: int) -> str:
        """What the request's output will say."""
        named = PolicyError(str(error), policy=type(self.policy).__name__, request=seq.id, step=step)
        if error.__cause__ is not None:
            LOG.error("%s", named, exc_info=error.__cause__)
        return str(named)

    @staticmethod
    def _stored(output: RequestOutput) -> int:
        """Tokens whose keys and values the known tokens of a request came from; later steps may have run before it ended."""
        return output.prompt_tokens + max(0, len(output.token_ids) - 1)
