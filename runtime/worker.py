"""Everything of an engine that lives on the KV device, and the operations that a step launches on its main stream."""

from __future__ import annotations

from collections.abc import Sequence as Seq

import torch
from torch import Tensor

from vtoken_sdk.policy import EvictionPolicy, PolicyError

from .block_pool import BlockPool
from .config import EngineConfig
from .copy_stream import make_copy_stream
from .kv_cache import KVCache
from .model_adapter import ModelAdapter
from .planner import spare_blocks
from .policy_runner import PolicyRunner
from .prefix_index import PrefixIndex
from .reclaimer import Reclaimer
from .sampler import sample
from .sequence import Saved, Sequence
from .step_context import StepContext
from .stopwatch import Stopwatch
from .token_table import PAD, RESERVED, TokenTable, round_up


class Worker:
    """Device state of R rows: the table and pool, keys and values, what each row samples next, and this step's record.

    alive: bool [R + 1], false once a row has stopped; the host learns of it later. last_token: int64 [R + 1].
    key_norms: fp32 [B, n], of the last pass, as `StepContext` has it.
    """

    def __init__(self, model: ModelAdapter, config: EngineConfig, policy: EvictionPolicy | None) -> None:
        self.model, self.config = model, config
        device, size = model.device, config.slots_per_block
        self.pool = BlockPool(config.n_blocks, device)
        spare = spare_blocks(config.reclaim, size) if config.compacts else 0
        self.table = TokenTable(self.pool, config.max_running, size, refill=config.refill, spare_blocks=spare)
        slots = config.n_blocks * size
        self.cache = KVCache(model.layers, slots, size, model.kv_heads, model.head_dim, model.dtype, device)
        self.runner = PolicyRunner(policy, model, self.cache, self.table) if policy is not None else None
        self.index = PrefixIndex(self.table, config.prefix_unit) if config.prefix_cache else None
        self.reclaimer = Reclaimer(self.table, make_copy_stream(self.cache), config.reclaim) if config.compacts else None
        self.alive = torch.zeros(config.max_running + 1, dtype=torch.bool, device=device)
        self.last_token = torch.zeros(config.max_running + 1, dtype=torch.int64, device=device)
        self.watch = Stopwatch()
        self.begin_step()

    def _rows(self, rows: Seq[int] | Seq[Seq[int]]) -> Tensor:
        """int64 on the device, without waiting for it."""
        on_host = torch.tensor(rows, dtype=torch.int64, pin_memory=self.model.device.type == "cuda")
        return on_host.to(self.model.device, non_blocking=True)

    def main_operation(self) -> None:
        """Another main-stream operation is launched: a deferred copy may now go on."""
        if self.reclaimer is not None:
            self.reclaimer.tick()
        if self.config.poison:
            self.poison_dead_slots()

    # -- rows -----------------------------------------------------------------------------------------------------------

    def begin_step(self) -> None:
        self.watch.reset()
        zero = torch.zeros_like(self.last_token)
        self._ran, self._token, self._stopped, self._bad_layer = zero, zero.clone(), zero.clone(), zero - 1
        self._evicted = self._moves = self._freed = zero[0].clone()

    def start(self, seq: Sequence, prefix: Seq[bytes]) -> None:
        """Give a request its row, with the blocks of a prefix hit, or with what it took along when it was preempted."""
        row, saved = seq.held_row, seq.saved
        self.alive[row] = True
        if self.runner is not None:
            self.runner.start(row, seq.budget, seq.seed, saved.state if saved else None, seq.params.future)
        if saved is not None:
            self.table.died_at[row, : len(saved.died_at)] = saved.died_at
            self.last_token[row] = seq.output.token_ids[-1] if seq.output.token_ids else 0
        if prefix:
            assert self.index is not None
            self.index.adopt(row, prefix)

    def save(self, seq: Sequence) -> Saved:
        """What the request needs to come back. Reads the device: for use when drained."""
        row, tokens = seq.held_row, max(seq.cursor, seq.replay_until)  # it may be replaying already
        blocks = int((self.table.blocks[row] != self.pool.trash).sum())
        state = self.runner.save(row, tokens) if self.runner is not None else {}
        return Saved(self.table.died_at[row, :tokens].clone(), state, max(blocks, seq.saved.blocks if seq.saved else 0))

    def eviction_log(self, seq: Sequence) -> Tensor:
        """int32 [cursor] on the host: the length at which each token died, NEVER for the living."""
        return self.table.died_at[seq.held_row, : seq.cursor].cpu()

    def release(self, rows: Seq[int]) -> None:
        index = self._rows(rows)
        self._freed = self._freed + self.table.release(index)
        self.alive[index] = False
        self.main_operation()

    def freeze(self, row: int) -> None:
        self.alive[row] = False

    # -- forward passes -------------------------------------------------------------------------------------------------

    def decode(self, seqs: Seq[Sequence], width: int) -> tuple[Tensor, Tensor, Tensor | None]:
        """One token for each request. Returns how many ran, int64 [B] (0 where a row has stopped), logits fp32 [B, V], and mass."""
        rows = self._rows([seq.held_row for seq in seqs])
        count = self.alive[rows].long()
        with self.watch.part("table"):
            slots = self.table.append(rows, count, 1)
        step = self._context(seqs, rows, (self.table.length[rows] - 1)[:, None], slots, width, chunk=False)
        logits = self.model.forward(self.last_token[rows][:, None], step, "last")
        assert logits is not None
        self._ran[rows] = count
        self._sample(seqs, rows, count, logits, step)
        mass = step.attention_by_token(width, self.model.layers) * count[:, None] if step.want_mass else None
        self.main_operation()
        return count, logits, mass

    def prefill(self, seq: Sequence, end: int, width: int, *, sample: bool) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """The chunk cursor .. end of one request. Returns as `decode`; logits only if it samples."""
        rows = self._rows([seq.held_row])
        n = end - seq.cursor
        count = self._rows([n])
        ids = self._rows(seq.tokens(seq.cursor, end))[None]
        positions = torch.arange(seq.cursor, end, device=ids.device)[None]
        with self.watch.part("table"):
            slots = self.table.append(rows, count, n)
        step = self._context([seq], rows, positions, slots, width, chunk=True, replay=seq.replaying)
        logits = self.model.forward(ids, step, "last" if sample else "none")
        self._ran[rows] = count
        self._bad_layer[rows] = step.first_bad
        if logits is not None:
            self._sample([seq], rows, count, logits, step)
        mass = step.attention_by_token(width, self.model.layers) if step.want_mass else None
        self.main_operation()
        return count, logits, mass

    def _context(
        self, seqs: Seq[Sequence], rows: Tensor, positions: Tensor, slots: Tensor, width: int, *, chunk: bool, replay: bool = False
    ) -> StepContext:
        record = not replay and any(seq.params.record for seq in seqs)
        mass = not replay and (record or (self.runner is not None and self.runner.reads_attention))
        step = StepContext(self.cache, self.table, rows, positions, slots, width, chunk=chunk, want_mass=mass, replay=replay, record=record)
        self.key_norms = step.key_norms
        return step

    def _sample(self, seqs: Seq[Sequence], rows: Tensor, count: Tensor, logits: Tensor, step: StepContext) -> None:
        seeds = self._rows([seq.seed for seq in seqs])
        token = sample(logits, [seq.params for seq in seqs], seeds, self.table.length[rows])
        forced = self._rows([seq.params.forced[seq.decoded] if seq.params.forced else -1 for seq in seqs])
        token = torch.where(forced >= 0, forced, token)
        longest = max(1, *(len(seq.end_ids) for seq in seqs))
        ends = self._rows([[*seq.end_ids, *[-1] * (longest - len(seq.end_ids))] for seq in seqs])
        stopped = (token[:, None] == ends).any(1) & (count > 0)
        # A layer that went wrong shows in the logits; L stands for the head itself.
        finite = logits.isfinite().all(1)
        layer = torch.where(step.first_bad >= 0, step.first_bad, torch.where(finite, -1, self.model.layers))
        layer = torch.where(count > 0, layer, -1)
        self._bad_layer[rows] = layer
        self._token[rows], self._stopped[rows] = token, stopped.long()
        self.last_token[rows] = torch.where(count > 0, token, self.last_token[rows])
        self.alive[rows] &= ~stopped & (layer < 0)

    # -- eviction and reclaim -------------------------------------------------------------------------------------------

    def sync_new_tokens(self, seqs: Seq[Sequence], count: Tensor, mass: Tensor | None, width: int) -> dict[int, PolicyError]:
        assert self.runner is not None
        rows = [seq.held_row for seq in seqs]
        return self.runner.sync(rows, count, mass if self.runner.reads_attention else None, width)

    def ask_policy(self, seqs: Seq[Sequence], width: int) -> tuple[Tensor, dict[int, PolicyError]]:
        """Who dies now, bool [B, width]: only in rows that ran and are over their budget."""
        assert self.runner is not None
        rows = [seq.held_row for seq in seqs]
        kill, failed = self.runner.evict(rows, width)
        index = self._rows(rows)
        due = (self._ran[index] > 0) & (self.table.n_live[index] > self.runner.budget[index]) & ~self.runner.bad[index]
        self.alive[index] &= ~self.runner.bad[index]
        return kill & due[:, None], failed

    def evict_token(self, seqs: Seq[Sequence], kill: Tensor) -> None:
        """kill: bool [B, width]."""
        evicted, freed = self.table.evict_token(self._rows([seq.held_row for seq in seqs]), kill)
        self._evicted, self._freed = self._evicted + evicted, self._freed + freed
        self.main_operation()

    def apply_logged_deaths(self, seq: Sequence) -> None:
        self._freed = self._freed + self.table.apply_logged_deaths(self._rows([seq.held_row]))
        self.main_operation()

    def evict_out_of_window(self, seqs: Seq[Sequence], width: int) -> None:
        """Tokens that no layer's sliding window reaches from the next position on die by themselves."""
        window = self.model.death_window
        assert window is not None
        rows = self._rows([seq.held_row for seq in seqs])
        ids = torch.arange(width, device=rows.device)
        ran = self._ran[rows][:, None] > 0  # a row that has stopped keeps what it has
        self.evict_token(seqs, ran & (ids <= self.table.length[rows][:, None] - window))

    def publish(self) -> None:
        """Apply the plan in flight. Raises ReclaimError if its copies failed."""
        assert self.reclaimer is not None
        moves, freed = self.reclaimer.publish()
        self._moves, self._freed = self._moves + moves, self._freed + freed
        self.main_operation()

    def drop_prefixes(self, n: int) -> None:
        assert self.index is not None
        self._freed = self._freed + self.index.drop(n)
        self.main_operation()

    # -- what the host asks ---------------------------------------------------------------------------------------------

    def width(self, longest: int) -> int:
        """T of a step: a bucket at least as long as every request."""
        return min(round_up(longest, PAD), self.table.max_tokens)

    def exact_growth(self, decode: Seq[Sequence], chunks: Seq[tuple[Sequence, int]]) -> int:
        """Blocks that these decode steps and chunks (request, tokens) will take. Reads the device: for use when drained."""
        rows = self._rows([seq.held_row for seq in decode])
        need = int((self.alive[rows] & (self.table.n_free[rows] == 0)).sum())
        size = self.table.block_size
        for seq, n in chunks:
            need += max(0, -(-(n - int(self.table.n_free[seq.held_row])) // size))
        return need

    def record(self) -> Tensor:
        """int64 [R + 1, fields]: see step_in_flight."""
        table, pool = self.table, self.pool
        bad = self.runner.bad.long() if self.runner is not None else torch.zeros_like(self._ran)
        n_held = (table.blocks != pool.trash).sum(1)
        made = torch.stack((self._ran, self._token, self._stopped, bad, self._bad_layer, table.n_live, n_held), 1)
        held, live = pool.n_blocks - pool.top, table.n_live[:-1].sum()
        if self.index is not None:
            owned = self.index.owned()
            held = held - ((owned > 0) & (pool.owners == owned)).sum()
            live = self.live_slots().sum()
        made[-1, :6] = torch.stack((pool.top, self._evicted, self._moves, self._freed, held, live))
        return made

    def live_slots(self) -> Tensor:
        """bool [n_slots]: slots that hold a live token of some request."""
        n = self.cache.n_slots
        mark = torch.zeros(n + 1, dtype=torch.bool, device=self.model.device)
        slot = self.table.slot[:-1].flatten().long()
        mark[torch.where(slot >= 0, slot, n)] = True
        return mark[:-1]

    def poison_dead_slots(self) -> None:
        """NaN into every slot that holds nothing of value; a move's target holds a value once it is copied."""
        keep = self.live_slots()
        size, trash = self.table.block_size, self.table.trash_slot
        at = torch.arange(size, device=keep.device)
        held_slots = (self.table.blocks[..., None] * size + at).flatten(1)  # [R + 1, N * S]
        reserved = held_slots[self.table.held <= RESERVED]
        keep[reserved[reserved < trash]] = True
        if self.index is not None:
            owned = self.index.owned()[:-1].nonzero().flatten()
            keep[(owned[:, None] * size + at).flatten()] = True
        self.cache.poison(keep)
