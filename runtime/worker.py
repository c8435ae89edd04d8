"""Everything of an engine that lives on the KV device, and the operations that a step launches on its main stream."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import replace

import torch
from torch import Tensor

from vtoken_sdk.policy import EvictionPolicy, PolicyError

from .block_pool import BlockPool
from .config import ConfigError, EngineConfig
from .copy_stream import make_copy_stream
from .decoded import Decoded, joined
from .graphs import bucket
from .kernels import use_kernels
from .kv_cache import KVCache
from .model_adapter import ModelAdapter
from .planner import spare_blocks
from .policy_runner import PolicyRunner
from .prefix_index import PrefixIndex
from .reclaimer import Reclaimer, ReclaimError
from .sampler import sample
from .sequence import Saved, Sequence
from .slots import live_slots, poison_dead_slots
from .step_books import ROW_FIELDS, StepBooks
from .step_context import Part, PlainStep, StepContext
from .stopwatch import Stopwatch
from .token_table import PAD, TokenTable, round_up
from .transfer import Ring, Sender, to_device, to_host
from .worker_graphs import WorkerGraphs, sizes_up_to


class Worker:
    """Device state of R rows: the table and pool, keys and values, what each row samples next, and this step's books.

    alive: bool [R + 1], false once a row has stopped; the host learns of it later. last_token: int64 [R + 1].
    """

    def __init__(self, model: ModelAdapter, config: EngineConfig, policy: EvictionPolicy | None) -> None:
        self.model, self.config = model, config
        device, size = model.device, config.slots_per_block
        self.kernels = use_kernels(config.kernels, device)
        self.pool = BlockPool(config.n_blocks, device, kernels=self.kernels)
        spare = spare_blocks(config.reclaim, size) if config.compacts else 0
        self.table = TokenTable(self.pool, config.max_running, size, refill=config.refill, spare_blocks=spare)
        slots = config.n_blocks * size
        self.cache = KVCache(model.layers, slots, size, model.kv_heads, model.head_dim, model.dtype, device, kernels=self.kernels)
        self.send = Sender(device)
        self.runner = PolicyRunner(policy, model, self.cache, self.table, self.send) if policy is not None else None
        self.index = PrefixIndex(self.table, config.prefix_unit) if config.prefix_cache else None
        graphs = self.kernels and config.cuda_graphs and device.type == "cuda"
        copies = make_copy_stream(self.cache, config.reclaim.stream)
        self.reclaimer = Reclaimer(self.table, copies, config.reclaim, capture=graphs) if config.compacts else None
        self.alive = torch.zeros(config.max_running + 1, dtype=torch.bool, device=device)
        self.last_token = torch.zeros(config.max_running + 1, dtype=torch.int64, device=device)
        self.books = StepBooks(self.table)
        self.ring = Ring(config.lag + 1, (config.max_running + 1, len(ROW_FIELDS)), device)
        self.watch = Stopwatch()
        if self.kernels:
            model.fuse()
        if config.capture_policy and policy is None:
            raise ConfigError("capture_policy=True: there is no policy whose calls could be captured; leave it off")
        if config.capture_policy and not graphs:
            raise ConfigError(
                "capture_policy=True: only CUDA graphs hold a policy's calls; use a GPU with cuda_graphs=True, or leave it off"
            )
        self.graphs = WorkerGraphs(self) if graphs else None

    def _rows(self, seqs: Seq[Sequence]) -> Tensor:
        """int64 [B]."""
        return self.send(tuple(seq.held_row for seq in seqs))

    def _padded(self, seqs: Seq[Sequence]) -> Tensor:
        """As `_rows`; for kernels with trash rows to a batch size as graphs have them, since some are compiled for each size."""
        rows = [seq.held_row for seq in seqs]
        return self.send(tuple(rows + [self.table.rows] * (bucket(len(rows)) - len(rows) if self.kernels else 0)))

    def main_operation(self) -> None:
        """Another main-stream operation is launched: a deferred copy may now go on."""
        if self.reclaimer is not None:
            self.reclaimer.tick()
        if self.config.poison:
            poison_dead_slots(self.table, self.cache, self.index)

    def warm_up(self, tokens: int, batch: int) -> None:
        """Room for rows of so many tokens, and the graphs of up to so many rows. For an engine that holds nothing."""
        self.table.reserve(tokens)
        if self.graphs is not None:
            self.graphs.prepare(batch)
            if self.reclaimer is not None:
                self.reclaimer.prepare(sizes_up_to(batch))

    # -- rows -----------------------------------------------------------------------------------------------------------

    def start(self, seq: Sequence, prefix: Seq[bytes]) -> None:
        """Give a request its row, with the blocks of a prefix hit, or with what it took along when it was preempted."""
        row, saved = seq.held_row, seq.saved
        self.alive[row].fill_(True)  # a number assigned would be copied from the host, which waits for it
        if self.runner is not None:
            self.runner.start(row, seq.budget, seq.seed, saved.state if saved else None, seq.params.future)
        if saved is not None:
            self.table.died_at[row, : len(saved.died_at)] = saved.died_at
            self.last_token[row].fill_(seq.output.token_ids[-1] if seq.output.token_ids else 0)
        if prefix:
            assert self.index is not None
            self.index.adopt(row, prefix)

    def save(self, seq: Sequence) -> Saved:
        """What the request needs to come back. Reads the device: for use when drained."""
        row, tokens = seq.held_row, max(seq.cursor, seq.replay_until)  # it may be replaying already
        blocks = int((self.table.blocks[row] != self.pool.trash).sum())
        state = self.runner.save(row, tokens) if self.runner is not None else {}
        return Saved(self.table.died_at[row, :tokens].clone(), state, max(blocks, seq.saved.blocks if seq.saved else 0))

    def eviction_logs(self, seqs: Seq[Sequence]) -> Tensor:
        """int32 [B, tokens] on the host, once the step is known: the length at which each token died, NEVER for the living."""
        longest = max(seq.cursor for seq in seqs)
        return to_host(self.table.died_at[self._rows(seqs), :longest])

    def release(self, rows: Seq[int]) -> None:
        index = self.send(tuple(rows))
        self.books.add(freed=self.table.release(index))
        if self.runner is not None:
            self.runner.forget(rows)
        self.alive.index_fill_(0, index, 0)
        self.main_operation()

    def freeze(self, row: int) -> None:
        self.alive[row].fill_(False)

    # -- forward passes -------------------------------------------------------------------------------------------------

    def forward(self, decode: Seq[Sequence], chunks: Seq[tuple[Sequence, int]], width: int) -> list[tuple[Seq[Sequence], Decoded]]:
        """One token for each request of `decode`, whose count is 0 where its row has stopped, and chunks: requests with the end of each.

        Returns the decoding requests, if there are any, and then the one of each chunk, with what they gave. mass: [B, width].
        """
        groups: list[Seq[Sequence]] = [decode] if decode else []
        groups += [[seq] for seq, _ in chunks]
        record = any(seq.params.record for seq in decode)
        if self.graphs is not None and not chunks and not record:
            made = [self.graphs.decode(tuple(seq.held_row for seq in decode))]
        else:
            parts = [self._decode_part(self._padded(decode), width, record=record)] if decode else []
            made = self._run([*parts, *(self._chunk_part(seq, end, width) for seq, end in chunks)])
            made[: len(parts)] = [one.first(len(decode)) for one in made[: len(parts)]]
        for seqs, one in zip(groups, made, strict=True):
            self._sample(seqs, one)
            self.main_operation()
        made = [one if one.mass is None else replace(one, mass=one.mass[:, :width]) for one in made]
        return list(zip(groups, made, strict=True))

    def decode_rows(self, rows: Tensor, width: int) -> Decoded:
        """The part of `forward` that a graph can hold: rows int64 [B]; padded ones name the trash row."""
        return self._run([self._decode_part(rows, width, record=False)])[0]

    def _run(self, parts: Seq[tuple[Tensor, Part]]) -> list[Decoded]:
        """parts: with the tokens that run in each row, int64 [B]."""
        made = []
        for (count, part), logits in zip(parts, self.model.forward([part for _, part in parts]), strict=True):
            step = part.step
            chosen, bad_layer = (None, step.bad_layer) if logits is None else step.choose(logits)
            mass = step.attention_by_token(count) if step.want_mass else None
            made.append(Decoded(step.rows, count, bad_layer, logits, chosen, mass, step.key_norms))
        return made

    def _decode_part(self, rows: Tensor, width: int, *, record: bool) -> tuple[Tensor, Part]:
        count = self.alive[rows].long()
        with self.watch.part("table"):
            slots = self.table.append(rows, count, 1)
        positions = (self.table.length[rows] - 1)[:, None]
        return count, Part(self.last_token[rows][:, None], self._context(rows, positions, slots, width, record=record))

    def _chunk_part(self, seq: Sequence, end: int, width: int) -> tuple[Tensor, Part]:
        """The chunk cursor .. end of one request."""
        rows = self._rows([seq])
        count = self.send((end - seq.cursor,))
        ids = to_device(seq.tokens(seq.cursor, end), rows.device)[None]
        positions = torch.arange(seq.cursor, end, device=ids.device)[None]
        with self.watch.part("table"):
            slots = self.table.append(rows, count, end - seq.cursor)
        record = seq.params.record and not seq.replaying
        step = self._context(rows, positions, slots, width, chunk=(seq.held_row, seq.cursor), replay=seq.replaying, record=record)
        return count, Part(ids, step, samples=end == len(seq.prompt) and not seq.replaying)

    def _context(
        self, rows: Tensor, positions: Tensor, slots: Tensor, width: int, *, chunk: tuple[int, int] | None = None, replay: bool = False,
        record: bool = False,
    ) -> StepContext:  # fmt: skip
        kind: type[StepContext] = PlainStep
        if self.kernels:
            from .kernel_step import KernelStep

            kind = KernelStep
        mass = not replay and (record or (self.runner is not None and self.runner.reads_attention))
        return kind(self.cache, self.table, rows, positions, slots, width, chunk, mass, replay, record)

    def _sample(self, seqs: Seq[Sequence], made: Decoded) -> None:
        """Choose the tokens of rows that have logits, and see who stops."""
        rows, count, token = made.rows, made.count, made.chosen
        if made.logits is None:
            self.books.enter(rows, count, made.bad_layer)
            return
        assert token is not None
        if any(seq.params.draws for seq in seqs):
            seeds = self.send(tuple(seq.seed for seq in seqs))
            token = sample(made.logits.float(), [seq.params for seq in seqs], seeds, self.table.length[rows])
        longest = max(1, *(len(seq.end_ids) for seq in seqs))
        said = self.send(
            tuple(
                (seq.params.forced[seq.decoded] if seq.params.forced else -1, *seq.end_ids, *[-1] * (longest - len(seq.end_ids)))
                for seq in seqs
            )
        )
        forced, ends = said[:, 0], said[:, 1:]
        self.books.finish(rows, count, token, made.bad_layer, forced, ends, self.last_token, self.alive)

    # -- eviction and reclaim -------------------------------------------------------------------------------------------

    def sync_new_tokens(self, made: Seq[tuple[Seq[Sequence], Decoded]], width: int) -> dict[int, PolicyError]:
        assert self.runner is not None
        rows = [seq.held_row for seqs, _ in made for seq in seqs]
        count = joined([one.count for _, one in made])
        mass = joined([one.mass for _, one in made if one.mass is not None]) if self.runner.reads_attention else None
        return self.runner.sync(rows, count, mass, width)

    def ask_policy(self, seqs: Seq[Sequence], width: int) -> tuple[Tensor, dict[int, PolicyError]]:
        """Who dies now, bool [B, width]: only in rows that ran and are over their budget."""
        assert self.runner is not None
        kill, failed = self.runner.evict([seq.held_row for seq in seqs], width)
        rows = self._rows(seqs)
        return kill & self._due(rows)[:, None], failed

    def _due(self, rows: Tensor) -> Tensor:
        """bool [B]: rows, int64 [B], that ran, are over their budget, and whose answer was sound; those whose answer was not end."""
        assert self.runner is not None
        self.alive[rows] &= ~self.runner.bad[rows]
        return self.runner.due(rows, self.books.ran(rows))

    def evict_token(self, seqs: Seq[Sequence], kill: Tensor) -> None:
        """kill: bool [B, width]."""
        self._evict_rows(self._rows(seqs), kill)
        self.main_operation()

    def _evict_rows(self, rows: Tensor, kill: Tensor) -> None:
        evicted, freed = self.table.evict_token(rows, kill)
        self.books.add(evicted=evicted, freed=freed)

    def ask_and_evict(self, rows: Tensor) -> Tensor:
        """`ask_policy` and `evict_token` as a graph holds them: rows int64 [B]. Returns what the policy answered, bool [B, T]."""
        assert self.runner is not None
        answer = self.runner.answer(rows, self.table.max_tokens)
        self._evict_rows(rows, answer & self._due(rows)[:, None])
        return answer

    def apply_logged_deaths(self, seq: Sequence) -> None:
        self.books.add(freed=self.table.apply_logged_deaths(self._rows([seq])))
        self.main_operation()

    def evict_out_of_window(self, seqs: Seq[Sequence], width: int) -> None:
        """Tokens that no layer's sliding window reaches from the next position on die by themselves."""
        window = self.model.death_window
        assert window is not None
        rows = self._rows(seqs)
        ids = torch.arange(width, device=rows.device)
        ran = self.books.ran(rows) & (self.alive[rows] | self.books.stopped(rows))  # a row that stopped earlier keeps what it has
        self.evict_token(seqs, ran[:, None] & (ids <= self.table.length[rows][:, None] - window))

    def publish(self) -> None:
        """Apply the plan in flight. Raises ReclaimError if its copies failed."""
        assert self.reclaimer is not None
        try:
            moves, freed = self.reclaimer.publish()
        except ReclaimError as error:
            self.books.add(freed=error.freed)
            raise
        self.books.add(moved=moves, freed=freed)
        self.main_operation()

    def drop_prefixes(self, n: int) -> None:
        assert self.index is not None
        self.books.add(freed=self.index.drop(n))
        self.main_operation()

    # -- what the host asks ---------------------------------------------------------------------------------------------

    def width(self, longest: int) -> int:
        """T of a step: a bucket at least as long as every request."""
        return min(round_up(longest, PAD), self.table.max_tokens)

    def exact_growth(self, decode: Seq[Sequence], chunks: Seq[tuple[Sequence, int]]) -> int:
        """Blocks that these decode steps and chunks (request, tokens) will take. Reads the device: for use when drained."""
        rows = self._rows(decode)
        need = int((self.alive[rows] & (self.table.n_free[rows] == 0)).sum())
        size = self.table.block_size
        for seq, n in chunks:
            need += max(0, -(-(n - int(self.table.n_free[seq.held_row])) // size))
        return need

    def record(self) -> Tensor:
        """int64 [R + 1, fields]: see `StepBooks`. Begins a new step's books."""
        if not self.kernels or self.index is not None:
            shared = (self.index.owned(), live_slots(self.table)) if self.index is not None else (None, None)
            return self.books.record(self._bad_answers, *shared)
        return self.record_by_kernel(torch.empty(len(self.alive), len(ROW_FIELDS), dtype=torch.int64, device=self.alive.device))

    def record_by_kernel(self, out: Tensor) -> Tensor:
        """`record`, where no prefixes are shared, written to `out`."""
        self.books.record_by_kernel(self._bad_answers, out)
        return out

    def send_record(self) -> tuple[Tensor, torch.cuda.Event | None]:
        """`record`, on its way to the host: see `Ring`."""
        if self.graphs is None or self.index is not None:
            return self.ring.send(self.record())
        return self.ring.fill(self.graphs.record)

    @property
    def _bad_answers(self) -> Tensor | None:
        """bool [R + 1]."""
        return self.runner.bad if self.runner is not None else None
