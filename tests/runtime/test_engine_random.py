"""Engines of random configuration against the masked dense forward and against each other."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
from hypothesis import HealthCheck, given, settings

from vtoken_sdk.policies.h2o import H2O
from vtoken_sdk.policies.random import Random
from vtoken_sdk.policies.scissorhands import Scissorhands
from vtoken_sdk.policies.streaming_llm import StreamingLLM
from vtoken_sdk.runtime import EngineConfig, EvictOptions, ReclaimOptions, RequestRejected, SamplingParams

from .oracles import Run, copy_some, make_engine, prompt, small, step_audited
from .sample_policies import SnapLike

POLICIES = (
    None,
    H2O(),
    H2O(recent=0.1),
    Random(),
    Random(sinks=2, fresh=False),
    StreamingLLM(),
    Scissorhands(window=9, recent=3),
    SnapLike(7),
)
RECLAIM = st.builds(
    ReclaimOptions,
    packing=st.sampled_from(["fill", "fresh"]),
    threshold=st.sampled_from([0.25, 0.6, 1.0]),
    margin=st.integers(0, 3),
    slack=st.integers(0, 4),
    move_cap=st.sampled_from([4, 30, 4096]),
    publish_after=st.integers(1, 4),
    refill=st.booleans(),
    stream=st.sampled_from(["side", "main"]),
)
OPTIONS: dict[str, Any] = {
    "block_size": st.sampled_from([1, 8, 16, 32]),
    "max_running": st.sampled_from([4, 4, 2, 1]),
    "chunk": st.sampled_from([5, 16, 24, 64]),
    "prefill_tokens": st.sampled_from([None, 1, 30, 80]),
    "budget": st.sampled_from([1, 7, 20, 0.3, 0.8]),
    "evict": st.builds(EvictOptions, st.sampled_from(["chunk", "end", "never"]), st.sampled_from([0, 1, 3, 8])),
    "reclaim": RECLAIM,
    "prefix_cache": st.booleans(),
    "lag": st.integers(1, 3),
    "poison": st.booleans(),
}
REQUEST = st.tuples(st.integers(0, 2), st.integers(1, 60), st.integers(1, 40), st.integers(0, 6))  # family, length, tokens, steps before it


def serve(architecture: str, config: EngineConfig, policy: Any, requests: list[tuple[int, int, int, int]], copies: int) -> Run | None:
    """Requests of a family share a prefix. None where the pool is too small for one of them."""
    engine = make_engine(small(architecture).served, config, policy, copy_some(copies))
    prompts, names = [], []
    for i, (family, length, tokens, after) in enumerate(requests):
        ids = (prompt(family, 36) + prompt(100 + i, 60))[:length] if length > 36 else prompt(family, 36)[:length]
        try:
            names.append(engine.add_request(ids, SamplingParams(forced=tuple(prompt(200 + i, tokens)), logits=True, seed=i)))
        except RequestRejected:
            return None
        prompts.append(ids)
        for _ in range(after):
            step_audited(engine)
    while engine.has_work:
        step_audited(engine)
        assert engine.steps < 2_000, "no end in sight"
    run = Run(engine, prompts, [engine.outputs[name] for name in names])
    run.assert_whole()
    return run


@settings(max_examples=20, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(
    architecture=st.sampled_from(["llama", "llama", "qwen3", "mistral-window", "gemma2"]),
    policy=st.sampled_from(POLICIES),
    options=st.fixed_dictionaries(OPTIONS),
    tokens_in_pool=st.sampled_from([64, 96, 128, 640]),
    runtimes=st.permutations(["naive", "refill", "vtoken", "page1"]),
    requests=st.lists(REQUEST, min_size=2, max_size=5),
    copies=st.integers(0, 5),
)
def test_any_engine_is_the_masked_forward_and_any_two_have_the_same_victims(
    architecture: str, policy: Any, options: dict[str, Any], tokens_in_pool: int, runtimes: list[Any], requests: Any, copies: int
) -> None:
    """Two runtimes, one with all the room it likes, one with little."""
    size = options["block_size"]
    tight = EngineConfig(**options, runtime=runtimes[0], pool_blocks=tokens_in_pool // size)
    roomy = EngineConfig(**{**options, "prefix_cache": False, "lag": 1}, runtime=runtimes[1], pool_blocks=1600 // size)
    got, want = serve(architecture, tight, policy, requests, copies), serve(architecture, roomy, policy, requests, copies)
    assert want is not None
    want.assert_masked(small(architecture).oracle)
    if got is None:
        return
    for one, other in zip(got.outputs, want.outputs, strict=True):
        assert one.error is None and one.logits is not None and other.logits is not None
        assert one.finish_reason in ("length", "capacity")
        n = len(one.token_ids)
        assert n == len(other.token_ids) or one.finish_reason == "capacity"
        known = [e for e in other.evictions if e.length <= one.prompt_tokens + n - 1] if n < len(other.token_ids) else other.evictions
        assert one.evictions == known or one.finish_reason == "capacity"
        if n:
            assert float((one.logits - other.logits[:n]).abs().max()) < 1e-3
