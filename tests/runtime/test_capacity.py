"""The estimate of how many equal requests a pool holds, against an engine that serves more of them than fit."""

from __future__ import annotations

from typing import Any

import pytest

from vtoken_sdk.policies.random import Random
from vtoken_sdk.runtime import EngineConfig, EvictOptions, SamplingParams

from .oracles import make_engine, prompt, small, step_audited

PROMPT, OUTPUT = 128, 40


@pytest.mark.parametrize("prefill", ["end", "chunk"])
@pytest.mark.parametrize("runtime", ["native", "naive", "refill", "vtoken", "page1"])
def test_the_estimate_is_what_the_engine_reaches(runtime: Any, prefill: Any) -> None:
    evict = EvictOptions(prefill, 4)
    config = EngineConfig(runtime=runtime, pool_blocks=45, chunk=32, prefill_chunks=2, budget=0.5, max_running=16, evict=evict)
    engine = make_engine(small().served, config, Random())
    estimate = engine.admits(PROMPT, OUTPUT, config.pool_blocks)
    assert estimate >= (4 if runtime in ("native", "naive") else 5)
    for i in range(2 * estimate):
        engine.add_request(prompt(i, PROMPT), SamplingParams(max_tokens=OUTPUT))
    while engine.has_work:
        step_audited(engine)
    assert abs(engine.concurrency_peak - estimate) <= 1
    assert {output.finish_reason for output in engine.outputs.values()} == {"length"}
