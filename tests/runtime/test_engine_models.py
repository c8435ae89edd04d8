"""Without eviction the engine is transformers: every architecture, alone and in company, whatever the chunk."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch

from vtoken_sdk.runtime import Engine, EngineConfig, Eviction, SamplingParams
from vtoken_sdk.runtime.config import RUNTIMES

from .oracles import (
    ARCHITECTURES,
    TOLERANCE,
    WINDOW,
    assert_close,
    assert_same_choice,
    build,
    dense_logits,
    drive,
    greedy,
    make_engine,
    masked_logits,
    prompt,
    small,
    tiny,
)

CHUNKS = (1, 7, 16, 64, 300)
IN_COMPANY = [prompt(0, 80), prompt(1, 33), prompt(2, 5), prompt(3, 1)]


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_oracles_agree_and_can_fail(architecture: str) -> None:
    """Masked and plain forward passes are one; a token hidden one step late is seen; greedy text does not repeat itself."""
    model, ids = tiny(architecture), prompt(5, 60)
    tokens = greedy(model.oracle, ids, 20)
    plain = dense_logits(model.oracle, ids, tokens)
    assert plain.argmax(1).tolist() == tokens
    assert len(set(tokens)) > 15
    assert_close(masked_logits(model.oracle, ids, tokens, []), plain, 1e-5)
    on_time = masked_logits(model.oracle, ids, tokens, [Eviction(65, (58, 60, 61, 62))])
    late = masked_logits(model.oracle, ids, tokens, [Eviction(66, (58, 60, 61, 62))])
    assert_close(on_time[:6], plain[:6], 1e-5)
    assert float((on_time - late)[6].abs().max()) > 10 * TOLERANCE


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_alone_the_logits_and_tokens_are_those_of_transformers(architecture: str) -> None:
    model, ids = tiny(architecture), prompt(5, 100)
    run = drive(make_engine(model.served, EngineConfig(runtime="native", pool_blocks=10, chunk=64)), [ids], SamplingParams(max_tokens=24))
    output = run.outputs[0]
    assert output.logits is not None
    assert_close(output.logits, dense_logits(model.oracle, ids, output.token_ids))
    assert_same_choice(output.token_ids, output.logits, greedy(model.oracle, ids, 24))
    assert output.token_ids == output.logits.argmax(1).tolist()
    assert output.finish_reason == "length"


@pytest.mark.parametrize(
    ("architecture", "chunk"),
    [*itertools.product(ARCHITECTURES, (7, 300)), *itertools.product(("llama", "mistral-window"), (1, 16, 64))],
)
def test_in_company_each_request_is_as_in_transformers(architecture: str, chunk: int) -> None:
    model = tiny(architecture, num_hidden_layers=2)  # of both kinds where the kinds alternate
    config = EngineConfig(runtime="native", pool_blocks=16, chunk=chunk, prefill_tokens=3 * chunk, poison=True)
    params = [SamplingParams(max_tokens=n) for n in (3, 12, 16, 9)]
    run = drive(make_engine(model.served, config), IN_COMPANY, params)
    for ids, output in zip(IN_COMPANY, run.outputs, strict=True):
        assert output.logits is not None
        assert_close(output.logits, dense_logits(model.oracle, ids, output.token_ids))


@pytest.mark.parametrize("chunk", CHUNKS)
def test_a_long_prompt_does_not_depend_on_the_chunk(chunk: int) -> None:
    model, ids = small(), prompt(7, 300)
    config = EngineConfig(runtime="native", pool_blocks=20, chunk=chunk)
    output = drive(make_engine(model.served, config), [ids], SamplingParams(max_tokens=3)).outputs[0]
    assert output.logits is not None
    assert_close(output.logits, dense_logits(model.oracle, ids, output.token_ids))


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_without_a_policy_every_runtime_is_transformers(runtime: Any) -> None:
    model = small()
    run = drive(
        make_engine(model.served, EngineConfig(runtime=runtime, pool_blocks=16, chunk=32, poison=True)), IN_COMPANY, SamplingParams(8)
    )
    run.assert_masked(model.oracle)
    assert run.evictions == [[]] * len(IN_COMPANY)


@pytest.mark.parametrize("heads", [(8, 8), (8, 2), (8, 1)])
def test_every_grouping_of_heads(heads: tuple[int, int]) -> None:
    model = tiny("llama", num_attention_heads=heads[0], num_key_value_heads=heads[1], num_hidden_layers=2)
    run = drive(
        make_engine(model.served, EngineConfig(runtime="native", pool_blocks=16, chunk=32)), IN_COMPANY, SamplingParams(max_tokens=6)
    )
    run.assert_masked(model.oracle)


@pytest.mark.parametrize("chunk", [7, 16, 300])
@pytest.mark.parametrize("runtime", RUNTIMES)
def test_tokens_out_of_every_window_die_in_every_runtime(runtime: Any, chunk: int) -> None:
    """A block of tokens late at most; the log says when, and the logits are those of the full cache, which never sees them again."""
    model, ids = small("mistral-window"), prompt(1, 70)
    config = EngineConfig(runtime=runtime, pool_blocks=8, chunk=chunk, poison=True)
    run = drive(make_engine(model.served, config), [ids, ids[:30]], SamplingParams(max_tokens=40))
    for ids, output in zip(run.prompts, run.outputs, strict=True):
        assert output.logits is not None
        assert_close(output.logits, dense_logits(model.oracle, ids, output.token_ids))
    for request, ids in enumerate(run.prompts):
        assert all(t <= e.length - WINDOW for e in run.evictions[request] for t in e.ids)
        for length in range(len(ids), len(ids) + 39):
            late = len(run.live_at(length, request)) - (WINDOW - 1)
            assert late <= (chunk if length == len(ids) else 16) or length <= WINDOW
    decoding = [r for r in run.records if r.decode_tokens == 2]
    slots = config.slots_per_block
    assert decoding and all(r.blocks_held <= 2 * (-(-(WINDOW + 16) // slots) + 1) for r in decoding[16:])


def test_with_one_full_layer_nothing_dies_by_itself() -> None:
    model = small("gemma2")
    run = drive(make_engine(model.served, EngineConfig(runtime="vtoken", pool_blocks=16, chunk=16)), [prompt(1, 70)], SamplingParams(20))
    assert run.evictions == [[]]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=["fp16", "bf16"])
@pytest.mark.parametrize("architecture", ["llama", "mistral-window", "qwen2", "qwen3"])
def test_reduced_precision_is_as_near_as_transformers_own_two_ways(architecture: str, dtype: torch.dtype) -> None:
    """Within twice the distance between its eager and its SDPA attention on the same tokens."""
    model = tiny(architecture, dtype)
    sdpa = build(architecture, dtype)
    sdpa.set_attn_implementation("sdpa")
    run = drive(make_engine(model.served, EngineConfig(runtime="native", pool_blocks=16, chunk=32)), IN_COMPANY[:2], SamplingParams(16))
    for ids, output in zip(run.prompts, run.outputs, strict=True):
        assert output.logits is not None
        eager = dense_logits(model.oracle, ids, output.token_ids)
        tolerance = 2 * float((eager - dense_logits(sdpa, ids, output.token_ids)).abs().max())
        assert_close(output.logits, eager, tolerance)


def test_a_model_whose_attention_was_replaced_is_an_error_and_not_garbage() -> None:
    model = build("llama", num_hidden_layers=2)
    from vtoken_sdk.runtime.model_loader import LoadedModel

    engine = Engine(LoadedModel.from_transformers(model), EngineConfig(runtime="native", pool_blocks=8))
    model.set_attn_implementation("eager")
    engine.add_request(prompt(0, 8))
    with pytest.raises(RuntimeError, match="set_attn_implementation"):
        engine.step()
