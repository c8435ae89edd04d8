"""The driver of the checks against another one that shares no code with it."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch

from tests.policies.driver import Driver
from tests.policies.driver import Request as PlainRequest
from vtoken_sdk.check import MemoryCache
from vtoken_sdk.check.record import Record, first_difference
from vtoken_sdk.check.requests import LAYERS, SCALE, make_request, ordinary_requests, rotary, rotate
from vtoken_sdk.policies.h2o import H2O
from vtoken_sdk.policies.lagkv import LagKV
from vtoken_sdk.policies.oracle import Oracle
from vtoken_sdk.policies.random import Random
from vtoken_sdk.policies.scissorhands import Scissorhands
from vtoken_sdk.policy import EvictionPolicy

POLICIES: list[EvictionPolicy] = [H2O(), Random(sinks=1), Scissorhands(window=8, recent=2), LagKV(lag=4), Oracle()]


@pytest.mark.parametrize(("chunk", "prefill", "every"), [(128, "end", 2), (7, "chunk", 1), (16, "chunk", 3), (9, "never", 4)])
@pytest.mark.parametrize("granularity", ["token", "head"])
@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: type(policy).__name__)
def test_two_drivers_agree(policy: EvictionPolicy, granularity: str, chunk: int, prefill: str, every: int) -> None:
    requests = ordinary_requests()[:4]
    ours = MemoryCache(policy, requests, per_head=granularity == "head", chunk=chunk, prefill=prefill, every=every).run()
    plain = [
        PlainRequest(queries=r.queries, keys=r.keys, values=r.values, prompt=r.prompt, budget=r.budget, seed=r.seed, scale=SCALE)
        for r in requests
    ]
    theirs: Any = Driver(policy, plain, granularity, chunk=chunk, prefill=prefill, every=every).run()
    assert ours.deaths == theirs
    assert sum(map(len, ours.deaths)) >= 3


def test_attention_sums_to_the_queries_and_the_future_is_the_rest() -> None:
    request = make_request(0, 20, 5, 10)
    live = torch.zeros(LAYERS, 2, request.total, dtype=torch.bool)
    first = request.attention(0, 20, live)
    assert first.sum(-1).allclose(torch.tensor(20.0))
    live[..., :20] = True
    rest = sum(request.attention(at, 1, live | (torch.arange(request.total) < at))[..., :20] for at in range(20, 25))
    assert isinstance(rest, torch.Tensor)
    assert rest.allclose(request.future(20)[..., :20], atol=1e-5)
    assert not request.future(request.total).any()


def test_keys_turn_with_their_position() -> None:
    """The logit of two rotated vectors depends on their distance alone."""
    g = torch.Generator().manual_seed(0)
    q, k = torch.randn(2, 1, 8, generator=g).expand(2, 30, 8)
    logits = rotate(q) @ rotate(k).T
    assert torch.stack([logits.diagonal(-7).min(), logits.diagonal(-7).max()]).allclose(logits[7, 0], atol=1e-5)
    cos, sin = rotary(torch.arange(3))
    assert (cos**2 + sin**2).allclose(torch.ones(3, 8))


def test_the_process_wide_generators_are_where_they_were() -> None:
    before = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()  # type: ignore[index]  # noqa: NPY002  # a policy's
    MemoryCache(Random(), ordinary_requests(), entropy=5).run()
    after = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()  # type: ignore[index]  # noqa: NPY002  # a policy's
    assert torch.equal(before[0], after[0])
    assert before[1:] == after[1:]


def test_a_difference_is_told_by_its_first_place() -> None:
    one = Record([[(5, [[1]])], [(9, [[1, 2], [4]]), (12, [[3], [7]])]])
    assert first_difference(one, one) is None
    other = Record([[(5, [[1]])], [(9, [[1, 2], [4]]), (12, [[4], [7]])]])
    assert first_difference(one, other) == "request 1, length 12: [3] died only in the first run, [4] only in the second"
    swapped = Record([[(5, [[1]])], [(9, [[1, 4], [2]]), (12, [[3], [7]])]])
    assert first_difference(one, swapped) == "request 1, length 9: [2] died only in the first run, [4] only in the second"
    shorter = Record([[], [(9, [[1, 2], [4]]), (12, [[3], [7]])]])
    assert first_difference(one, shorter) == "request 0, length 5: [1] died only in the first run, [] only in the second"
