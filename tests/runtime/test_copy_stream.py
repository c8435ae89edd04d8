"""The copies of a plan: what they move, when, and that they touch nothing else."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from vtoken_sdk.runtime.config import StreamName
from vtoken_sdk.runtime.copy_stream import DeferredStream, make_copy_stream
from vtoken_sdk.runtime.kv_cache import KVCache
from vtoken_sdk.runtime.planner import Plan

CPU = torch.device("cpu")
N_SLOTS, SIZE = 24, 4


def make_cache(layers: int = 2, heads: int = 3, head_dim: int = 5, dtype: torch.dtype = torch.float32) -> KVCache:
    """Every element another value; keys and values differ."""
    cache = KVCache(layers, N_SLOTS, SIZE, heads, head_dim, dtype, CPU)
    for i, pool in enumerate((cache.keys, cache.values)):
        pool.copy_(torch.arange(pool.numel()).view(pool.shape) * (1 - 2 * i))
    return cache


def make_plan(moves: list[tuple[int, int]], cap: int = 8) -> Plan:
    """Moves by physical slot; padded with the trash slot."""
    empty = torch.zeros(cap, dtype=torch.int64)
    source, target = empty + N_SLOTS, empty + N_SLOTS
    if moves:
        source[: len(moves)], target[: len(moves)] = torch.tensor(moves).T
    return Plan(torch.tensor([0]), empty, empty, empty, source, target, torch.tensor(len(moves)))


def moved(cache: KVCache, moves: list[tuple[int, int]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and values, without the trash block, as these moves should leave them."""
    keys, values = cache.keys[:, :N_SLOTS].clone(), cache.values[:, :N_SLOTS].clone()
    for source, target in moves:
        keys[:, target], values[:, target] = keys[:, source].clone(), values[:, source].clone()
    return keys, values


def same(cache: KVCache, want: tuple[torch.Tensor, torch.Tensor]) -> bool:
    return torch.equal(cache.keys[:, :N_SLOTS], want[0]) and torch.equal(cache.values[:, :N_SLOTS], want[1])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("n", [0, 1, 2, 7, 8])
@pytest.mark.parametrize("name", ["side", "main"])
def test_copies_move_all_layers_bit_for_bit_and_touch_nothing_else(name: StreamName, n: int, dtype: torch.dtype) -> None:
    cache = make_cache(dtype=dtype)
    moves = [(2 * i, 2 * i + 1) for i in range(n)]
    want = moved(cache, moves)
    stream = make_copy_stream(cache, name)
    stream.submit(make_plan(moves))
    late = stream.join()
    assert late == (n > 0 and name == "side")
    assert same(cache, want)


def test_the_default_copies_as_late_as_the_protocol_allows() -> None:
    cache = make_cache()
    before = moved(cache, [])
    stream = DeferredStream(cache)
    stream.submit(make_plan([(0, 1), (4, 9)]))
    for _ in range(5):
        stream.tick()
    assert same(cache, before)
    stream.join()
    assert same(cache, moved(make_cache(), [(0, 1), (4, 9)]))


@pytest.mark.parametrize(
    ("progress", "done"),
    [(lambda left: 1, [1, 2, 3, 3, 3]), (lambda left: left, [3] * 5), (lambda left: left + 7, [3] * 5), (lambda left: -1, [0] * 5)],
)
def test_progress_is_made_move_by_move(progress: Callable[[int], int], done: list[int]) -> None:
    moves = [(0, 12), (5, 13), (9, 14)]
    cache = make_cache()
    stream = DeferredStream(cache, progress)
    stream.submit(make_plan(moves))
    for n in done:
        stream.tick()
        assert same(cache, moved(make_cache(), moves[:n]))
    assert stream.join() == (done[-1] < 3)
    assert same(cache, moved(make_cache(), moves))


def test_one_plan_after_the_other() -> None:
    cache = make_cache()
    stream = DeferredStream(cache)
    stream.tick()  # nothing to do
    stream.submit(make_plan([(0, 1)]))
    with pytest.raises(AssertionError, match="one plan in flight"):
        stream.submit(make_plan([(2, 3)]))
    stream.join()
    stream.submit(make_plan([(2, 3)]))
    stream.join()
    assert same(cache, moved(make_cache(), [(0, 1), (2, 3)]))


def test_an_abandoned_plan_is_copied_no_further() -> None:
    cache = make_cache()
    stream = DeferredStream(cache, lambda left: 1)
    stream.submit(make_plan([(0, 1), (2, 3)]))
    stream.tick()
    stream.abandon()
    stream.tick()
    assert same(cache, moved(make_cache(), [(0, 1)]))
    stream.submit(make_plan([(4, 5)]))
    stream.join()
    assert same(cache, moved(make_cache(), [(0, 1), (4, 5)]))
