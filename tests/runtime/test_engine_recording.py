"""Attention that a run keeps, and what a policy that looks ahead gets of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from vtoken_sdk.policies.oracle import Oracle
from vtoken_sdk.policies.random import Random
from vtoken_sdk.policy import CacheView, EvictionPolicy
from vtoken_sdk.runtime import EngineConfig, EvictOptions, RequestRejected, SamplingParams, look_ahead

from .no_sync import NoHostReads
from .oracles import drive, make_engine, prompt, small

PROMPTS = [prompt(0, 50), prompt(1, 33), prompt(2, 7)]


def dense_attention(ids: list[int]) -> Tensor:
    """fp32 [queries, tokens], mean over heads and layers, by transformers' eager attention."""
    with torch.inference_mode():
        layers: Any = small().oracle(input_ids=torch.tensor([ids]), output_attentions=True, use_cache=False).attentions
    return torch.stack(layers).mean((0, 1, 2))


@pytest.mark.parametrize("runtime", ["native", "naive"])
@pytest.mark.parametrize("stop_early", [False, True])
def test_a_run_keeps_what_every_step_attended_to(runtime: Any, stop_early: bool) -> None:
    config = EngineConfig(runtime=runtime, pool_blocks=20, chunk=16, prefill_tokens=32, budget=1.0, lag=3)
    plain = make_engine(small().served, config, Random()).generate(PROMPTS, SamplingParams(max_tokens=12))
    stops = (plain[0].token_ids[5],) if stop_early else ()
    outputs = make_engine(small().served, config, Random()).generate(
        PROMPTS, SamplingParams(max_tokens=12, record=True, stop_token_ids=stops)
    )
    for ids, output in zip(PROMPTS, outputs, strict=True):
        assert output.recording is not None
        lengths, dense = output.recording.lengths.tolist(), dense_attention([*ids, *output.token_ids[:-1]])
        assert lengths[-1] == len(dense) == output.recording.attention.shape[1]
        first = 0
        for length, mass in zip(lengths, output.recording.attention, strict=True):
            torch.testing.assert_close(mass, dense[first:length].sum(0), atol=1e-5, rtol=1e-4)
            first = length
    assert not stop_early or outputs[0].finish_reason == "stop"


@dataclass
class Seer(EvictionPolicy):
    """Evicts at random, and notes what it saw of the future."""

    needs: ClassVar = frozenset({"future"})
    seen: list[tuple[int, int, Tensor]] = field(default_factory=list)

    def evict_token(self, cache: CacheView) -> Tensor:
        for row, seed in enumerate(cache.seed.flatten().tolist()):
            self.seen.append((seed, int(cache.length[row]), cache.future[row, 0].clone()))
        return Random().evict_token(cache)


@pytest.mark.parametrize("prefill", ["chunk", "end"])
def test_the_future_is_the_full_cache_runs_from_here_on(prefill: Any) -> None:
    """By tokens' ids, at each eviction, whatever was evicted meanwhile; a pool that preempts changes nothing."""
    config = EngineConfig(runtime="naive", pool_blocks=7, chunk=16, max_running=3, budget=0.8, evict=EvictOptions(prefill, 8))
    prompts = [prompt(i, 30) for i in range(3)]
    params = look_ahead(small().served, config, prompts, [SamplingParams(max_tokens=50, seed=i) for i in range(3)])
    engine = make_engine(small().served, config, seer := Seer())
    run = drive(engine, prompts, params)
    run.assert_masked(small().oracle)
    assert sum(output.preemptions for output in run.outputs) > 0
    assert len(seer.seen) > 12
    for request, length, future in seer.seen:
        tokens = params[request].forced
        assert tokens is not None and run.outputs[request].token_ids == list(tokens)
        dense = dense_attention([*prompts[request], *tokens[:-1]])
        torch.testing.assert_close(future[:length], dense[length:, :length].sum(0), atol=1e-5, rtol=1e-4)


def test_to_read_the_future_waits_for_no_device() -> None:
    config = EngineConfig(pool_blocks=40, chunk=64, budget=0.3, evict=EvictOptions("end", 0))
    (params,) = look_ahead(small().served, config, PROMPTS[:1], [SamplingParams(max_tokens=30)])
    engine = make_engine(small().served, config, Seer())
    engine.add_request(PROMPTS[0], params)
    engine.step()
    runner = engine.worker.runner
    assert runner is not None and params.future is not None
    row = torch.tensor([0])
    with NoHostReads():
        seen = runner._future_of(row, [0], 64)
    length = int(engine.worker.table.length[0])
    want = params.future.still_to_come()[list(params.future.lengths).index(length) + 1, :length]
    assert torch.equal(seen[0, 0, :length], want)


def test_the_oracle_loses_the_least_of_what_is_to_come() -> None:
    config = EngineConfig(pool_blocks=40, chunk=64, budget=0.3, evict=EvictOptions("end", 0))
    params = look_ahead(small().served, config, PROMPTS[:1], [SamplingParams(max_tokens=30)])
    future = params[0].future
    assert future is not None
    coming = future.still_to_come()[1, :50]
    for policy in (Oracle(), Random()):
        output = make_engine(small().served, config, policy).generate(PROMPTS[:1], params)[0]
        victims = list(output.evictions[0].ids)
        least = coming[:-1].sort().values[: len(victims)].sum()  # the newest token never dies
        assert len(victims) == 35
        assert (coming[victims].sum() <= least + 1e-5) == isinstance(policy, Oracle)


def test_a_request_without_a_future_is_refused_before_it_runs() -> None:
    engine = make_engine(small().served, EngineConfig(pool_blocks=8), Oracle())
    with pytest.raises(RequestRejected, match=r"Oracle reads the future.*look_ahead"):
        engine.add_request(PROMPTS[0])
    assert not engine.has_work


def test_the_norms_of_keys_are_those_in_the_cache() -> None:
    engine = make_engine(small().served, EngineConfig(runtime="native", pool_blocks=20, chunk=16), None)
    output = engine.generate(PROMPTS[:1], SamplingParams(max_tokens=6, record=True))[0]
    with torch.inference_mode():
        past: Any = small().oracle(input_ids=torch.tensor([[*PROMPTS[0], *output.token_ids[:-1]]]), use_cache=True).past_key_values
    norms = torch.stack([layer.keys[0].norm(dim=-1).mean(0) for layer in past.layers]).mean(0)
    assert output.recording is not None
    torch.testing.assert_close(output.recording.key_norms, norms, atol=1e-5, rtol=1e-4)
