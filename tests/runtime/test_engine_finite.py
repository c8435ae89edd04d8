"""An engine in dirty memory, overflow whose culprit is named, and engines that share a model."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from vtoken_sdk.policies.h2o import H2O
from vtoken_sdk.policies.random import Random
from vtoken_sdk.policies.scissorhands import Scissorhands
from vtoken_sdk.policies.streaming_llm import StreamingLLM
from vtoken_sdk.policy import EvictionPolicy
from vtoken_sdk.runtime import Engine, EngineConfig, EvictOptions, SamplingParams
from vtoken_sdk.runtime.model_loader import LoadedModel
from vtoken_sdk.runtime.slots import live_slots

from .oracles import SMALL, Run, assert_close, build, drive, make_engine, masked_logits, prompt, small, step_audited, tiny

POLICIES: dict[str, EvictionPolicy] = {
    "h2o": H2O(),
    "random": Random(),
    "scissorhands": Scissorhands(window=16, recent=4),
    "streaming_llm": StreamingLLM(),
}


# -- rubbish ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rubbish", [math.inf, 65504.0])
@pytest.mark.parametrize("runtime", ["naive", "refill", "vtoken", "page1"])
def test_rubbish_in_dead_free_and_padded_slots_stays_there(runtime: Any, rubbish: float) -> None:
    """Every slot that holds no live token is spoilt before every step, that of padding included."""
    evict = EvictOptions("chunk", 2)
    config = EngineConfig(runtime=runtime, pool_blocks=40, max_running=4, chunk=17, budget=16, evict=evict)
    engine = make_engine(small().served, config, Random())
    step = engine.step

    def spoil_and_step() -> Any:
        worker = engine.worker
        if worker.reclaimer is None or worker.reclaimer.idle:  # a copied token is not in the map yet
            dead = torch.ones(worker.cache.keys.shape[1], dtype=torch.bool)
            dead[: worker.cache.n_slots] = ~live_slots(worker.table)
            worker.cache.keys[:, dead] = worker.cache.values[:, dead] = rubbish
        return step()

    engine.step = spoil_and_step  # type: ignore[method-assign]  # an engine in dirty memory
    prompts = [prompt(i, n) for i, n in enumerate((1, 16, 33, 50))]
    stops = [SamplingParams(max_tokens=n) for n in (3, 25, 14, 30)]  # idle rows beside running ones
    drive(engine, prompts, stops).assert_masked(small().oracle)


def test_one_live_token_is_enough() -> None:
    run = drive(
        make_engine(small().served, EngineConfig(pool_blocks=8, budget=1, poison=True, evict=EvictOptions("end", 1)), Random()),
        [prompt(0, 30)],
        SamplingParams(max_tokens=12),
    )
    run.assert_masked(small().oracle)
    assert len(run.live_at(40)) == 1


# -- overflow ---------------------------------------------------------------------------------------------------------------


def overflowing() -> LoadedModel:
    """Keys of one head, in the second layer, beyond what fp16 holds."""
    model: Any = build("llama", torch.float16, **SMALL)
    model.model.layers[1].self_attn.k_proj.weight.data[:16] = 60_000
    return LoadedModel.from_transformers(model)


@pytest.mark.parametrize("policy", [None, *POLICIES.values()], ids=["none", *POLICIES])
@pytest.mark.parametrize("lag", [1, 3])
def test_overflow_is_an_error_that_names_the_layer_and_the_step(policy: EvictionPolicy | None, lag: int) -> None:
    """Never a quiet run of token 0; the model is blamed, not the policy that got its attention."""
    engine = make_engine(overflowing(), EngineConfig(pool_blocks=20, chunk=16, budget=0.4, evict=EvictOptions("chunk", 4), lag=lag), policy)
    output = engine.generate([prompt(0, 40)], SamplingParams(max_tokens=8))[0]
    assert (output.finish_reason, output.token_ids) == ("error", [])
    assert output.error == "request request-0, step 0: layer 1 gave numbers that are not finite (torch.float16)"
    Run(engine, [], []).assert_whole()


def test_overflow_in_decode_ends_that_request_only() -> None:
    """A token whose embedding is not a number spoils the request that samples it."""
    model: Any = build("llama", **SMALL)
    model.model.embed_tokens.weight.data[7] = math.nan
    engine = make_engine(LoadedModel.from_transformers(model), EngineConfig(pool_blocks=20))
    good = engine.add_request(prompt(0, 12), SamplingParams(forced=(1, 2, 3, 4, 5, 6)))
    bad = engine.add_request(prompt(1, 12), SamplingParams(forced=(1, 2, 7, 4, 5, 6)))
    while engine.has_work:
        step_audited(engine)
    assert engine.outputs[good].finish_reason == "length"
    assert engine.outputs[bad].token_ids == [1, 2, 7]
    assert "layer 0" in (engine.outputs[bad].error or "")


# -- beside each other ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=["fp16", "bf16"])
def test_eviction_in_reduced_precision(dtype: torch.dtype) -> None:
    """As near to the masked forward as transformers' SDPA is to its eager attention on the same mask."""
    model, sdpa = small_in(dtype)
    config = EngineConfig(pool_blocks=20, max_running=4, chunk=32, budget=0.5, evict=EvictOptions("chunk", 3))
    run = drive(make_engine(model.served, config, Random()), [prompt(0, 70), prompt(1, 20)], SamplingParams(max_tokens=16))
    for ids, output in zip(run.prompts, run.outputs, strict=True):
        assert output.logits is not None
        eager = masked_logits(model.oracle, ids, output.token_ids, output.evictions)
        other = masked_logits(sdpa, ids, output.token_ids, output.evictions)
        assert_close(output.logits, eager, 2 * float((eager - other).abs().max()))


def small_in(dtype: torch.dtype) -> tuple[Any, Any]:
    sdpa = build("llama", dtype, **SMALL)
    sdpa.set_attn_implementation("sdpa")
    return tiny("llama", dtype, **SMALL), sdpa


def test_engines_share_a_model() -> None:
    """Two at once on the same weights, step by step."""
    engines = [Engine(small().served, EngineConfig(pool_blocks=8)) for _ in range(2)]
    for i, engine in enumerate(engines):
        engine.add_request(prompt(i, 20), SamplingParams(max_tokens=6))
    while any(engine.has_work for engine in engines):
        for engine in engines:
            engine.step()
    for i, engine in enumerate(engines):
        alone = Engine(small().served, EngineConfig(pool_blocks=8)).generate([prompt(i, 20)], SamplingParams(max_tokens=6))[0]
        assert engine.outputs["request-0"].token_ids == alone.token_ids
