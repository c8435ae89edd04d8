"""Sampling: filters as everyone has them, the right distribution, and draws that depend on the request alone."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from vtoken_sdk.runtime import EngineConfig, RequestOutput, SamplingParams
from vtoken_sdk.runtime.sampler import sample

from .oracles import drive, make_engine, prompt, small


def draws(logits: Tensor, params: SamplingParams, n: int) -> Tensor:
    """n tokens from one row of logits, at n positions of one request."""
    return sample(logits.expand(n, -1), [params] * n, torch.full((n,), 7), torch.arange(n))


def kept_by_hand(logits: list[float], top_k: int, top_p: float) -> set[int]:
    order = sorted(range(len(logits)), key=lambda i: -logits[i])[: top_k or None]
    weights = [math.exp(logits[i]) for i in order]
    kept, before = set(), 0.0
    for i, weight in zip(order, weights, strict=True):
        if before / sum(weights) >= top_p:
            break
        kept.add(i)
        before += weight
    return kept


@pytest.mark.parametrize(("top_k", "top_p"), [(0, 1.0), (3, 1.0), (0, 0.6), (4, 0.8), (0, 1e-6), (100, 0.95)])
def test_filters_leave_what_a_plain_reading_leaves(top_k: int, top_p: float) -> None:
    logits = torch.tensor([0.3, 2.0, -1.0, 1.5, 0.9, -3.0, 1.1])
    got = draws(logits, SamplingParams(temperature=1.0, top_k=top_k, top_p=top_p), 6000)
    assert set(got.tolist()) == kept_by_hand(logits.tolist(), top_k, top_p)


def test_tokens_come_as_often_as_their_probability_says() -> None:
    logits = torch.tensor([0.0, 1.0, 2.0, 0.5, -1.0])
    n, temperature = 20_000, 0.7
    expected = (logits / temperature).softmax(0) * n
    counts = torch.bincount(draws(logits, SamplingParams(temperature=temperature), n), minlength=5)
    chi_square = float(((counts - expected) ** 2 / expected).sum())
    assert chi_square < 18.5  # 4 degrees of freedom, p = 0.001


def test_greedy_rows_are_the_argmax_beside_random_ones() -> None:
    logits = torch.randn(6, 50, generator=torch.Generator().manual_seed(3))
    params = [SamplingParams(), SamplingParams(temperature=1.0), SamplingParams(temperature=2.0, top_k=1)] * 2
    got = sample(logits, params, torch.arange(6), torch.arange(6))
    for i in (0, 2, 3, 5):
        assert got[i] == logits[i].argmax()


def test_seeds_that_differ_in_high_bits_only_differ() -> None:
    logits = torch.zeros(1, 1000)
    params = [SamplingParams(temperature=1.0)]
    low, high = (sample(logits, params, torch.tensor([seed]), torch.tensor([0])) for seed in (5, 5 + (1 << 40)))
    assert low != high


def test_seeded_requests_repeat_whatever_their_neighbors_do() -> None:
    model = small().served
    prompts = [prompt(i, 20 + 7 * i) for i in range(6)]
    some = [SamplingParams(max_tokens=12, temperature=0.8, seed=i if i % 2 else None) for i in range(6)]

    def run(order: list[int]) -> dict[int, RequestOutput]:
        engine = make_engine(model, EngineConfig(runtime="native", pool_blocks=60, chunk=16))
        done = drive(engine, [prompts[i] for i in order], [some[i] for i in order], logits=False)
        return dict(zip(order, done.outputs, strict=True))

    together, reverse = run(list(range(6))), run([5, 4, 3, 2, 1, 0])
    for i in (1, 3, 5):
        alone = run([i])[i].token_ids
        assert together[i].token_ids == reverse[i].token_ids == alone
    assert len({tuple(o.token_ids) for o in together.values()}) == 6


def test_requests_without_a_seed_take_one_from_the_engine() -> None:
    model = small().served

    def run(seed: int) -> list[int]:
        engine = make_engine(model, EngineConfig(runtime="native", pool_blocks=60, seed=seed))
        return engine.generate([prompt(1, 30)], SamplingParams(max_tokens=12, temperature=1.0))[0].token_ids

    assert run(0) == run(0)
    assert run(0) != run(1)
