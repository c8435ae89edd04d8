"""A policy that raises or answers nonsense takes down its own request, by name; the others and the engine go on."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from vtoken_sdk.policy import CacheView, EvictionPolicy
from vtoken_sdk.runtime import EngineConfig, EvictOptions, SamplingParams

from .oracles import drive, make_engine, prompt, small
from .sample_policies import Answers

PROMPTS = [prompt(i, n) for i, n in enumerate((40, 50, 33, 64))]
TOKENS = 14  # the guilty request, of 50, fails at its prompt's end, or at 60 tokens
CONFIG = EngineConfig(runtime="vtoken", pool_blocks=40, chunk=32, budget=16, evict=EvictOptions("end", 2), poison=True)


def raises(cache: CacheView) -> object:
    raise ValueError("the user's own words")


def assigns(cache: CacheView) -> object:
    cache.state["late"] = torch.zeros_like(cache.live)
    return cache.live


def scores_nan(cache: CacheView) -> object:
    # NaN in the guilty request only: a batched call may hold others.
    return cache.evict_lowest(torch.where(cache.seed == 101, torch.nan, 0.0).expand(cache.live.shape))


def scores_wrong_shape(cache: CacheView) -> object:
    return cache.evict_lowest(cache.score(lambda kv: kv.keys.sum(-1)[:, 1:]))


MISTAKES: dict[str, tuple[Callable[[CacheView], object], str]] = {
    "raises": (raises, "ValueError: the user's own words"),
    "answers nothing": (lambda cache: None, "returned NoneType"),
    "answers a list": (lambda cache: [1, 2], "returned list"),
    "answers ids": (lambda cache: torch.tensor([1, -1, 10_000]), r"returned int64 \[3\]"),
    "answers int32": (lambda cache: cache.live.int(), "returned int32"),
    "answers floats": (lambda cache: cache.live.float(), "returned float32"),
    "too short": (lambda cache: cache.live[..., :-1], r"returned bool \[.*must return a bool tensor \[B, G, T\]"),
    "another device": (lambda cache: cache.live.to("meta"), "on meta"),
    "NaN scores": (scores_nan, "NaN score for a live token"),
    "a score of the wrong shape": (scores_wrong_shape, r"cache.score's function returned .*\[H, N\]"),
    "assigns state": (assigns, "assigned in evict_token"),
    "reads undeclared queries": (lambda cache: cache.score(lambda kv: kv.queries.sum()), '"queries" is not in the policy'),
    "reads the future": (lambda cache: cache.future, '"future" is not in the policy'),
}


def run(policy: Any) -> Any:
    return drive(make_engine(small().served, CONFIG, policy), PROMPTS, SamplingParams(max_tokens=TOKENS))


@functools.cache
def without_mistake() -> Any:
    return run(Answers(lambda cache: None, guilty=-1))


@pytest.mark.parametrize("length", [0, 60], ids=["at once", "later"])
@pytest.mark.parametrize("mistake", MISTAKES)
def test_only_the_guilty_request_fails_and_it_is_named(mistake: str, length: int) -> None:
    how, said = MISTAKES[mistake]
    done, innocent = run(Answers(how, length=length)), without_mistake()
    guilty = done.outputs[1]
    assert guilty.finish_reason == "error"
    with pytest.raises(RuntimeError, match=said):
        raise RuntimeError(guilty.error)
    assert guilty.error.startswith("policy Answers, request request-1, step ")
    if mistake == "raises":
        assert 'raise ValueError("the user\'s own words")' in guilty.error
    for i in (0, 2, 3):
        assert done.outputs[i].token_ids == innocent.outputs[i].token_ids
        assert done.evictions[i] == innocent.evictions[i]
    again = done.engine.generate([PROMPTS[0]], SamplingParams(max_tokens=TOKENS, seed=100))[0]
    assert again.token_ids == innocent.outputs[0].token_ids
    done.engine.check()


def test_learning_that_raises_is_blamed_on_the_request_too() -> None:
    done = run(Answers(raises, learns=True))
    assert [o.finish_reason for o in done.outputs] == ["length", "error", "length", "length"]
    assert done.outputs[1].error is not None
    assert "ValueError" in done.outputs[1].error


@dataclass
class Fussy(EvictionPolicy):
    """Raises at any length at which it should not be asked."""

    def evict_token(self, cache: CacheView) -> Tensor:
        if ((cache.length - 45) % 4 != 0).any():
            raise ValueError("asked about a row that had stopped")
        return cache.evict_lowest(cache.positions)


@pytest.mark.parametrize("lag", [1, 2, 4])
def test_a_request_that_has_stopped_is_not_blamed(lag: int) -> None:
    """The host launches steps for it that do not run; the policy is asked about them."""
    config = EngineConfig(pool_blocks=20, budget=20, evict=EvictOptions("end", 4), lag=lag)
    engine = make_engine(small().served, config, Fussy())
    stop = engine.generate([prompt(3, 45)], SamplingParams(max_tokens=3))[0].token_ids[-1]
    stopped = engine.generate([prompt(3, 45)], SamplingParams(max_tokens=20, stop_token_ids=(stop,)))[0]
    assert (stopped.finish_reason, len(stopped.token_ids)) == ("stop", 3)
    assert engine.worker.pool.n_free() == 20


@pytest.mark.parametrize("lag", [1, 3])
def test_a_failed_request_keeps_the_tokens_that_came_before(lag: int) -> None:
    config = EngineConfig(pool_blocks=20, budget=20, evict=EvictOptions("end", 3), lag=lag)
    failed = make_engine(small().served, config, Fussy()).generate([prompt(3, 45)], SamplingParams(max_tokens=20))[0]
    assert (failed.finish_reason, len(failed.token_ids)) == ("error", 4)  # the prompt's, and of three steps until the policy was asked


@dataclass
class Scribbler(EvictionPolicy):
    """Writes into what it was given."""

    def evict_token(self, cache: CacheView) -> Tensor:
        cache.length.sub_(30)
        cache.live.fill_(True)
        return torch.ones_like(cache.live)


def test_a_policy_that_writes_into_its_view_cannot_kill_the_newest_token() -> None:
    engine = make_engine(small().served, EngineConfig(pool_blocks=20, budget=20), Scribbler())
    output = engine.generate([prompt(3, 60)], SamplingParams(max_tokens=8))[0]
    assert output.evictions[0].ids == tuple(range(59))
