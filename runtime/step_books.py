"""What a step did, written on the device while it runs, for the host to read some steps later: see `StepInFlight`."""

from __future__ import annotations

import torch
from torch import Tensor

from .token_table import TokenTable

RAN, TOKEN, STOPPED, BAD_LAYER = range(4)  # columns of `made`
# Columns of a record, one line a row of the table.
ROW_FIELDS = ("ran", "token", "stopped", "bad_answer", "bad_layer", "n_live", "held")
# The last line, of the trash row, speaks of the whole engine.
POOL_FIELDS = ("free", "evicted", "moves", "freed", "held_distinct", "live_distinct")


class StepBooks:
    """made: int64 [R + 1, 4], of this step: ran, token, stopped, bad layer (-1: none).

    counters: int64 [3], of this step: tokens evicted, tokens moved, blocks freed.
    """

    def __init__(self, table: TokenTable) -> None:
        self.table = table
        self.made = torch.zeros(table.rows + 1, 4, dtype=torch.int64, device=table.device)
        self.counters = torch.zeros(3, dtype=torch.int64, device=table.device)
        self._evicted, self._moved, self._freed = self.counters
        self.begin()

    def begin(self) -> None:
        self.made.zero_()
        self.made[:, BAD_LAYER] = -1
        self.counters.zero_()

    def add(self, *, evicted: Tensor | None = None, moved: Tensor | None = None, freed: Tensor | None = None) -> None:
        """int64 [] each."""
        for counter, more in ((self._evicted, evicted), (self._moved, moved), (self._freed, freed)):
            if more is not None:
                counter += more

    def ran(self, rows: Tensor) -> Tensor:
        """bool [B]: which of rows, int64 [B], ran in this step."""
        return self.made[rows, RAN] > 0

    def stopped(self, rows: Tensor) -> Tensor:
        """bool [B]: which of rows, int64 [B], came to their end in this step."""
        return self.made[rows, STOPPED] > 0

    def enter(self, rows: Tensor, count: Tensor, bad_layer: Tensor) -> None:
        """Rows that ran without sampling. int64 [B] each."""
        self.made[rows, RAN] = count
        self.made[rows, BAD_LAYER] = bad_layer

    def finish(
        self,
        rows: Tensor,
        count: Tensor,
        chosen: Tensor,
        bad_layer: Tensor,
        forced: Tensor,
        ends: Tensor,
        last_token: Tensor,
        alive: Tensor,
    ) -> None:
        """chosen, forced: int64 [B], the sampled token and the one to take instead (-1: none). bad_layer: int64 [B], -1 if none.

        ends: int64 [B, E], end tokens, -1 where there are fewer; forced and ends are columns of one tensor. Updates last_token and alive,
        [R + 1].
        """
        if self.table.kernels:
            from .kernels.step_end import finish

            finish(rows, count, chosen, bad_layer, forced, ends, last_token, alive, self.made)
            return
        token = torch.where(forced >= 0, forced, chosen)
        stopped = (token[:, None] == ends).any(1) & (count > 0)
        layer = torch.where(count > 0, bad_layer, -1)
        self.made[rows] = torch.stack((count, token, stopped.long(), layer), 1)
        last_token[rows] = torch.where(count > 0, token, last_token[rows])
        alive[rows] &= ~stopped & (layer < 0)

    def record(self, bad_answer: Tensor | None, owned: Tensor | None, live_slots: Tensor | None) -> Tensor:
        """int64 [R + 1, fields], and a new step's books. bad_answer: bool [R + 1].

        Where prefixes are shared, owned: int32 [n_blocks + 1], the index's owners of each block, and live_slots: bool [n_slots].
        """
        table, pool = self.table, self.table.pool
        bad = bad_answer.long() if bad_answer is not None else torch.zeros_like(table.n_live)
        n_held = (table.blocks != pool.trash).sum(1)
        ran, token, stopped, layer = self.made.unbind(1)
        made = torch.stack((ran, token, stopped, bad, layer, table.n_live, n_held), 1)
        held, live = pool.n_blocks - pool.top, table.n_live[:-1].sum()
        if owned is not None and live_slots is not None:
            held, live = held - ((owned > 0) & (pool.owners == owned)).sum(), live_slots.sum()
        made[-1, : len(POOL_FIELDS)] = torch.stack((pool.top, *self.counters, held, live))
        self.begin()
        return made

    def record_by_kernel(self, bad_answer: Tensor | None, out: Tensor) -> None:
        """`record`, where no prefixes are shared, written to `out`, which may be pinned memory of the host."""
        from .kernels.step_end import record

        table, pool = self.table, self.table.pool
        record(self.made, bad_answer, table.n_live, table.blocks, self.counters, pool.top, out, pool.n_blocks, pool.trash)
