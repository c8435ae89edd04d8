"""A pool too small: requests give way, come back, and end as if nothing had happened; nobody waits for ever."""

from __future__ import annotations

import functools
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from vtoken_sdk.policies.h2o import H2O
from vtoken_sdk.policies.random import Random
from vtoken_sdk.policies.scissorhands import Scissorhands
from vtoken_sdk.policies.streaming_llm import StreamingLLM
from vtoken_sdk.policy import EvictionPolicy
from vtoken_sdk.runtime import Engine, EngineConfig, EvictOptions, SamplingParams, StepRecord

from .oracles import Run, assert_close, copy_some, drive, make_engine, prompt, small, step_audited

POLICIES: dict[str, EvictionPolicy | None] = {
    "none": None,
    "h2o": H2O(),
    "streaming_llm": StreamingLLM(),
    "random": Random(),
    "scissorhands": Scissorhands(window=8, recent=4),
}
EVICTING = ("naive", "refill", "vtoken", "page1")
PROMPTS = [prompt(i, n) for i, n in enumerate((15, 16, 17, 33))]


def engine(pool_blocks: int, policy: EvictionPolicy | None, runtime: Any = "vtoken", architecture: str = "llama", **options: Any) -> Engine:
    defaults: dict[str, Any] = {"chunk": 16, "max_running": 4, "budget": 0.6, "evict": EvictOptions("end", 8), "poison": True}
    config = EngineConfig(**{**defaults, "runtime": runtime, "pool_blocks": pool_blocks, **options})
    return make_engine(small(architecture).served, config, policy, copy_some(1))


def assert_same(got: Run, want: Run) -> None:
    assert got.evictions == want.evictions
    for one, other in zip(got.outputs, want.outputs, strict=True):
        assert one.token_ids == other.token_ids
        assert one.finish_reason == other.finish_reason
        assert one.logits is not None and other.logits is not None
        assert_close(one.logits, other.logits)


@functools.cache
def undisturbed(policy: str, tokens: int, evict: EvictOptions, chunk: int) -> Run:
    """With room for all, under the simplest runtime."""
    run = drive(engine(60, POLICIES[policy], "naive", evict=evict, chunk=chunk), PROMPTS, SamplingParams(max_tokens=tokens))
    assert sum(o.preemptions for o in run.outputs) == 0
    run.assert_masked(small().oracle)
    return run


@pytest.mark.parametrize("runtime", EVICTING)
@pytest.mark.parametrize("policy", POLICIES)
def test_a_small_pool_changes_nothing_but_the_time(policy: str, runtime: Any) -> None:
    """Victims, tokens and logits are those of a run with room for all."""
    evict = EvictOptions("end", 40)
    tight = drive(engine(7, POLICIES[policy], runtime, evict=evict), PROMPTS, SamplingParams(max_tokens=60))
    assert sum(o.preemptions for o in tight.outputs) == sum(r.preempted for r in tight.records) >= 1
    assert_same(tight, undisturbed(policy, 60, evict, 16))


@dataclass
class Disturber:
    """Preempts running requests, whatever they are at, and likes those that are recomputing; `limit` times."""

    engine: Engine
    limit: int
    draw: random.Random = field(default_factory=lambda: random.Random(3))
    in_replay: int = 0

    def __post_init__(self) -> None:
        self._step = self.engine.step
        self.engine.step = self.step  # type: ignore[method-assign]  # the engine, disturbed

    def step(self) -> list[StepRecord]:
        known, running = self._step(), self.engine.scheduler.running
        replaying = [s for s in running if s.replaying]
        if self.limit and running and self.draw.random() < (0.6 if replaying else 0.3):
            victim = self.draw.choice(replaying or running)
            self.engine._drain()
            if victim in running:  # it may have ended
                self.engine._preempt(victim)
                self.in_replay += bool(replaying)
                self.limit -= 1
        return known


@pytest.mark.parametrize("prefill", ["chunk", "end"])
@pytest.mark.parametrize("runtime", ["refill", "vtoken"])
@pytest.mark.parametrize("policy", POLICIES)
def test_preempted_anywhere_a_request_goes_on_as_if_it_had_not_been(policy: str, runtime: Any, prefill: Any) -> None:
    """In its prompt, at block borders, with a plan in flight, while it is recomputing, twice in a row."""
    evict = EvictOptions(prefill, 3)
    one = engine(60, POLICIES[policy], runtime, evict=evict, chunk=8, prefill_tokens=16)
    disturber = Disturber(one, limit=16)
    disturbed = drive(one, PROMPTS, SamplingParams(max_tokens=22))
    assert sum(o.preemptions for o in disturbed.outputs) == 16
    assert disturber.in_replay >= 4
    assert_same(disturbed, undisturbed(policy, 22, evict, 8))


@pytest.mark.parametrize("architecture", ["mistral-window", "gemma2"])
def test_windows_survive_preemption(architecture: str) -> None:
    """Tokens that a window put out of reach stay dead, and die at the same lengths."""
    params = SamplingParams(max_tokens=45)
    for policy in (None, H2O()):
        options: dict[str, Any] = {"architecture": architecture, "budget": 30, "evict": EvictOptions("end", 25)}
        roomy = drive(engine(60, policy, **options), PROMPTS, params)
        tight = drive(engine(5, policy, **options), PROMPTS, params)
        assert sum(o.preemptions for o in tight.outputs) >= 1
        assert_same(tight, roomy)


@pytest.mark.parametrize("runtime", EVICTING)
def test_generated_text_longer_than_the_pool_can_be_recomputed(runtime: Any) -> None:
    """Evicted at the prompt's end only, two requests outgrow the pool; the younger gives way and must be let in again."""
    prompts = [prompt(i, 100) for i in range(2)]
    one = engine(13, StreamingLLM(), runtime, max_running=2, chunk=32, budget=0.1, evict=EvictOptions("end", 0))
    run = drive(one, prompts, SamplingParams(max_tokens=150))
    assert [o.finish_reason for o in run.outputs] == ["length", "length"]
    assert run.outputs[1].preemptions >= 1
    run.assert_masked(small().oracle)


def test_one_request_that_outgrows_the_pool_ends_with_what_it_has() -> None:
    one = engine(16, None)
    run = drive(one, [prompt(0, 200)], SamplingParams(max_tokens=200))
    assert run.outputs[0].finish_reason == "capacity"
    assert len(run.outputs[0].token_ids) == 256 - 200 + 1  # the last one is sampled, not stored
    assert run.outputs[0].preemptions == 0
    run.assert_masked(small().oracle)
    assert len(one.generate([prompt(1, 20)], SamplingParams(max_tokens=4))[0].token_ids) == 4


@pytest.mark.parametrize("runtime", ["refill", "vtoken", "page1"])
def test_a_policy_makes_room_for_the_same_request(runtime: Any) -> None:
    run = drive(
        engine(16, StreamingLLM(), runtime, budget=128, chunk=64, evict=EvictOptions("end", 16)), [prompt(0, 200)], SamplingParams(200)
    )
    assert run.outputs[0].finish_reason == "length"
    assert len(run.outputs[0].token_ids) == 200
    assert max(r.blocks_held for r in run.records) <= 16 * (16 if runtime == "page1" else 1)


@pytest.mark.parametrize("policy", [None, H2O()], ids=["none", "h2o"])
def test_three_times_the_pool_gets_through_with_bounded_waste(policy: EvictionPolicy | None) -> None:
    """Nobody starves, the oldest is never preempted, less is recomputed than is computed, and the load's end is the trouble's end."""
    prompts = [prompt(i, 40) for i in range(8)]
    one = engine(16, policy, max_running=8, chunk=64, budget=0.9, evict=EvictOptions("end", 16))
    run = drive(one, prompts, SamplingParams(max_tokens=60))
    assert [o.finish_reason for o in run.outputs] == ["length"] * 8
    assert run.outputs[0].preemptions == 0
    ran = sum(r.prefill_tokens + r.decode_tokens for r in run.records)
    needed = 8 * (40 + 59)
    assert ran - needed < needed
    if policy is None:
        assert ran > needed
    calm = drive(one, prompts[:2], SamplingParams(max_tokens=20))
    assert sum(r.preempted for r in calm.records) == 0
    assert len(calm.records) <= 2 + 20 + 4


def test_preemption_takes_the_youngest_and_brings_it_back_first() -> None:
    one = engine(7, None)
    names = [one.add_request(p, SamplingParams(max_tokens=60), request_id=str(i)) for i, p in enumerate(PROMPTS)]
    ended: list[str] = []
    while one.has_work:
        step_audited(one)
        ended += [n for n in names if one.outputs[n].finish_reason and n not in ended]
    assert ended == names


def _lengths(outputs: Sequence[Any]) -> list[int]:
    return [len(o.token_ids) for o in outputs]


def test_stop_tokens_are_found_after_a_preemption_too() -> None:
    params = SamplingParams(max_tokens=60)
    free = drive(engine(60, None), PROMPTS, params)
    stops = [SamplingParams(max_tokens=60, stop_token_ids=(o.token_ids[45],)) for o in free.outputs]
    roomy, tight = drive(engine(60, None), PROMPTS, stops), drive(engine(7, None), PROMPTS, stops)
    assert sum(o.preemptions for o in tight.outputs) >= 1
    assert_same(tight, roomy)
    assert _lengths(tight.outputs) == [o.token_ids.index(o.token_ids[45]) + 1 for o in free.outputs]
