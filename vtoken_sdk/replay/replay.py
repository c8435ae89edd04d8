"""Runs a policy over a recording: the real Token Table, planner and block pool, no model, no keys and values."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from vtoken_sdk.policy import EvictionPolicy, LiveKV, PolicyError
from vtoken_sdk.runtime import EngineConfig
from vtoken_sdk.runtime.block_pool import BlockPool
from vtoken_sdk.runtime.eviction import eviction_log
from vtoken_sdk.runtime.planner import Plan, plan, spare_blocks
from vtoken_sdk.runtime.policy_runner import PolicyRunner
from vtoken_sdk.runtime.token_table import TokenTable, round_up
from vtoken_sdk.runtime.transfer import Sender

from .file import RecordedRun
from .keys import RecordedKV


@dataclass(frozen=True)
class ReplayResult:
    """Open-loop figures of one policy under one runtime.

    attention_kept: of the recorded attention of steps that ran with dead tokens, the share that fell on live ones; None without such.
    live_tokens, blocks_held, blocks_ideal: means over the steps, summed over requests; blocks_held_peak: the most. waste: share of the
    held slots without a live token. evictions: tokens killed; moves: tokens that the reclaimer moved. seconds: of the replay.
    victims: for each request its eviction log, (length, ids).
    """

    attention_kept: float | None
    live_tokens: float
    blocks_held: float
    blocks_held_peak: int
    blocks_ideal: float
    waste: float
    evictions: int
    moves: int
    blocks_freed: int
    steps: int
    seconds: float
    victims: tuple[tuple[tuple[int, tuple[int, ...]], ...], ...]

    def as_row(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if name != "victims"}


class ReplayRunner(PolicyRunner):
    """A policy runner whose keys are recorded norms."""

    def __init__(self, policy: EvictionPolicy, table: TokenTable, norms: Tensor) -> None:
        if "queries" in policy.needs:
            raise PolicyError(
                "it reads queries, which are not in a recording; run it with a model: vtoken-sweep", policy=type(policy).__name__
            )
        nothing: Any = None  # neither a model nor a cache: nothing here asks for them
        super().__init__(policy, nothing, nothing, table, Sender(table.device))
        self.norms = norms  # fp32 [R, T]

    def _score_row(self, row: int, n: int, length: int, fn: Callable[[LiveKV], Tensor], width: int) -> Tensor:
        ids = self.table.tokens_at(row, self.table.map[row, :n]).long()
        kv: Any = RecordedKV(self.norms[row, ids][None], ids[None])
        answer = fn(kv)
        if not isinstance(answer, Tensor) or answer.shape != (1, n):
            got = list(answer.shape) if isinstance(answer, Tensor) else type(answer).__name__
            raise PolicyError(f"cache.score's function returned {got}; it must return [H, N] = {[1, n]}")
        return torch.zeros(1, width).index_copy_(1, ids, answer.float())


class Replay:
    """One policy over all requests of a recording, side by side: step s of the replay is step s of each request."""

    def __init__(self, run: RecordedRun, policy: EvictionPolicy, config: EngineConfig) -> None:
        self.run, self.config = run, config
        self.recordings = run.requests
        rows, size = len(run.requests), config.slots_per_block
        longest = max(len(r.key_norms) for r in run.requests)
        spare = spare_blocks(config.reclaim, size) if config.compacts else 0
        blocks = rows * (-(-longest // size) + 2 + min(spare, -(-longest // size)))
        self.pool = BlockPool(blocks, torch.device("cpu"))
        self.table = TokenTable(self.pool, rows, size, refill=config.refill, spare_blocks=spare)
        self.table.reserve(longest)
        self.norms = torch.zeros(rows, self.table.max_tokens)
        for row, recording in enumerate(run.requests):
            self.norms[row, : len(recording.key_norms)] = recording.key_norms
        self.runner = ReplayRunner(policy, self.table, self.norms)
        for row, (recording, prompt) in enumerate(zip(run.requests, run.prompt_tokens, strict=True)):
            seed = ((config.seed << 32) + row) & (2**63 - 1)
            self.runner.start(row, config.budget_of(prompt), seed, None, recording if self.runner.reads_future else None)
        self.lengths = [recording.lengths.tolist() for recording in run.requests]
        self._plan: Plan | None = None
        self._due = 0
        self._stale = False  # has anything died since the last plan, or did that plan move anything?
        self._logs: list[tuple[tuple[int, tuple[int, ...]], ...]] = [()] * rows
        self.evictions = self.moves = self.freed = 0
        self.kept = self.seen = 0.0
        self.held: list[int] = []
        self.live: list[int] = []
        self.ideal: list[int] = []

    def __call__(self) -> ReplayResult:
        """Raises PolicyError, with the request's number, if the policy fails."""
        began = time.perf_counter()
        steps = max(map(len, self.lengths))
        for step in range(steps):
            self._step(step)
        self._end([row for row, lengths in enumerate(self.lengths) if len(lengths) == steps])
        size, held = self.config.slots_per_block, sum(self.held)
        return ReplayResult(
            attention_kept=self.kept / self.seen if self.seen else None,
            live_tokens=sum(self.live) / len(self.live),
            blocks_held=held / len(self.held),
            blocks_held_peak=max(self.held),
            blocks_ideal=sum(self.ideal) / len(self.ideal),
            waste=1 - sum(self.live) / (held * size),
            evictions=self.evictions,
            moves=self.moves,
            blocks_freed=self.freed,
            steps=len(self.held),
            seconds=time.perf_counter() - began,
            victims=tuple(self._logs),
        )

    # -- one step -------------------------------------------------------------------------------------------------------

    def _step(self, step: int) -> None:
        table = self.table
        if self._plan is not None and step >= self._due:
            self._publish()
        running = [row for row, lengths in enumerate(self.lengths) if step < len(lengths)]
        ended = [row for row, lengths in enumerate(self.lengths) if step == len(lengths)]
        if ended:
            self._end(ended)
        rows = torch.tensor(running)
        before = table.length[rows].tolist()
        after = [self.lengths[row][step] for row in running]
        counts = torch.tensor(after) - torch.tensor(before)
        table.append(rows, counts, int(counts.max()))
        width = min(round_up(max(after), 64), table.max_tokens)
        attention = self._attention(running, step, width, counts)
        if self.runner.learns:
            self._raise(self.runner.sync(running, counts, attention if self.runner.reads_attention else None, width))
        due = [row for row, length in zip(running, after, strict=True) if self._is_due(row, step, length)]
        if due:
            self._evict(due, width)
        if self.config.compacts and self._plan is None and self._stale:
            self._plan, self._due = plan(table, rows, self.config.reclaim), step + self.config.reclaim.publish_after
            self._stale = False
        live = table.n_live[rows]
        self.held.append(self.pool.n_blocks - self.pool.n_free())
        self.live.append(int(live.sum()))
        self.ideal.append(int((-(-live // table.block_size)).sum()))

    def _attention(self, running: Sequence[int], step: int, width: int, counts: Tensor) -> Tensor:
        """fp32 [B, width]: the recorded attention of the live tokens, scaled to sum to the number of queries."""
        made = torch.zeros(len(running), width)
        for out, row in zip(made, running, strict=True):
            recorded = self.recordings[row].attention[step, :width]
            out[: len(recorded)] = recorded
        live = self.table.slot[torch.tensor(running), :width] >= 0
        total = made.sum(1)
        made.masked_fill_(~live, 0)
        left = made.sum(1)
        thinned = ~(live | (torch.arange(width) >= self.table.length[torch.tensor(running), None])).all(1)
        self.kept += float(left[thinned].sum())
        self.seen += float(total[thinned].sum())
        return made * (counts / left.clamp(min=torch.finfo(torch.float32).tiny))[:, None]

    def _is_due(self, row: int, step: int, length: int) -> bool:
        """As in an engine; the last step of a request evicts nothing."""
        when, prompt = self.config.evict, self.run.prompt_tokens[row]
        generated = length - prompt
        if self.config.budget_of(prompt) >= length or step == len(self.lengths[row]) - 1:
            return False
        if generated < 0:
            return when.prefill == "chunk"
        return when.prefill != "never" if generated == 0 else bool(when.every) and generated % when.every == 0

    def _evict(self, due: list[int], width: int) -> None:
        kill, failed = self.runner.evict(due, width)
        self._raise(failed)
        rows = torch.tensor(due)
        bad = [row for row in due if self.runner.bad[row]]
        self._raise({row: PolicyError("evict_lowest was given a NaN score for a live token") for row in bad})
        over = self.table.n_live[rows] > self.runner.budget[rows]
        evicted, freed = self.table.evict_token(rows, kill & over[:, None])
        self.evictions, self.freed = self.evictions + int(evicted), self.freed + int(freed)
        self._stale = True

    def _publish(self) -> None:
        made, self._plan = self._plan, None
        assert made is not None
        moves, freed = self.table.apply_moves(made.rows, made.source, made.target, made.token, made.count)
        self.moves, self.freed = self.moves + int(moves), self.freed + int(freed)
        self._stale |= bool(moves)

    def _end(self, rows: list[int]) -> None:
        """These requests ended. What is in flight may hold their tokens, so it is published first."""
        if self._plan is not None:
            self._publish()
        for row in rows:
            log = eviction_log(self.table.died_at[row], self.lengths[row][-1])
            self._logs[row] = tuple((e.length, e.ids) for e in log)
        self.freed += int(self.table.release(torch.tensor(rows)))

    def _raise(self, failed: dict[int, PolicyError]) -> None:
        for row, error in failed.items():
            raise PolicyError(str(error), policy=self.runner.name, request=f"request-{row}") from error
