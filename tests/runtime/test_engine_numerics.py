"""What must not disturb the numbers: rubbish in dead slots, reduced precision, large keys, unusual head and block sizes."""

from __future__ import annotations

import pytest
import torch

from vtoken_sdk.policies.h2o import H2O
from vtoken_sdk.policies.random import Random
from vtoken_sdk.policies.scissorhands import Scissorhands
from vtoken_sdk.policy import EvictionPolicy
from vtoken_sdk.runtime import ConfigError, EngineConfig, EvictOptions, SamplingParams
from vtoken_sdk.runtime.model_loader import LoadedModel

from .oracles import SMALL, build, drive, make_engine, prompt, tiny

POLICIES: list[EvictionPolicy | None] = [None, H2O(), Scissorhands(window=16)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("scale", [1.0, 1000.0])
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
                assert scale > 1
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


@pytest.mark.parametrize(("head_dim", "block_size"), [(32, 1), (64, 8), (80, 16), (96, 32), (128, 64), (256, 16), (128, 1)])
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
