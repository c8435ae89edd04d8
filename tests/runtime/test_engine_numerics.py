"""What must not disturb the numbers: rubbish in dead slots, reduced precision, large keys, unusual head and block sizes."""

from __future__ import annotations

import math

import pytest
import torch

from vtoken_sdk.policies.h2o import H2O
from vtoken_sdk.policies.random import Random
from vtoken_sdk.policies.scissorhands import Scissorhands
from vtoken_sdk.policies.streaming_llm import StreamingLLM
from vtoken_sdk.policy import EvictionPolicy
from vtoken_sdk.runtime import ConfigError, EngineConfig, EvictOptions, SamplingParams
from vtoken_sdk.runtime.attention import chunk_attention, decode_attention
from vtoken_sdk.runtime.model_loader import LoadedModel

from .oracles import SMALL, build, dense_logits, drive, make_engine, prompt, tiny

RUBBISH = [math.nan, math.inf, 65504.0]


@pytest.mark.parametrize("rubbish", RUBBISH)
@pytest.mark.parametrize("n_live", [1, 2, 15, 16, 17, 255, 256, 257])
def test_with_a_zero_query_the_output_is_the_mean_of_the_live_values(n_live: int, rubbish: float) -> None:
    """Whatever stands in the other slots: the pool is full of it, the trash slot too."""
    heads, head_dim, slots = 2, 16, 300
    keys, values = torch.full((2, slots, heads, head_dim), rubbish)
    live = torch.randperm(slots - 1, generator=torch.Generator().manual_seed(n_live))[:n_live]
    keys[live] = torch.randn(n_live, heads, head_dim)
    values[live] = torch.randn(n_live, heads, head_dim)
    mean = values[live].mean(0).repeat_interleave(3, 0)  # 3 query heads a KV head
    width = n_live + 5
    slot_map = torch.full((1, width), slots - 1).index_copy(1, torch.arange(n_live), live[None])
    visible = torch.arange(width)[None] < n_live
    query = torch.zeros(1, 6, head_dim)
    out, mass = decode_attention(query, keys, values, slot_map, visible, 1.0, None, mass=True)
    torch.testing.assert_close(out[0], mean)
    assert mass is not None
    torch.testing.assert_close(mass[0], torch.where(visible[0], 1 / n_live, 0.0))
    for want_mass in (False, True):
        chunk, _ = chunk_attention(
            query[0][:, None], keys[live], values[live], torch.tensor([999]), torch.arange(n_live), 1.0, None, None, None, mass=want_mass
        )
        torch.testing.assert_close(chunk[:, 0], mean)


def test_a_row_that_sees_nothing_is_zero_not_nan() -> None:
    nothing = torch.zeros(1, 4, dtype=torch.bool)
    pool = torch.full((8, 1, 4), math.nan)
    out, mass = decode_attention(torch.ones(1, 2, 4), pool, pool, torch.zeros(1, 4, dtype=torch.int64), nothing, 1.0, None, mass=True)
    assert mass is not None
    assert out.eq(0).all()
    assert mass.eq(0).all()


POLICIES: list[EvictionPolicy | None] = [None, H2O(), Random(), StreamingLLM(), Scissorhands(window=16)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("scale", [1.0, 30.0, 1000.0])
def test_large_keys_stay_finite_or_are_an_error_that_names_layer_and_step(dtype: torch.dtype, scale: float) -> None:
    model = build("llama", dtype, **SMALL)
    with torch.no_grad():
        model.model.layers[1].self_attn.k_proj.weight[:16] *= scale  # the first KV head of layer 1
    served = LoadedModel.from_transformers(model)
    for policy in POLICIES:
        config = EngineConfig(runtime="native" if policy is None else "vtoken", pool_blocks=40, budget=20, chunk=32, poison=True)
        run = drive(make_engine(served, config, policy), [prompt(3, 50), prompt(4, 90)], SamplingParams(max_tokens=20))
        for output in run.outputs:
            if output.error is not None:
                assert "layer 1" in output.error
                assert "step" in output.error
            else:
                assert output.logits is not None
                assert output.logits.isfinite().all()
                assert set(output.token_ids) != {0}  # what the argmax of NaN gives, step after step


def test_an_overflow_is_an_error_and_spares_the_engine() -> None:
    model = build("llama", torch.float16, **SMALL)
    with torch.no_grad():
        model.model.layers[0].self_attn.o_proj.weight.fill_(60000.0)
    engine = make_engine(LoadedModel.from_transformers(model), EngineConfig(runtime="native", pool_blocks=20))
    bad = engine.generate([prompt(1, 20)], SamplingParams(max_tokens=8))[0]
    assert bad.finish_reason == "error"
    assert bad.error is not None
    assert "not finite" in bad.error
    assert bad.token_ids == []
    engine.check()
    assert engine.worker.pool.n_free() == 20


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bf16", "fp16"])
def test_reduced_precision_is_as_close_as_transformers_is_to_itself(dtype: torch.dtype) -> None:
    """Within twice the distance between its own eager and sdpa attention, and never further from fp32 than they are by half."""
    model, ids = tiny("llama", dtype, **SMALL), prompt(8, 120)
    run = drive(make_engine(model.served, EngineConfig(runtime="native", pool_blocks=20, chunk=48)), [ids], SamplingParams(max_tokens=24))
    got, tokens = run.outputs[0].logits, run.outputs[0].token_ids
    assert got is not None
    eager = dense_logits(model.oracle, ids, tokens)
    other = build("llama", dtype, **SMALL)
    other.set_attn_implementation("sdpa")
    exact = dense_logits(build("llama", torch.float32, **SMALL), ids, tokens)
    spread = max((dense_logits(other, ids, tokens) - eager).abs().max(), (eager - exact).abs().max())
    assert (got - eager).abs().max() <= 2 * spread


@pytest.mark.parametrize("block_size", [1, 8, 16, 32, 64])
@pytest.mark.parametrize("head_dim", [32, 64, 80, 96, 128, 256])
def test_head_and_block_sizes(head_dim: int, block_size: int) -> None:
    model = tiny(
        "llama",
        **{**SMALL, "num_hidden_layers": 1, "head_dim": head_dim, "hidden_size": 48, "num_attention_heads": 3, "num_key_value_heads": 1},
    )
    config = EngineConfig(
        block_size=block_size, pool_blocks=640 // block_size, budget=0.5, chunk=32, evict=EvictOptions("chunk", 4), poison=True
    )
    run = drive(
        make_engine(model.served, config, Random()), [prompt(i, n) for i, n in enumerate((33, 64, 100))], SamplingParams(max_tokens=10)
    )
    assert all(run.evictions)
    run.assert_masked(model.oracle)


@pytest.mark.parametrize("block_size", [12, 0, -1, 16.0, True, "16"])
def test_other_block_sizes_are_refused_with_the_allowed_ones(block_size: object) -> None:
    with pytest.raises(ConfigError, match=r"block_size=.*1, 8, 16, 32, 64"):
        EngineConfig(block_size=block_size)  # type: ignore[arg-type]  # what a user may write
