"""No bundled policy makes the host wait for a device, and requests of one shape may be scored at once."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor

from tests.runtime.no_sync import NoHostReads
from vtoken_sdk.policy import CacheView, LiveKV, NewTokens, State

from .bundled import BUNDLED, make_small
from .driver import rotary

B, L, H, R, N, D, W, BUDGET = 3, 2, 2, 2, 20, 8, 4, 7
Fn = Callable[[LiveKV], Tensor]


def tensors(seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Keys and values [B, H, N, D], queries [B, H, R, W, D]."""
    g = torch.Generator().manual_seed(seed)
    return torch.randn(B, H, N, D, generator=g), torch.randn(B, H, N, D, generator=g), torch.randn(B, H, R, W, D, generator=g)


def live_kv(keys: Tensor, values: Tensor, queries: Tensor) -> LiveKV:
    """One layer of one request, of which every third token before the window is dead. Its last four queries, or the last alone."""
    length = 3 * N // 2 - 2
    positions = torch.tensor([t for t in range(length) if t % 3 or t >= length - W])
    assert len(positions) == N
    return LiveKV(keys, values, positions.expand(H, -1), torch.arange(length - W, length), D**-0.5, partial(rotary, D), queries)


def view(score: Callable[[Fn], Tensor], *, writable: bool) -> CacheView:
    live = torch.ones(B, L * H, N, dtype=torch.bool)
    g = torch.Generator().manual_seed(9)
    column = torch.full((B, 1, 1), N)
    state = State(live.shape, live.device, {}, writable=writable)
    future, bad = torch.rand(B, L * H, N, generator=g), torch.zeros(B, dtype=torch.bool)
    return CacheView(live, column, column * 0 + BUDGET, column, (L, H), state, score, future, bad)


@pytest.mark.parametrize("name", BUNDLED)
def test_no_policy_reads_a_value_on_the_host(name: str) -> None:
    layers = [tensors(seed) for seed in range(L)]
    each = [[live_kv(*(x[b] for x in layer)) for layer in layers] for b in range(B)]

    def score(fn: Fn) -> Tensor:
        return torch.stack([torch.cat([fn(kv) for kv in row]) for row in each])

    policy, mass = make_small(name), torch.rand(B, L * H, N)
    learning, asked = view(score, writable=True), view(score, writable=False)
    with NoHostReads():  # type: ignore[no-untyped-call]  # torch's base class has no annotations
        policy.sync_new_tokens(learning, NewTokens(torch.ones(B, 1, 1, dtype=torch.long), mass))
        kill = policy.evict_token(asked)
    assert kill.shape == asked.live.shape
    assert bool(kill.any()) == (name != "full")


@pytest.mark.parametrize("name", BUNDLED)
def test_requests_of_one_shape_may_be_scored_at_once(name: str) -> None:
    """By torch.func.vmap over requests: the same scores as one by one."""
    found: list[tuple[Tensor, Tensor]] = []

    def score(fn: Fn) -> Tensor:
        made = tensors(0)
        one_by_one = torch.stack([fn(live_kv(*(x[b] for x in made))) for b in range(B)])
        at_once: Tensor = torch.func.vmap(lambda k, v, q: fn(live_kv(k, v, q)))(*made)
        found.append((one_by_one, at_once))
        return one_by_one.repeat(1, L, 1)

    make_small(name).evict_token(view(score, writable=False))
    if not found:
        pytest.skip("reads no keys or values")
    for one_by_one, at_once in found:
        torch.testing.assert_close(at_once, one_by_one, atol=1e-5, rtol=1e-5)
