"""The engine: continuous batching over a paged KV cache from which a policy evicts tokens.

The host launches steps and runs ahead of the device by `lag` steps; what it knows of the device it reads from the record of
step n - lag. See `Worker` for the operations and `Scheduler` for who runs.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterable, Iterator
from collections.abc import Sequence as Seq
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from vtoken_sdk.policy import EvictionPolicy

from .audit import check_worker
from .capacity import concurrent_requests, peak_blocks
from .compaction import Compaction
from .config import ConfigError, EngineConfig
from .decoded import Decoded
from .detokenizer import Detokenizer
from .eviction import Evictor
from .intake import as_token_ids, check_types, refuse_bad_request, refuse_other_gpu, refuse_too_big, sampling_of
from .model_adapter import ModelAdapter
from .prefix_index import prefix_keys
from .prefixes import Prefixes
from .reclaimer import ReclaimError
from .records import StepRecord
from .request import MAX_SEED, RequestOutput, RequestRejected, SamplingParams
from .request_book import RequestBook
from .scheduler import Scheduler
from .sequence import Sequence
from .slots import occupancy
from .step_in_flight import StepInFlight
from .worker import Worker

if TYPE_CHECKING:
    from .model_loader import LoadedModel


class Engine:
    """Runs requests of one model under one policy and one runtime.

    `add_request` and then `run` (or `step`, or `generate`). A policy that fails takes down its request, named in the output's
    `error`; the others go on. `outputs` holds every request's output, growing while it runs.
    """

    def __init__(self, model: LoadedModel, config: EngineConfig, policy: EvictionPolicy | None = None) -> None:
        check_types(model, config, policy)
        if policy is not None and config.runtime == "native":
            raise ConfigError("runtime=native evicts nothing: give no policy, or use another runtime")
        self.model, self.config, self.policy = model, config, policy
        self.adapter = ModelAdapter(model.hf)
        refuse_other_gpu(self.adapter.device)
        self.worker = Worker(self.adapter, config, policy)
        self.scheduler = Scheduler(config, evicts=policy is not None)
        self.evictor = Evictor(self.worker)
        self.compaction = Compaction(self.worker, self.scheduler)
        self.prefixes = Prefixes(self.worker)
        self.book = RequestBook(self.worker, self.scheduler, model, policy)
        self.outputs = self.book.outputs
        self.steps = self.concurrency_peak = 0
        self._submitted = 0
        self._torn: BaseException | None = None
        self._in_flight: deque[StepInFlight] = deque()
        self._logs: list[tuple[list[tuple[Sequence, int]], Tensor]] = []  # as StepInFlight has them, for the next one
        self._now_building = StepInFlight(0)
        self._last: StepInFlight | None = None

    def warm_up(self, tokens: int, batch: int | None = None) -> None:
        """Before requests of up to `tokens` tokens, prompt and output together: make room in the table and, on a GPU, capture the graphs of
        all batch sizes up to `batch` (None: `max_running`), which the first step of each size would otherwise wait for.

        Kernels for prompts are compiled when one comes: run one. Raises RuntimeError if requests are there already.
        """
        for key, value in (("tokens", tokens), ("batch", 1 if batch is None else batch)):
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ValueError(f"{key}={value!r}: use a whole number >= 1")
        if self.has_work:
            raise RuntimeError("warm_up is for an engine without requests: call it before add_request")
        most = self.config.max_running
        self.worker.warm_up(tokens, most if batch is None else min(batch, most))

    # -- requests -------------------------------------------------------------------------------------------------------

    def add_request(self, prompt: Seq[int], params: SamplingParams | None = None, *, request_id: str | None = None) -> str:
        """Queue a request; returns its id. Raises RequestRejected if it can never run here; nothing changes then."""
        self._refuse_torn()
        params = sampling_of(params)
        number = self._submitted
        name = request_id if request_id is not None else self._free_name()
        if name in self.outputs:
            raise RequestRejected(f"request_id={name!r}: already taken; choose another")
        prompt = as_token_ids(name, prompt)
        self._refuse(name, prompt, params)
        self._submitted += 1
        output = RequestOutput(name, len(prompt), arrival_s=self.book.now(), text="" if self.model.tokenizer else None)
        seed = params.seed if params.seed is not None else ((self.config.seed << 32) + number) & MAX_SEED
        ends = params.stop_token_ids if params.ignore_eos or params.forced else (*self.model.eos_token_ids, *params.stop_token_ids)
        detokenizer = Detokenizer(self.model.tokenizer, params.stop) if self.model.tokenizer else None
        seq = Sequence(number, prompt, params, output, self.config.budget_of(len(prompt)), seed, tuple(ends), detokenizer)
        seq.keys = prefix_keys(prompt, self.config.prefix_unit) if self.config.prefix_cache else []
        self.book.enter(seq)
        self.scheduler.enqueue(seq)
        return name

    def _refuse(self, name: str, prompt: list[int], params: SamplingParams) -> None:
        refuse_bad_request(name, prompt, params, self.model)
        if self.reads_future and params.future is None:
            raise RequestRejected(
                f"{name}: {type(self.policy).__name__} reads the future, and this request has none; "
                "make its params with vtoken_sdk.runtime.look_ahead"
            )
        peak = peak_blocks(self.config, len(prompt), len(prompt) + params.max_tokens - 1, self.policy is not None)
        refuse_too_big(name, peak, self.config)

    def _free_name(self) -> str:
        return next(name for i in itertools.count(self._submitted) if (name := f"request-{i}") not in self.outputs)

    def abort(self, request_id: str) -> None:
        """End a request now; what it has generated stays in its output. Unknown or finished ids raise KeyError."""
        seq = self.book.unfinished.get(request_id)
        if seq is None:
            raise KeyError(f"no unfinished request {request_id!r}")
        self.book.finish(seq, "abort")

    @property
    def reads_future(self) -> bool:
        """Must each request bring its `future` along?"""
        return self.worker.runner is not None and self.worker.runner.reads_future

    @property
    def has_work(self) -> bool:
        """Is anything queued, running, or launched and not yet known?"""
        return bool(self.book.unfinished or self.scheduler.running or self._in_flight or self._logs)

    def run(self) -> Iterator[StepRecord]:
        """Step until nothing is left to do; yields every step's record."""
        while self.has_work:
            yield from self.step()

    def generate(self, prompts: Iterable[Seq[int]], params: SamplingParams | Seq[SamplingParams] | None = None) -> list[RequestOutput]:
        """Run these requests to their end, with whatever else is queued. Raises RequestRejected before any of them is queued."""
        prompts = list(prompts)
        each = [params] * len(prompts) if params is None or isinstance(params, SamplingParams) else list(params)
        if len(each) != len(prompts):
            raise ValueError(f"params: {len(each)} for {len(prompts)} prompts; give one for all, or one each")
        for i, (prompt, p) in enumerate(zip(prompts, each, strict=True)):  # before any is queued
            name = f"request-{self._submitted + i}"
            self._refuse(name, as_token_ids(name, prompt), sampling_of(p))
        names = [self.add_request(prompt, p) for prompt, p in zip(prompts, each, strict=True)]
        for _ in self.run():
            pass
        return [self.outputs[name] for name in names]

    def admits(self, prompt_tokens: int, max_tokens: int, pool_blocks: int) -> int:
        """Estimate: how many such requests run at once in a pool of this many blocks of `block_size` tokens."""
        return concurrent_requests(self.config, prompt_tokens, max_tokens, pool_blocks, self.policy is not None)

    # -- one step -------------------------------------------------------------------------------------------------------

    def step(self) -> list[StepRecord]:
        """Launch one step. Returns the records of steps that became known: usually that of step n - lag.

        After a step that was torn (memory ran out, Ctrl-C) nobody knows what is where: every later one raises RuntimeError.
        ReclaimError leaves the engine whole.
        """
        self._refuse_torn()
        try:
            return self._step()
        except ReclaimError:
            raise
        except BaseException as error:
            self._torn = error
            raise

    def _refuse_torn(self) -> None:
        if self._torn is not None:
            what = f"{type(self._torn).__name__}: {self._torn}"
            raise RuntimeError(f"step {self.steps} was torn ({what}), and this engine cannot go on; make a new one") from self._torn

    def _step(self) -> list[StepRecord]:
        self.worker.watch.reset()
        flight = self._now_building = StepInFlight(self.steps, times=self.worker.watch.ms)
        while self._in_flight and (self._in_flight[0].step <= self.steps - self.config.lag or not self.scheduler.running):
            self._confirm(self._in_flight.popleft())
        plans = self.compaction.plans
        self.compaction.publish_if_due(self.steps)
        if not self.book.unfinished:
            self.compaction.settle(self.steps)
        self._release()
        if not self.book.unfinished and not self._logs:
            return self.book.take_known()
        decode, prefill = self._schedule()
        if not decode and not prefill:
            self.compaction.settle(self.steps)  # what is in flight may hold the rows that others wait for
        self._launch(decode, prefill)
        self.compaction.plan_if_worth_it(self.steps, self._last)
        flight.plans = self.compaction.plans - plans
        flight.running, flight.waiting = len(self.scheduler.running), len(self.scheduler.waiting)
        flight.rows = {seq.row: seq for seq in self.scheduler.running if seq.row is not None}
        with self.worker.watch.part("table"):
            flight.record, flight.ready = self.worker.send_record()
        flight.logs, self._logs = self._logs, []
        self._in_flight.append(flight)
        self.steps += 1
        return self.book.take_known()

    def _launch(self, decode: list[Sequence], prefill: list[Sequence]) -> None:
        flight, worker = self._now_building, self.worker
        ends = {seq: seq.chunk_end(self.config) for seq in prefill}
        if not decode and not prefill:
            return
        width = worker.width(max([s.cursor + 1 for s in decode] + list(ends.values())))
        again = [seq for seq in prefill if seq.replaying]
        for seq in decode:
            seq.cursor += 1
            seq.decoded += 1
        with self.worker.watch.part("model"):
            made = worker.forward(decode, [(seq, ends[seq]) for seq in prefill], width)
        for seq in prefill:
            flight.prefill_tokens += ends[seq] - seq.cursor
            seq.cursor = ends[seq]
            self.prefixes.enter(seq)
        for seqs, one in made:
            flight.ran += [(seq.held_row, seq, one.logits is not None) for seq in seqs]
            self._keep(seqs, one)
        failed = self.evictor.after_step([part for part in made if part[0][0] not in again], again, width)
        for seq in (s for s in (*decode, *prefill) if s.held_row in failed):
            seq.failed = True
            self.worker.freeze(seq.held_row)
            flight.failed.append((seq, self.book.blame(seq, failed[seq.held_row], flight.step)))

    def _keep(self, seqs: Seq[Sequence], made: Decoded) -> None:
        for i, seq in enumerate(seqs):
            if seq.params.logits and made.logits is not None:
                seq.logits.append(made.logits[i].to(torch.float32, copy=True))
            if seq.params.record and made.mass is not None:
                assert made.key_norms is not None
                seq.recorded.append(
                    (seq.cursor, made.mass[i, : seq.cursor].to("cpu", copy=True), made.key_norms[i].cpu() / self.adapter.layers)
                )

    # -- scheduling -----------------------------------------------------------------------------------------------------

    def _schedule(self) -> tuple[list[Sequence], list[Sequence]]:
        scheduler = self.scheduler
        decode, prefill = scheduler.runnable()
        if scheduler.free_bound < scheduler.growth_bound(decode, prefill):
            decode, prefill = self._make_room()
        elif scheduler.waiting and len(prefill) == len(scheduler.prompts):
            # Else a running one waits for its turn, and none may overtake it.
            while scheduler.waiting and len(scheduler.running) < self.config.max_running:
                seq = scheduler.waiting[0]
                if not scheduler.has_room([*prefill, seq]):
                    break
                left = scheduler.admissible(seq, decode, prefill)
                if left < 0:
                    self.prefixes.give(-left, seq, self.steps)
                    break
                self._admit(seq)
                prefill.append(seq)
        pops = scheduler.growth_bound(decode, prefill)
        scheduler.spend(self.steps, pops)
        return decode, prefill

    def _admit(self, seq: Sequence) -> None:
        worker = self.worker
        if seq.total > worker.table.max_tokens:
            self.compaction.settle(self.steps)  # the table moves
            worker.table.reserve(seq.total)
        hit = self.prefixes.match(seq)
        self.scheduler.start(seq)
        with self.worker.watch.part("table"):
            worker.start(seq, hit)
        if hit:
            seq.cursor = seq.output.prefix_hit_tokens = len(hit) * self.config.prefix_unit
            seq.entered = len(hit)
        self.concurrency_peak = max(self.concurrency_peak, len(self.scheduler.running))

    def _make_room(self) -> tuple[list[Sequence], list[Sequence]]:
        """The bound does not cover this step: find out exactly, then take back prefixes, compact, preempt, in this order."""
        scheduler, worker = self.scheduler, self.worker
        self._drain()
        while True:
            decode, prefill = scheduler.runnable()
            chunks = [(s, s.chunk_end(self.config) - s.cursor) for s in prefill]
            if worker.exact_growth(decode, chunks) <= worker.pool.n_free():
                scheduler.confirm_exactly(worker.pool.n_free())
                return decode, prefill
            if self.prefixes.give_some() or self.compaction.reclaim_now(self.steps):
                continue
            if len(scheduler.running) > 1:
                self._preempt(scheduler.running[-1])
            else:
                self.book.finish(scheduler.running[-1], "capacity")
                self._release()

    def _drain(self) -> None:
        """Wait for every launched step, publish what is in flight, release what ended."""
        while self._in_flight:
            self._confirm(self._in_flight.popleft())
        self.compaction.settle(self.steps)
        self._release()

    def _preempt(self, seq: Sequence) -> None:
        """Take a request's blocks away; it comes back and recomputes them under its own eviction log."""
        seq.saved, seq.replay_until = self.worker.save(seq), max(seq.cursor, seq.replay_until)
        seq.cursor, seq.entered = 0, 0
        seq.output.preemptions += 1
        self._now_building.preempted += 1
        self.worker.release([seq.held_row])
        self.scheduler.stop(seq)
        self.scheduler.enqueue(seq)

    def _confirm(self, flight: StepInFlight) -> None:
        """Wait for a step's record and read it."""
        flight.wait()
        self._last = flight
        self.scheduler.confirm(flight)
        self.compaction.confirm(flight)
        self.book.confirm(flight)

    def _release(self) -> None:
        """Give back the rows of requests that ended, or whose last step is launched; not while a plan moves their tokens."""
        busy = self.compaction.busy_rows
        gone = [s for s in self.scheduler.running if (s.finished or s.launched_all) and s.held_row not in busy]
        if not gone:
            return
        with self.worker.watch.part("table"):
            self._logs.append(([(seq, seq.cursor) for seq in gone], self.worker.eviction_logs(gone)))
            self.worker.release([seq.held_row for seq in gone])
        for seq in gone:
            self.scheduler.stop(seq)

    # -- books ----------------------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Audit table and pool against each other. Raises AssertionError that names the blocks and requests that disagree."""
        names = {seq.row: seq.id for seq in self.scheduler.running if seq.row is not None}
        check_worker(self.worker, names)

    def occupancy(self) -> list[int]:
        """How many held blocks have 0, 1, ... block size live tokens after the last launched step. Waits for the device."""
        return occupancy(self.worker.table).tolist()
