"""The end of a step: tokens, stop checks and the record that the host reads later. Twins of `Worker`'s own operations."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _finish(rows, count, chosen, bad_layer, forced, ends, last_token, alive, made, n_ends, said_row, E: tl.constexpr):
    b = tl.program_id(0)
    row = tl.load(rows + b)
    ran = tl.load(count + b) > 0
    token, given = tl.load(chosen + b), tl.load(forced + b * said_row)
    token = tl.where(given >= 0, given, token)
    e = tl.arange(0, E)
    ended = tl.load(ends + b * said_row + e, mask=e < n_ends, other=-1) == token
    stopped = (tl.max(ended.to(tl.int32), 0) > 0) & ran
    layer = tl.where(ran, tl.load(bad_layer + b), -1)
    tl.store(made + row * 4, tl.load(count + b))
    tl.store(made + row * 4 + 1, token)
    tl.store(made + row * 4 + 2, stopped.to(tl.int64))
    tl.store(made + row * 4 + 3, layer)
    if ran:
        tl.store(last_token + row, token)
    if stopped | (layer >= 0):
        tl.store(alive + row, tl.full((), 0, tl.int8))


def finish(
    rows: Tensor, count: Tensor, chosen: Tensor, bad_layer: Tensor, forced: Tensor, ends: Tensor, last_token: Tensor, alive: Tensor,
    made: Tensor,
) -> None:  # fmt: skip
    """As `StepBooks.finish`. Writes made, int64 [R + 1, 4]: how many ran, token, stopped, bad layer."""
    assert forced.stride(0) == ends.stride(0), "columns of one tensor"
    _finish[(len(rows),)](
        rows, count, chosen, bad_layer, forced, ends, last_token, alive, made, ends.shape[1], forced.stride(0),
        E=triton.next_power_of_2(ends.shape[1]), num_warps=1,
    )  # fmt: skip


@triton.jit
def _record(
    made, bad, n_live, blocks, counters, top, out, n_rows, n_blocks, max_blocks, trash, BAD: tl.constexpr, R: tl.constexpr, O: tl.constexpr
):
    row = tl.program_id(0)
    held = tl.zeros((), tl.int64)
    if row < n_rows:
        if tl.load(n_live + row) > 0:
            for first in range(0, max_blocks, O):
                o = first + tl.arange(0, O)
                held += tl.sum(
                    (tl.load(blocks + row.to(tl.int64) * max_blocks + o, mask=o < max_blocks, other=trash) != trash).to(tl.int64), 0
                )
        at = out + row * 7
        for i in tl.static_range(3):
            tl.store(at + i, tl.load(made + row * 4 + i))
            tl.store(made + row * 4 + i, tl.zeros((), tl.int64))
        if BAD:
            tl.store(at + 3, tl.load(bad + row).to(tl.int64))
        else:
            tl.store(at + 3, tl.zeros((), tl.int64))
        tl.store(at + 4, tl.load(made + row * 4 + 3))
        tl.store(made + row * 4 + 3, tl.full((), -1, tl.int64))
        tl.store(at + 5, tl.load(n_live + row))
        tl.store(at + 6, held)
    else:
        r = tl.arange(0, R)
        live = tl.sum(tl.load(n_live + r, mask=r < n_rows, other=0), 0)
        n_free = tl.load(top)
        at = out + row * 7
        tl.store(at, n_free)
        for i in tl.static_range(3):
            tl.store(at + 1 + i, tl.load(counters + i))
            tl.store(counters + i, tl.zeros((), tl.int64))
        tl.store(at + 4, n_blocks - n_free)
        tl.store(at + 5, live)
        tl.store(at + 6, tl.zeros((), tl.int64))


def record(
    made: Tensor, bad: Tensor | None, n_live: Tensor, blocks: Tensor, counters: Tensor, top: Tensor, out: Tensor, n_blocks: int, trash: int
) -> None:
    """Writes out, int64 [R + 1, 7]: see `step_books`. Resets made and counters, int64 [3]: tokens evicted, moved, blocks freed."""
    rows = len(made) - 1
    _record[(rows + 1,)](
        made, bad, n_live, blocks, counters, top, out, rows, n_blocks, blocks.shape[1], trash,
        BAD=bad is not None, R=triton.next_power_of_2(rows), O=1024, num_warps=4,
    )  # fmt: skip
