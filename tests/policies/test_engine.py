"""The bundled policies under the real engine: what it hands them is what the definitions were checked on, and the model sees the rest."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from tests.runtime.oracles import Run, Tiny, copy_some, drive, make_engine, prompt, small
from vtoken_sdk.runtime import EngineConfig, EvictOptions, SamplingParams

from .bundled import BUNDLED, make_small
from .driver import Driver, Request, rotary

BUDGET = 17
PROMPTS = [prompt(0, 61), prompt(1, 40), prompt(2, 9)]
SERVED = [name for name, cls in BUNDLED.items() if "future" not in cls.needs]  # the others need a run recorded before


def run(name: str, evict: EvictOptions, tokens: int, **options: Any) -> Run:
    """Teacher-forced; dead slots hold NaN."""
    config = EngineConfig(pool_blocks=40, chunk=24, budget=BUDGET, evict=evict, poison=True, **options)
    forced = [SamplingParams(forced=tuple(prompt(50 + i, tokens))) for i in range(len(PROMPTS))]
    return drive(make_engine(small().served, config, make_small(name), copy_some(0)), PROMPTS, forced)


@pytest.mark.parametrize("name", SERVED)
def test_the_model_sees_the_kept_tokens_and_no_others(name: str) -> None:
    """Evicting between chunks and while decoding; one request is within its budget at first."""
    done = run(name, EvictOptions("chunk", 3), 13)
    done.assert_masked(small().oracle)
    for number, evictions in enumerate(done.evictions):
        lengths = [e.length for e in evictions]
        assert bool(lengths) == (name != "full")
        for length in lengths:
            left = done.live_at(length, number)
            assert len(left) == BUDGET
            assert length - 1 in left


def record(model: Tiny, ids: list[int], seed: int) -> Request:
    """Queries, keys and values of a prompt, from transformers' own modules."""
    hf: Any = model.oracle
    made: dict[str, list[Tensor]] = {"q_proj": [], "k_proj": [], "v_proj": []}
    hooks = [
        getattr(layer.self_attn, name).register_forward_hook(lambda module, args, out, name=name: made[name].append(out[0]))
        for layer in hf.model.layers
        for name in made
    ]
    with torch.inference_mode():
        hf(torch.tensor([ids]), use_cache=False)
    for hook in hooks:
        hook.remove()
    size, heads = hf.config.head_dim, hf.config.num_key_value_heads
    queries, keys, values = (torch.stack(x).unflatten(-1, (-1, size)).transpose(1, 2) for x in made.values())  # [L, heads, N, D]
    cos, sin = rotary(size, torch.arange(len(ids)))

    def turned(x: Tensor) -> Tensor:
        a, b = x.chunk(2, -1)
        return x * cos + torch.cat((-b, a), -1) * sin

    return Request(turned(queries).unflatten(1, (heads, -1)), turned(keys), values, len(ids), BUDGET, seed, size**-0.5)


@pytest.mark.parametrize("name", SERVED)
def test_the_engine_evicts_what_the_recorded_tensors_say(name: str) -> None:
    """Once, after the prompt: what was recorded holds until then."""
    done = run(name, EvictOptions("end", 0), 3)
    for number, ids in enumerate(PROMPTS):
        (log,) = Driver(make_small(name), [record(small(), ids, seed=100 + number)]).run()
        assert [(e.length, [list(e.ids)]) for e in done.evictions[number]] == log
        assert bool(log) == (len(ids) > BUDGET and name != "full")
