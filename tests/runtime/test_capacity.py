"""The estimate of how many equal requests a pool holds, against an engine that serves more of them than fit."""

from __future__ import annotations

from typing import Any

import pytest

from vtoken_sdk.policies.random import Random
from vtoken_sdk.runtime import EngineConfig, EvictOptions, ReclaimOptions, RequestRejected, SamplingParams
from vtoken_sdk.runtime.capacity import concurrent_requests

from .oracles import make_engine, prompt, small, step_audited

PROMPT, OUTPUT = 96, 20


@pytest.mark.parametrize(
    ("runtime", "prefill"),
    [("native", "end"), *((name, when) for name in ("naive", "refill", "vtoken", "page1") for when in ("end", "chunk"))],
)
def test_the_estimate_is_what_the_engine_reaches(runtime: Any, prefill: Any) -> None:
    evict = EvictOptions(prefill, 4)
    config = EngineConfig(runtime=runtime, pool_blocks=36, chunk=32, prefill_tokens=64, budget=0.5, max_running=16, evict=evict)
    engine = make_engine(small().served, config, Random())
    estimate = engine.admits(PROMPT, OUTPUT, config.pool_blocks)
    assert estimate >= (4 if runtime in ("native", "naive") else 5)
    for i in range(estimate + 3):  # more than can run at once
        engine.add_request(prompt(i, PROMPT), SamplingParams(max_tokens=OUTPUT))
    while engine.has_work:
        step_audited(engine)
    assert abs(engine.concurrency_peak - estimate) <= 1
    assert {output.finish_reason for output in engine.outputs.values()} == {"length"}


def test_the_estimate_counts_what_is_generated() -> None:
    """32 blocks a request at its end, of which 64 hold two; with a budget of 32 tokens, a few blocks do."""
    assert concurrent_requests(EngineConfig(runtime="native"), 64, 448, 64, evicts=False) == 2
    assert concurrent_requests(EngineConfig(runtime="naive", budget=32), 64, 448, 64, evicts=True) == 2  # promises nothing
    assert concurrent_requests(EngineConfig(runtime="vtoken", budget=32), 64, 448, 64, evicts=True) > 10


@pytest.mark.parametrize(
    ("runtime", "reclaim", "prefix_cache"),
    [
        ("page1", ReclaimOptions(), False),
        ("refill", ReclaimOptions(), False),
        ("refill", ReclaimOptions(), True),
        ("vtoken", ReclaimOptions(), False),
        ("vtoken", ReclaimOptions(), True),
        ("vtoken", ReclaimOptions(slack=16), False),
        ("vtoken", ReclaimOptions(threshold=0.5), False),
        ("vtoken", ReclaimOptions("fresh"), False),
        ("vtoken", ReclaimOptions("fresh", margin=0), True),
        ("vtoken", ReclaimOptions(move_cap=8, publish_after=5), False),
    ],
)
@pytest.mark.parametrize("prefill", ["end", "chunk"])
def test_a_request_that_is_taken_in_is_served(runtime: Any, reclaim: ReclaimOptions, prefix_cache: bool, prefill: Any) -> None:
    """In the smallest pool that admission accepts."""
    evict = EvictOptions(prefill, 4)
    options: dict[str, Any] = {"runtime": runtime, "reclaim": reclaim, "prefix_cache": prefix_cache, "evict": evict}
    options |= {"block_size": 8, "chunk": 16, "budget": 64, "max_running": 2}
    for pool in range(1, 30):
        engine = make_engine(small().served, EngineConfig(**options, pool_blocks=pool), Random())
        try:
            engine.add_request(prompt(1, 160), SamplingParams(max_tokens=20))
        except RequestRejected:
            continue
        while engine.has_work:
            step_audited(engine)
            assert engine.steps < 500
        (output,) = engine.outputs.values()
        assert (output.finish_reason, len(output.token_ids)) == ("length", 20), pool
        return
    raise AssertionError("no pool was large enough")
