"""Shared prefixes: a request that starts on another's blocks ends as it would alone, whatever happens to the other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from torch import Tensor

from vtoken_sdk.policies.h2o import H2O
from vtoken_sdk.policies.random import Random
from vtoken_sdk.policies.scissorhands import Scissorhands
from vtoken_sdk.policies.streaming_llm import StreamingLLM
from vtoken_sdk.policy import CacheView, EvictionPolicy, NewTokens
from vtoken_sdk.runtime import Engine, EngineConfig, EvictOptions, ReclaimOptions, RequestOutput, SamplingParams

from .oracles import Run, assert_close, copy_some, drive, make_engine, masked_logits, prompt, small, step_audited
from .sample_policies import SnapLike

EVICTING = ("naive", "refill", "vtoken", "page1")
SHARED = prompt(0, 40)
OTHER = prompt(9, 90)
PROMPTS = [SHARED + prompt(1, 30), SHARED + prompt(2, 7), OTHER, SHARED + prompt(3, 21), SHARED[:33], OTHER[:50] + SHARED]


def engine(policy: EvictionPolicy | None, runtime: Any = "vtoken", architecture: str = "llama", **options: Any) -> Engine:
    defaults: dict[str, Any] = {"pool_blocks": 40, "max_running": 6, "chunk": 32, "budget": 0.5, "poison": True, "prefix_cache": True}
    evict = EvictOptions("end", 4)
    config = EngineConfig(**{**defaults, "evict": evict, "runtime": runtime, **options})
    return make_engine(small(architecture).served, config, policy, copy_some(2))


def params(i: int, tokens: int = 16) -> SamplingParams:
    return SamplingParams(max_tokens=tokens, seed=i, logits=True)


def alone(policy: EvictionPolicy | None, i: int, runtime: Any = "vtoken", tokens: int = 16, **options: Any) -> RequestOutput:
    """The request with nobody else and no prefix cache."""
    return drive(engine(policy, runtime, prefix_cache=False, **options), [PROMPTS[i]], [params(i, tokens)]).outputs[0]


def assert_as_alone(got: RequestOutput, want: RequestOutput) -> None:
    assert got.evictions == want.evictions
    assert got.token_ids == want.token_ids
    assert got.logits is not None and want.logits is not None
    assert_close(got.logits, want.logits)


def staggered(one: Engine, order: list[int], apart: int, tokens: int = 16) -> dict[int, RequestOutput]:
    """Add a request every few steps."""
    outputs = {}
    for i in order:
        outputs[i] = one.outputs[one.add_request(PROMPTS[i], params(i, tokens))]
        for _ in range(apart):
            step_audited(one)
    while one.has_work:
        step_audited(one)
    return outputs


@pytest.mark.parametrize("runtime", ["native", *EVICTING])
@pytest.mark.parametrize("apart", [1, 6])
def test_each_request_is_as_alone_when_prefixes_are_shared(runtime: Any, apart: int) -> None:
    """Victims of one request's prefix live on in the other; blocks with two owners are neither written nor moved in place."""
    policy = None if runtime == "native" else Random()
    one = engine(policy, runtime)
    outputs = staggered(one, list(range(len(PROMPTS))), apart)
    for i, output in outputs.items():
        assert_as_alone(output, alone(policy, i, runtime))
    hits = [output.prefix_hit_tokens for output in outputs.values()]
    assert hits[3:] == [32, 32, 48] if apart > 1 else sum(hits) >= 48
    Run(one, PROMPTS, list(outputs.values())).assert_whole()


@pytest.mark.parametrize("runtime", EVICTING)
@pytest.mark.parametrize("block_size", [1, 8, 32, 64])
def test_sharing_with_every_block_size(runtime: Any, block_size: int) -> None:
    one = engine(Random(), runtime, block_size=block_size, pool_blocks=1280 // block_size)
    outputs = staggered(one, [0, 1, 5], 5)
    for i, output in outputs.items():
        assert_as_alone(output, alone(Random(), i, runtime, block_size=block_size, pool_blocks=1280 // block_size))
    # Hashed together are 16 tokens, or a block where that is more; page1 has blocks of one token.
    unit = 16 if runtime == "page1" else max(16, block_size)
    assert outputs[1].prefix_hit_tokens == 40 // unit * unit


@pytest.mark.parametrize("packing", ["fill", "fresh"])
def test_freed_blocks_are_not_taken_for_the_old_prefix(packing: Any) -> None:
    """Two with one prefix a step apart, a third that fills what they freed, a fourth with the first prefix again."""
    options: dict[str, Any] = {"pool_blocks": 14, "reclaim": ReclaimOptions(packing, margin=0)}
    one = engine(Random(), **options)
    outputs: dict[int, RequestOutput] = {}
    for i in (0, 1):
        outputs[i] = one.outputs[one.add_request(PROMPTS[i], params(i))]
        step_audited(one)
    for i in (2, 3):
        while one.has_work:
            step_audited(one)
        outputs[i] = one.outputs[one.add_request(PROMPTS[i], params(i))]
    while one.has_work:
        step_audited(one)
    for i, output in outputs.items():
        assert_as_alone(output, alone(Random(), i, **options))
    Run(one, PROMPTS[:4], list(outputs.values())).assert_whole()


@pytest.mark.parametrize("prefill", ["chunk", "end", "never"])
@pytest.mark.parametrize(
    ("policy", "hit"),
    [(H2O(), 0), (StreamingLLM(), 32), (Scissorhands(window=12), 32), (SnapLike(window=30), 16), (SnapLike(window=60), 0)],
    ids=["h2o", "streaming_llm", "scissorhands", "snap-30", "snap-60"],
)
def test_a_hit_hides_nothing_that_the_policy_reads(policy: EvictionPolicy, hit: int, prefill: Any) -> None:
    """Attention of the skipped tokens cannot be had; nor can queries, so that the window must lie beyond the hit."""
    options: dict[str, Any] = {"evict": EvictOptions(prefill, 3), "chunk": 24}
    one = engine(policy, **options)
    outputs = staggered(one, [0, 1], 8)
    for i, output in outputs.items():
        assert_as_alone(output, alone(policy, i, **options))
    got = outputs[1].prefix_hit_tokens
    assert got == hit if prefill != "chunk" else got <= hit


def test_queries_before_an_eviction_inside_the_prompt_are_not_skipped() -> None:
    """Evicting after the chunk that ends at 32, a policy that reads 20 queries cannot have a hit of 16."""
    policy, options = SnapLike(window=20), {"evict": EvictOptions("chunk", 0), "chunk": 32, "budget": 20}
    one = engine(policy, **options)
    outputs = staggered(one, [0, 3], 8)
    assert_as_alone(outputs[3], alone(policy, 3, **options))
    assert outputs[3].prefix_hit_tokens == 0


@pytest.mark.parametrize("architecture", ["mistral-window", "gemma2"])
@pytest.mark.parametrize("policy", [None, Random()], ids=["none", "random"])
def test_hits_and_sliding_windows(architecture: str, policy: EvictionPolicy | None) -> None:
    one = engine(policy, architecture=architecture)
    for i, output in staggered(one, [0, 1, 3], 7).items():
        assert_as_alone(output, alone(policy, i, architecture=architecture))


@pytest.mark.parametrize("runtime", EVICTING)
def test_prefixes_give_way_before_requests_do(runtime: Any) -> None:
    """A pool full of cached prefixes is a free pool."""
    one = engine(Random(), runtime, pool_blocks=12)
    for seed in range(6):
        ids = prompt(20 + seed, 100)
        output = drive(one, [ids], SamplingParams(max_tokens=30)).outputs[0]
        assert output.finish_reason == "length" and output.preemptions == 0
        assert output.logits is not None
        assert_close(output.logits, masked_logits(small().oracle, ids, output.token_ids, output.evictions))
    assert one.worker.index is not None and len(one.worker.index) > 0


def test_prefix_hits_survive_preemption_and_small_pools() -> None:
    one = engine(Random(), pool_blocks=11, budget=0.9, evict=EvictOptions("end", 0))
    outputs = staggered(one, [0, 1, 3, 4], 4, tokens=50)
    assert sum(o.preemptions for o in outputs.values()) >= 1
    for i, output in outputs.items():
        assert_as_alone(output, alone(Random(), i, tokens=50, budget=0.9, evict=EvictOptions("end", 0)))


def test_without_the_cache_nothing_is_shared() -> None:
    one = engine(None, prefix_cache=False)
    assert [o.prefix_hit_tokens for o in staggered(one, [0, 1], 6).values()] == [0, 0]
    assert one.worker.index is None


@dataclass
class Counts(EvictionPolicy):
    """Learns from every step, and reads no attention."""

    def sync_new_tokens(self, cache: CacheView, new: NewTokens) -> None:
        cache.state["steps"] += new.count.float()

    def evict_token(self, cache: CacheView) -> Tensor:
        return cache.evict_lowest(-cache.state["steps"].sin())


def test_a_policy_that_learns_from_every_step_misses_none() -> None:
    logs = []
    for cached in (False, True):
        config = EngineConfig(prefix_cache=cached, pool_blocks=60, chunk=8, budget=20)
        engine = make_engine(small().served, config, Counts())
        first, second = (engine.generate([prompt(1, 60)], SamplingParams(max_tokens=20))[0] for _ in range(2))
        assert first.evictions == second.evictions
        logs.append(first.evictions)
    assert logs[0] == logs[1]
