"""A request's tokens and victims are its own, whoever runs beside it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from vtoken_sdk.policies.random import Random
from vtoken_sdk.runtime import Engine, EngineConfig, EvictOptions, SamplingParams

from .oracles import Run, drive, greedy, make_engine, prompt, small

PROMPTS = [prompt(i, 5 + 3 * i) for i in range(16)]


def engine(runtime: Any = "native", **options: Any) -> Engine:
    defaults: dict[str, Any] = {"pool_blocks": 90, "max_running": 16, "chunk": 64, "prefill_tokens": 256}
    config = EngineConfig(**{**defaults, "runtime": runtime, "budget": 0.6, "evict": EvictOptions("end", 2), **options})
    return make_engine(small().served, config, Random())


def tokens(run: Run) -> list[list[int]]:
    return [output.token_ids for output in run.outputs]


@pytest.mark.parametrize("runtime", ["native", "vtoken"])
@pytest.mark.parametrize(
    "params",
    [SamplingParams(8), SamplingParams(8, temperature=0.9, top_k=1), SamplingParams(8, temperature=0.8, top_p=0.9)],
    ids=["greedy", "top-k-1", "sampled"],
)
def test_alone_by_four_all_sixteen_and_backwards(params: SamplingParams, runtime: Any) -> None:
    each = [replace(params, seed=i) for i in range(16)]
    together = drive(engine(runtime), PROMPTS, each)
    backwards = drive(engine(runtime), PROMPTS[::-1], each[::-1])
    assert tokens(backwards)[::-1] == tokens(together)
    assert backwards.evictions[::-1] == together.evictions
    for first in (0, 8):
        some = drive(engine(runtime), PROMPTS[first : first + 4], each[first : first + 4])
        assert tokens(some) == tokens(together)[first : first + 4]
        assert some.evictions == together.evictions[first : first + 4]
    assert tokens(drive(engine(runtime), [PROMPTS[5]], [each[5]])) == [tokens(together)[5]]
    if runtime == "native" and params.top_k == 1:
        assert tokens(together)[3] == greedy(small().oracle, PROMPTS[3], 8)


@pytest.mark.parametrize("seed", [0, 2**31, 2**62, 2**63 - 1])
def test_seeds_of_any_size(seed: int) -> None:
    sampled = SamplingParams(3, temperature=1.0)
    assert len(engine(seed=seed).generate([PROMPTS[0]], sampled)[0].token_ids) == 3
    assert len(engine().generate([PROMPTS[0]], replace(sampled, seed=seed))[0].token_ids) == 3


def test_a_temperature_near_zero_is_greedy() -> None:
    """Logits divided by it would overflow."""
    cold = engine().generate(PROMPTS[:4], SamplingParams(6, temperature=1e-40))
    assert [o.token_ids for o in cold] == [o.token_ids for o in engine().generate(PROMPTS[:4], SamplingParams(6))]
