"""Budgets at their edges: one token, above the length, a ratio that rounds to nothing, protected tokens that exceed it."""

from __future__ import annotations

import math
from typing import Any

import pytest

from vtoken_sdk.policies.h2o import H2O
from vtoken_sdk.policies.random import Random
from vtoken_sdk.policies.scissorhands import Scissorhands
from vtoken_sdk.policies.streaming_llm import StreamingLLM
from vtoken_sdk.policy import EvictionPolicy
from vtoken_sdk.runtime import ConfigError, EngineConfig, EvictOptions, SamplingParams

from .oracles import SMALL, Run, assert_close, dense_logits, drive, make_engine, prompt, tiny

LENGTHS = (1, 2, 3, 15, 16, 17, 40)
PROMPTS = [prompt(i, n) for i, n in enumerate(LENGTHS)]
TOKENS = 13  # four evictions in decode
HUGE = 10_000
POLICIES: dict[str, EvictionPolicy] = {
    **{f"h2o-recent-{x}": H2O(recent=x) for x in (0.0, 1.0)},
    **{f"sinks-{x}": StreamingLLM(sinks=x) for x in (4, HUGE)},
    **{f"random-{s}-{r}": Random(sinks=s, recent=r) for s, r in ((0, 0), (4, 16), (0, HUGE))},
    **{f"scissorhands-{r}-{w}": Scissorhands(recent=r, window=w) for r, w in ((HUGE, HUGE),)},
}
BUDGETS = (1, 4, 16, 0.01, 0.6)


def run(policy: EvictionPolicy, budget: float | int, every: int = 3, runtime: Any = "vtoken") -> Run:
    model = tiny("llama", **{**SMALL, "num_hidden_layers": 1})
    options: dict[str, Any] = {"pool_blocks": 40, "max_running": 8, "chunk": 16, "prefill_tokens": 112, "poison": True}
    config = EngineConfig(runtime=runtime, budget=budget, evict=EvictOptions("chunk", every), **options)
    return drive(make_engine(model.served, config, policy), PROMPTS, SamplingParams(max_tokens=TOKENS))


def kept(budget: float | int, length: int) -> int:
    return budget if isinstance(budget, int) else max(1, math.ceil(budget * length))


@pytest.mark.parametrize("budget", BUDGETS)
@pytest.mark.parametrize("policy", POLICIES.values(), ids=list(POLICIES))
def test_the_budget_holds_and_the_cache_is_never_empty(policy: EvictionPolicy, budget: float | int) -> None:
    """After an eviction at most the budget; before it at most `every` tokens more; and the logits are the masked forward's."""
    one = run(policy, budget)
    one.assert_masked(tiny("llama", **{**SMALL, "num_hidden_layers": 1}).oracle)
    for i, n in enumerate(LENGTHS):
        most = kept(budget, n)
        for generated in range(TOKENS - 1):
            live = len(one.live_at(n + generated, i))
            assert live >= 1
            assert live <= most + generated % 3 or n + generated <= most, f"prompt {n}, step {generated}: {live} live, budget {most}"


@pytest.mark.parametrize("budget", [0.99, 1.0, HUGE])
@pytest.mark.parametrize(
    "policy", [H2O(), StreamingLLM(), Random(), Scissorhands()], ids=["h2o", "streaming_llm", "random", "scissorhands"]
)
def test_a_budget_above_the_length_evicts_nothing(policy: EvictionPolicy, budget: float | int) -> None:
    """A ratio is of the prompt, so that generated tokens may go later; nothing goes before the length is above the budget."""
    model = tiny("llama", **{**SMALL, "num_hidden_layers": 1})
    one = run(policy, budget, every=0)
    for i, (ids, output) in enumerate(zip(PROMPTS, one.outputs, strict=True)):
        if kept(budget, len(ids)) >= len(ids):
            assert one.evictions[i] == []
            assert output.logits is not None
            assert_close(output.logits, dense_logits(model.oracle, ids, output.token_ids))


@pytest.mark.parametrize("budget", [0, -1, 0.0, -0.5, 1.5, math.nan, math.inf, True, "64", None])
def test_impossible_budgets_are_refused_by_name(budget: Any) -> None:
    with pytest.raises(ConfigError, match=r"budget="):
        EngineConfig(budget=budget)
