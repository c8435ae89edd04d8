"""Checks that a request's evictions are its own: whoever runs beside it, in whatever row, however wide the tensors are."""

from __future__ import annotations

from .factory import PolicyFactory, make_policy
from .faults import CheckFailed
from .memory_cache import MemoryCache, ordinary_run
from .record import Record, expect_same
from .requests import ordinary_requests

WIDTH = 512  # T in runs that differ by something else


def check_batch(make: PolicyFactory) -> None:
    """The same alone, among others, in any order.

    Each row alone, all rows together, and in reverse.
    """
    requests, together = ordinary_requests(), ordinary_run(make, WIDTH)
    backwards = MemoryCache(make_policy(make), requests[::-1], width=WIDTH).run()
    backwards.deaths.reverse()
    alone = Record([MemoryCache(make_policy(make), [r], width=WIDTH).run().deaths[0] for r in requests])
    for how, other in (("alone", alone), ("in a batch of another order", backwards)):
        expect_same(
            together,
            other,
            f": the first ran in a batch, the second {how}. Rows must not meet: no sort, sum, mean or maximum over axis 0, "
            "no flatten, no value of one row for all. Keep the first axis in every operation.",
        )


def check_padding(make: PolicyFactory) -> None:
    """The same however wide the tensors are."""
    expect_same(
        ordinary_run(make),
        ordinary_run(make, WIDTH),
        f": T is as small as it can be in the first, {WIDTH} in the second. Columns from cache.length on are no tokens: "
        "take counts from cache.length or cache.live.sum(-1), never shape[-1], and mask before a mean or a softmax.",
    )


def check_idle_rows(make: PolicyFactory) -> None:
    """Learns nothing from steps that a request sat out.

    Their new.count is 0.
    """
    busy = ordinary_run(make, WIDTH)
    try:
        idle = MemoryCache(make_policy(make), ordinary_requests(), width=WIDTH, idle=lambda step, i: (step + i) % 3 == 0).run()
    except CheckFailed as error:
        raise CheckFailed(f"with a row in the call that runs nothing (new.count is 0): {error}", cause=error.cause) from error
    expect_same(
        busy,
        idle,
        ": the second paused in some steps, while others ran. Likely state decays or counts once a call: weigh such "
        "updates with new.count (0 for a row that did not run), as torch.where(new.count > 0, ...).",
    )


def check_preemption(make: PolicyFactory) -> None:
    """The same after a preemption, in another row."""
    away = MemoryCache(make_policy(make), ordinary_requests(), width=WIDTH, away=lambda step, i: i + 2 <= step < i + 5).run()
    expect_same(
        ordinary_run(make, WIDTH),
        away,
        ": the second was taken out for some steps and came back in another row. Likely something is kept by row, or by "
        "counting calls. State belongs in cache.state, and time is cache.length.",
    )


def check_dead_columns(make: PolicyFactory) -> None:
    """Does not read the state of dead tokens.

    Those columns are undefined.
    """
    spoiled = MemoryCache(make_policy(make), ordinary_requests(), width=WIDTH, garbage=1e6).run()
    expect_same(
        ordinary_run(make, WIDTH),
        spoiled,
        ": in the second, state held 1,000,000 for dead tokens. Likely a sum, mean or maximum over all columns: "
        "mask first, as in (state * cache.live).sum(-1).",
    )
