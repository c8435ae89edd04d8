"""Two streams and a host that runs ahead, with delays on either side: nothing may read or write too early. Needs a GPU.

Nothing here looks at the device between steps, which would hide what it is after.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.runtime.oracles import Tiny, assert_close, build, masked_logits, prompt
from vtoken_sdk.policies.h2o import H2O
from vtoken_sdk.policies.random import Random
from vtoken_sdk.policies.streaming_llm import StreamingLLM
from vtoken_sdk.policy import CacheView, EvictionPolicy
from vtoken_sdk.runtime import ConfigError, Engine, EngineConfig, EvictOptions, ReclaimOptions, RequestOutput, SamplingParams
from vtoken_sdk.runtime.copy_stream import SideStream
from vtoken_sdk.runtime.kv_cache import KVCache
from vtoken_sdk.runtime.model_loader import LoadedModel
from vtoken_sdk.runtime.planner import Plan

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

MILLISECOND = 1_700_000  # cycles
SMALL: dict[str, Any] = {
    "num_hidden_layers": 2, "hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
    "max_position_embeddings": 32768,
}  # fmt: skip


@pytest.fixture(scope="module")
def model() -> Tiny:
    """Served on the GPU, judged on the CPU."""
    return Tiny(LoadedModel.from_transformers(torch.nn.Module.to(build("llama", **SMALL), "cuda")), build("llama", **SMALL))


class Delayed(SideStream):
    """A copy stream that is late, synchronous, or whose plans are followed by allocations that would take freed buffers."""

    def __init__(self, cache: KVCache, *, delay_ms: int = 0, wait: bool = False, allocate: bool = False) -> None:
        super().__init__(cache)
        self.delay_ms, self.wait, self.allocate = delay_ms, wait, allocate

    def submit(self, plan: Plan) -> None:
        with torch.cuda.stream(self.stream):
            torch.cuda._sleep(self.delay_ms * MILLISECOND)
        super().submit(plan)
        if self.wait:
            torch.cuda.synchronize()
        if self.allocate:
            for _ in range(4):
                torch.full_like(plan.source_slot, 3)


def run(
    model: Tiny, policy: EvictionPolicy | None, prompts: Sequence[Sequence[int]], tokens: int, *, main_ms: int = 0,
    stream: dict[str, Any] | None = None, before: Callable[[Engine], None] = lambda engine: None, **options: Any,
) -> list[RequestOutput]:  # fmt: skip
    """Teacher-forced, dead slots holding NaN; audited once all is done."""
    given: dict[str, Any] = {"pool_blocks": 58, "max_running": 16, "chunk": 64, "budget": 0.5, "poison": True}
    engine = Engine(model.served, EngineConfig(**{**given, **options}), policy)
    if engine.worker.reclaimer is not None and stream is not None:
        engine.worker.reclaimer.stream = Delayed(engine.worker.cache, **stream)
    before(engine)
    for i, ids in enumerate(prompts):
        engine.add_request(ids, SamplingParams(forced=tuple(prompt(200 + i, tokens)), logits=True, seed=i))
    while engine.has_work:
        torch.cuda._sleep(main_ms * MILLISECOND)
        engine.step()
        assert engine.steps < 3000, "no end in sight"
    engine.check()
    assert engine.worker.pool.n_free() == engine.config.n_blocks
    return [replace(output, logits=None if output.logits is None else output.logits.cpu()) for output in engine.outputs.values()]


def assert_same(some: Sequence[RequestOutput], others: Sequence[RequestOutput]) -> None:
    for one, other in zip(some, others, strict=True):
        assert one.error is None and other.error is None, (one.error, other.error)
        assert one.evictions == other.evictions
        assert one.logits is not None and other.logits is not None
        assert_close(one.logits, other.logits)


EVERY = {"evict": EvictOptions("chunk", 1)}
PROMPTS = [prompt(i, 40 + 5 * i) for i in range(16)]


@pytest.fixture(scope="module")
def uncompacted(model: Tiny) -> list[RequestOutput]:
    made = run(model, Random(), PROMPTS, 40, runtime="naive", pool_blocks=400, **EVERY)
    for ids, output in zip(PROMPTS, made, strict=True):
        assert output.logits is not None
        assert_close(output.logits, masked_logits(model.oracle, ids, output.token_ids, output.evictions))
    return made


WAYS: dict[str, dict[str, Any]] = {
    "synchronous": {"stream": {"wait": True}},
    "asynchronous": {"stream": {}},
    "copies late": {"stream": {"delay_ms": 50}},
    "main stream late": {"stream": {}, "main_ms": 20},
    "allocations after each plan": {"stream": {"allocate": True, "delay_ms": 5}},
    "back to back under delay": {"stream": {"delay_ms": 50}, "reclaim": ReclaimOptions(publish_after=1)},
    "into new blocks": {"stream": {"delay_ms": 20}, "reclaim": ReclaimOptions("fresh", margin=2, move_cap=64)},
}


@pytest.mark.parametrize("repetition", range(20))
@pytest.mark.parametrize("way", WAYS)
def test_copies_and_decoding_are_ordered_both_ways(model: Tiny, uncompacted: list[RequestOutput], way: str, repetition: int) -> None:
    """A pool of 40 % of the demand, compaction whenever there is something to gain."""
    assert_same(run(model, Random(), PROMPTS, 40, **EVERY, **WAYS[way]), uncompacted)


@pytest.mark.parametrize("at", [(200,), (100, 200, 300)])
def test_a_compaction_spoils_nothing_later(model: Tiny, at: tuple[int, ...]) -> None:
    """Two long generations side by side, compacted at these steps alone; the same on the CPU's path."""
    prompts, options = [prompt(0, 70), prompt(1, 45)], {"budget": 0.7, "pool_blocks": 200, "evict": EvictOptions("end", 16)}

    def only_then(engine: Engine) -> None:
        plan = engine.compaction.plan_if_worth_it
        engine.compaction.plan_if_worth_it = lambda step, last: plan(step, last) if step in at else None  # type: ignore[method-assign]

    plain = run(model, Random(), prompts, 600, runtime="naive", **options)
    packed = run(model, Random(), prompts, 600, before=only_then, stream={"delay_ms": 20}, **options)
    twins = run(model, Random(), prompts, 600, before=only_then, kernels="torch", **options)
    assert_same(packed, plain)
    assert_same(twins, plain)
    for ids, output in zip(prompts, packed, strict=True):
        assert output.logits is not None
        assert_close(output.logits, masked_logits(model.oracle, ids, output.token_ids, output.evictions))


@pytest.mark.parametrize("main_ms", [0, 10])
def test_blocks_of_requests_that_end_are_not_reused_too_early(model: Tiny, main_ms: int) -> None:
    """Every five steps a request is aborted and another takes its blocks, with steps launched ahead."""
    config = EngineConfig(pool_blocks=30, max_running=4, chunk=32, budget=0.5, poison=True, evict=EvictOptions("chunk", 2))
    engine = Engine(model.served, config, Random())
    engine.worker.reclaimer.stream = Delayed(engine.worker.cache, delay_ms=3)  # type: ignore[union-attr]
    prompts: dict[str, list[int]] = {}

    def add() -> None:
        i = len(prompts)
        name = f"r{i}"
        engine.add_request(ids := prompt(i, 30 + i % 40), SamplingParams(forced=tuple(prompt(500 + i, 60)), logits=True), request_id=name)
        prompts[name] = ids

    for _ in range(6):
        add()
    for step in range(400):
        torch.cuda._sleep(main_ms * MILLISECOND)
        engine.step()
        if step % 5 == 4:
            running = engine.scheduler.running
            if running and not running[0].finished:
                engine.abort(running[0].id)
            add()
    while engine.has_work:
        engine.step()
    engine.check()
    judged = 0
    for name, ids in prompts.items():
        output = engine.outputs[name]
        assert output.error is None
        if output.token_ids and output.logits is not None:
            judged += len(output.token_ids)
            assert_close(output.logits.cpu(), masked_logits(model.oracle, ids, output.token_ids, output.evictions))
    assert judged > 400


def waits(act: Callable[[], None]) -> dict[str, int]:
    """How often the host waited for the device, by the runtime call that did."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]) as profile:
        act()
    names = ("cudaEventSynchronize", "cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaMemcpy")
    found = {event.key: event.count for event in profile.key_averages() if event.key in names}
    found.pop("cudaDeviceSynchronize", None)  # the profiler's own, at its end
    return found


@pytest.mark.parametrize("captured", [False, True])
@pytest.mark.parametrize("policy", [H2O(), Random(), StreamingLLM(), None], ids=["h2o", "random", "streaming_llm", "native"])
def test_the_host_waits_once_a_step(model: Tiny, policy: EvictionPolicy | None, captured: bool) -> None:
    """Evictions, plans, publications, ends of requests and admissions included."""
    if captured and policy is None:
        pytest.skip("native has no policy to capture")
    runtime = "vtoken" if policy is not None else "native"
    config = EngineConfig(runtime=runtime, pool_blocks=300, max_running=8, chunk=64, evict=EvictOptions("end", 4), capture_policy=captured)  # type: ignore[arg-type]
    engine = Engine(model.served, config, policy)

    def load(n: int) -> None:
        for i in range(n):
            engine.add_request(prompt(i, 60 + i), SamplingParams(max_tokens=20 + i, ignore_eos=True))

    load(12)  # captures graphs, compiles kernels, grows the table
    for _ in engine.run():
        pass
    load(12)
    before = engine.steps

    def finish() -> None:
        for _ in engine.run():
            pass

    found = waits(finish)
    assert found.get("cudaStreamSynchronize", 0) == 0 and found.get("cudaMemcpy", 0) == 0, found
    assert found.get("cudaEventSynchronize", 0) <= engine.steps - before + 1, (found, engine.steps - before)


# -- graphs -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", [H2O(), Random(), StreamingLLM()], ids=["h2o", "random", "streaming_llm"])
@pytest.mark.parametrize("batch", [*range(1, 10), 17])
def test_graphs_change_nothing_at_any_batch_size(model: Tiny, policy: EvictionPolicy, batch: int) -> None:
    prompts = [prompt(i, 30 + 7 * i) for i in range(batch)]
    options: dict[str, Any] = {"pool_blocks": 400, "max_running": 17, "evict": EvictOptions("chunk", 3)}
    eager = run(model, policy, prompts, 24, cuda_graphs=False, **options)
    assert_same(run(model, policy, prompts, 24, capture_policy=False, **options), eager)
    assert_same(run(model, policy, prompts, 24, capture_policy=True, **options), eager)


@pytest.mark.parametrize("policy", [H2O(), StreamingLLM()], ids=["h2o", "streaming_llm"])
@pytest.mark.parametrize("capture", [False, True])
def test_graphs_made_ready_before_the_first_request_change_nothing(model: Tiny, policy: EvictionPolicy, capture: bool) -> None:
    prompts = [prompt(i, 30 + 7 * i) for i in range(9)]
    options: dict[str, Any] = {"pool_blocks": 400, "max_running": 9, "evict": EvictOptions("chunk", 3), "capture_policy": capture}
    cold = run(model, policy, prompts, 24, **options)
    assert_same(run(model, policy, prompts, 24, before=lambda engine: engine.warm_up(120), **options), cold)


@pytest.mark.parametrize("policy", [None, H2O()], ids=["native", "h2o"])
def test_slots_that_nobody_owns_keep_what_is_in_them(model: Tiny, policy: EvictionPolicy | None) -> None:
    """Padded rows write nowhere, above all not to the pool's last slot."""
    runtime = "native" if policy is None else "vtoken"
    caches: list[KVCache] = []

    def fill(engine: Engine) -> None:
        cache = engine.worker.cache
        caches.append(cache)
        for pool in (cache.keys, cache.values):
            pool[:, : cache.n_slots].fill_(777.0)

    prompts = [prompt(i, 40) for i in range(5)]
    made = run(model, policy, prompts, 20, before=fill, runtime=runtime, pool_blocks=100, poison=False)
    assert all(output.finish_reason == "length" for output in made)
    cache = caches[0]
    used = 5 * 5 * 16
    for pool in (cache.keys, cache.values):
        assert bool((pool[:, used : cache.n_slots] == 777.0).all())


def test_a_prompt_as_long_as_the_model_goes(model: Tiny) -> None:
    ids = prompt(3, 4090)
    made = run(model, H2O(), [ids], 6, pool_blocks=300, chunk=1024, poison=False)[0]
    assert made.logits is not None
    assert_close(made.logits, masked_logits(model.oracle, ids, made.token_ids, made.evictions))


def test_more_requests_than_the_largest_graph_of_the_list(model: Tiny) -> None:
    prompts = [prompt(i, 3 + i % 5) for i in range(530)]
    options: dict[str, Any] = {"pool_blocks": 1200, "max_running": 530, "prefill_tokens": 512, "poison": False}
    assert_same(run(model, Random(), prompts, 12, **options), run(model, Random(), prompts, 12, cuda_graphs=False, **options))


class Counting(EvictionPolicy):
    """Keeps a count on the host, which a graph cannot see."""

    def __init__(self) -> None:
        self.calls = 0

    def evict_token(self, cache: CacheView) -> Tensor:
        self.calls += 1
        return cache.evict_lowest((cache.positions * 7919 * self.calls) % 1009)


class Reading(EvictionPolicy):
    """Reads a number of the device on the host."""

    def evict_token(self, cache: CacheView) -> Tensor:
        return cache.evict_lowest(cache.positions * float(cache.length.max()))


class Promising(Counting):
    capturable = True


@pytest.mark.parametrize(
    ("policy", "wanted", "captured"),
    [(H2O(), None, True), (H2O(), False, False), (Promising(), None, True), (Reading(), None, False), (None, None, False)],
    ids=["h2o", "h2o, no", "a promise", "no promise", "no policy"],
)
def test_policies_that_promise_it_are_captured(model: Tiny, policy: EvictionPolicy | None, wanted: bool | None, captured: bool) -> None:
    config = EngineConfig(runtime="vtoken" if policy else "native", pool_blocks=300, max_running=8, capture_policy=wanted)
    engine = Engine(model.served, config, policy)
    assert engine.worker.graphs is not None
    assert engine.worker.graphs.captured is captured
    if isinstance(policy, Promising):
        engine.add_request(prompt(1, 50), SamplingParams(max_tokens=20, ignore_eos=True))
        with pytest.raises(ConfigError, match=r"Promising\.evict_token gives something else in a CUDA graph"):
            list(engine.run())


@pytest.mark.parametrize(
    ("policy", "says"),
    [(Counting(), "gives something else in a CUDA graph"), (Reading(), "cannot be captured in a CUDA graph")],
    ids=["counts", "reads"],
)
def test_policies_that_no_graph_can_hold_are_refused(model: Tiny, policy: EvictionPolicy, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        run(model, policy, PROMPTS[:3], 20, capture_policy=True)
    assert_same(run(model, H2O(), PROMPTS[:3], 20, capture_policy=False), run(model, H2O(), PROMPTS[:3], 20))


# -- shapes and memory ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("block_size", [1, 8, 16, 32, 64])
@pytest.mark.parametrize("head_dim", [32, 64, 80, 96, 128, 256])
def test_head_and_block_sizes(head_dim: int, block_size: int) -> None:
    shape = {**SMALL, "hidden_size": 96, "head_dim": head_dim, "num_attention_heads": 6}
    served = LoadedModel.from_transformers(torch.nn.Module.to(build("llama", **shape), "cuda"))
    pair = Tiny(served, build("llama", **shape))
    prompts = [prompt(0, 90), prompt(1, 33), prompt(2, 5)]
    made = run(pair, Random(), prompts, 20, block_size=block_size, pool_blocks=1200 // block_size, evict=EvictOptions("chunk", 3))
    for ids, output in zip(prompts, made, strict=True):
        assert output.logits is not None
        assert_close(output.logits, masked_logits(pair.oracle, ids, output.token_ids, output.evictions))


@pytest.mark.parametrize("policy", [H2O(), Random()], ids=["h2o", "random"])
def test_eviction_needs_no_matrix_of_attention(model: Tiny, policy: EvictionPolicy) -> None:
    """16k queries over 16k keys would be a gigabyte a head in fp32."""

    def peak(policy: EvictionPolicy | None) -> int:
        config = EngineConfig(runtime="vtoken" if policy else "native", pool_blocks=1100, max_running=1, chunk=16384)
        engine = Engine(model.served, config, policy)
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        engine.generate([prompt(0, 16384)], SamplingParams(max_tokens=4, ignore_eos=True))
        return torch.cuda.max_memory_allocated() - before

    native = peak(None)
    assert peak(policy) < native + 256 * 2**20
