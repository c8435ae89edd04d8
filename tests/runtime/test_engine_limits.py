"""Requests that cannot fit are refused with the numbers; those that outgrow the pool end with a reason; nobody starves."""

from __future__ import annotations

import pytest

from vtoken_sdk.policies.h2o import H2O
from vtoken_sdk.policies.random import Random
from vtoken_sdk.policies.streaming_llm import StreamingLLM
from vtoken_sdk.runtime import EngineConfig, EvictOptions, RequestRejected, SamplingParams
from vtoken_sdk.runtime.model_loader import LoadedModel

from .oracles import SMALL, build, drive, make_engine, prompt, small, step_audited


def config(pool: int, runtime: str = "native", **options: object) -> EngineConfig:
    return EngineConfig(runtime=runtime, pool_blocks=pool, chunk=32, **options)  # type: ignore[arg-type]  # keywords of the test


def test_a_prompt_larger_than_the_pool_is_refused_and_the_others_run() -> None:
    engine = make_engine(small().served, config(8))
    with pytest.raises(RequestRejected, match=r"needs 13 blocks of 16 tokens.*the pool has 8.*pool_blocks"):
        engine.add_request(prompt(0, 200), SamplingParams(max_tokens=1))
    assert not engine.has_work
    run = drive(engine, [prompt(i, 20) for i in range(3)], SamplingParams(max_tokens=5))
    assert [o.finish_reason for o in run.outputs] == ["length"] * 3


@pytest.mark.parametrize(("n", "fits"), [(127, True), (128, True), (129, False)])
def test_the_pool_can_be_filled_to_the_last_slot(n: int, fits: bool) -> None:
    """The last token that is sampled is never written, so 128 slots hold a prompt of 128 and one new token."""
    engine = make_engine(small().served, config(8))
    if fits:
        run = drive(engine, [prompt(0, n)], SamplingParams(max_tokens=1))
        assert run.outputs[0].finish_reason == "length"
    else:
        with pytest.raises(RequestRejected, match="needs 9 blocks"):
            engine.add_request(prompt(0, n), SamplingParams(max_tokens=1))


@pytest.mark.parametrize(("n", "new"), [(300, 1), (250, 20), (256, 2)])
@pytest.mark.parametrize("runtime", ["native", "vtoken"])
def test_positions_beyond_the_models_are_refused_whatever_the_budget(n: int, new: int, runtime: str) -> None:
    served = LoadedModel.from_transformers(build("llama", **{**SMALL, "max_position_embeddings": 256}))
    engine = make_engine(served, config(40, runtime, budget=32, evict=EvictOptions("chunk", 16)), Random())
    with pytest.raises(RequestRejected, match=r"positions; the model has 256"):
        engine.add_request(prompt(0, n), SamplingParams(max_tokens=new))
    assert drive(engine, [prompt(0, 256)], SamplingParams(max_tokens=1)).outputs[0].finish_reason == "length"


@pytest.mark.parametrize("bad", [[], [1000], [-1], [True], [1.0]])
def test_bad_prompts_are_refused_and_nothing_changes(bad: list[int]) -> None:
    engine = make_engine(small().served, config(8))
    with pytest.raises(RequestRejected, match="prompt"):
        engine.add_request(bad)
    with pytest.raises(RequestRejected, match="prompt"):
        engine.generate([prompt(0, 5), bad])
    assert not engine.has_work
    assert not engine.outputs


def test_eviction_between_chunks_lets_a_long_prompt_into_a_small_pool() -> None:
    """200 tokens in 9 blocks of 16: too much for any runtime that frees nothing, not for one that does."""
    when = EvictOptions("chunk", 4)
    for runtime in ("refill", "vtoken", "page1"):
        options = {"budget": 24, "evict": when}
        run = drive(make_engine(small().served, config(9, runtime, **options), Random()), [prompt(0, 200)], SamplingParams(max_tokens=40))
        assert run.outputs[0].finish_reason == "length"
        run.assert_masked(small().oracle)
    with pytest.raises(RequestRejected, match="needs 14 blocks"):
        make_engine(small().served, config(9, "naive", budget=24, evict=when), Random()).add_request(prompt(0, 200))


def test_the_last_request_outgrows_the_pool_and_keeps_its_tokens() -> None:
    engine = make_engine(small().served, config(16))
    run = drive(engine, [prompt(0, 200)], SamplingParams(max_tokens=200))
    output = run.outputs[0]
    assert output.finish_reason == "capacity"
    assert len(output.token_ids) == 57  # 256 slots: 200 of the prompt, 56 written, and one sampled after them
    roomy = make_engine(small().served, config(40)).generate([prompt(0, 200)], SamplingParams(max_tokens=200))[0]
    assert output.token_ids == roomy.token_ids[:57]
    assert output.preemptions == 0


@pytest.mark.parametrize("runtime", ["refill", "vtoken", "page1"])
def test_with_a_budget_the_same_request_finishes(runtime: str) -> None:
    run = drive(make_engine(small().served, config(16, runtime, budget=128), H2O()), [prompt(0, 200)], SamplingParams(max_tokens=200))
    assert run.outputs[0].finish_reason == "length"
    run.assert_masked(small().oracle)


@pytest.mark.parametrize("runtime", ["native", "naive", "refill", "vtoken", "page1"])
def test_three_times_the_pool_finishes_with_bounded_recomputing(runtime: str) -> None:
    """Eight requests of 96 tokens at their end need 48 blocks, the pool has 16. No request is recomputed more than twice on average."""
    prompts = [prompt(i, 56) for i in range(8)]
    engine = make_engine(small().served, config(16, runtime, budget=0.8), StreamingLLM())
    run = drive(engine, prompts, SamplingParams(max_tokens=40), logits=False)
    assert [o.finish_reason for o in run.outputs] == ["length"] * 8
    appended = 8 * (56 + 39)
    run_in_all = sum(r.prefill_tokens + r.decode_tokens for r in run.records)
    assert appended <= run_in_all <= 3 * appended
    preempted = sum(r.preempted for r in run.records)
    assert preempted == sum(o.preemptions for o in run.outputs)
    roomy = make_engine(small().served, config(200, runtime, budget=0.8), StreamingLLM())
    for got, want in zip(run.outputs, drive(roomy, prompts, SamplingParams(max_tokens=40), logits=False).outputs, strict=True):
        assert got.token_ids == want.token_ids
        assert got.evictions == want.evictions


def test_after_a_wave_of_preemptions_the_engine_is_as_quick_as_before() -> None:
    """In steps, not seconds: two requests alone decode a token each in every step, at most 20 steps after the wave."""
    engine = make_engine(small().served, config(16))
    crowd = [engine.add_request(prompt(i, 56), SamplingParams(max_tokens=40)) for i in range(8)]
    while any(engine.outputs[name].finish_reason is None for name in crowd[:-2]):
        step_audited(engine)
    records = []
    while engine.has_work:
        records += step_audited(engine)
    assert sum(o.preemptions for o in engine.outputs.values()) > 0
    busy = [r for r in records if r.running]
    assert all(r.decode_tokens + bool(r.prefill_tokens) >= r.running - 1 for r in busy[20:])
    assert sum(r.preempted for r in busy[20:]) == 0
