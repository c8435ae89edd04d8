"""What is torn, canceled or wrong in the middle of a step is told, and nothing innocent changes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from vtoken_sdk.policies.h2o import H2O
from vtoken_sdk.policy import CacheView, EvictionPolicy, NewTokens
from vtoken_sdk.runtime import EngineConfig, EvictOptions, ReclaimOptions, SamplingParams
from vtoken_sdk.runtime.reclaimer import ReclaimError
from vtoken_sdk.runtime.step_books import POOL_FIELDS

from .oracles import make_engine, prompt, small, step_audited, tiny


@pytest.mark.parametrize("step", [0, 3], ids=["in the prompt", "while it decodes"])
@pytest.mark.parametrize("error", [torch.OutOfMemoryError("CUDA out of memory"), KeyboardInterrupt()], ids=["memory", "Ctrl-C"])
def test_an_engine_whose_step_was_torn_says_so(step: int, error: BaseException, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its table has appended what no forward pass wrote: text from there on would be wrong, and `run` without end."""
    engine = make_engine(small().served, EngineConfig(pool_blocks=20, runtime="native"))
    engine.add_request(prompt(0, 40), SamplingParams(max_tokens=12))
    for _ in range(step):
        engine.step()

    def forward(*args: Any) -> Any:
        raise error

    monkeypatch.setattr(engine.worker, "forward", forward)
    with pytest.raises(type(error)):
        engine.step()
    monkeypatch.undo()
    said = f"step {step} was torn .{type(error).__name__}.*, and this engine cannot go on; make a new one"
    for act in (engine.step, lambda: list(engine.run()), lambda: engine.add_request(prompt(1, 20))):
        with pytest.raises(RuntimeError, match=said):
            act()


def test_blocks_of_a_canceled_plan_are_in_the_books(monkeypatch: pytest.MonkeyPatch) -> None:
    config = EngineConfig(pool_blocks=64, max_running=1, reclaim=ReclaimOptions(packing="fresh", margin=0))
    worker = make_engine(small().served, config, H2O()).worker
    assert worker.reclaimer is not None
    device = worker.table.device
    row = torch.tensor([0], device=device)
    worker.table.reserve(256)
    worker.table.append(row, torch.tensor([128], device=device), 128)
    kill = torch.zeros(1, worker.table.max_tokens, dtype=torch.bool, device=device)
    kill[0, :128:2] = True
    worker.table.evict_token(row, kill)

    def submit(plan: object) -> None:
        raise RuntimeError("no such stream")

    monkeypatch.setattr(worker.reclaimer.stream, "submit", submit)
    worker.reclaimer.plan([0], 0)
    worker.reclaimer.launch()
    before = worker.pool.n_free()
    with pytest.raises(ReclaimError, match="no such stream"):
        worker.publish()
    given_back = worker.pool.n_free() - before
    assert given_back > 0
    assert int(worker.record()[-1, POOL_FIELDS.index("freed")]) == given_back


@dataclass
class Meddler(EvictionPolicy):
    """Writes into what it learns from, where the request's seed is 100."""

    needs = frozenset({"attention"})
    meddles: bool = True

    def sync_new_tokens(self, cache: CacheView, new: NewTokens) -> None:
        if self.meddles and bool((cache.seed == 100).any()):
            new.count.sub_(3)
            new.attention.mul_(0)

    def evict_token(self, cache: CacheView) -> Tensor:
        return torch.zeros_like(cache.live)


def test_a_policy_that_writes_into_what_it_learns_from_changes_nothing_else() -> None:
    """A later request's chunk of 16 tokens once appended 13: the number 16 is sent to the device once."""
    outputs = []
    for meddles in (False, True):
        engine = make_engine(small().served, EngineConfig(pool_blocks=40, chunk=16, max_running=1, budget=1.0), Meddler(meddles))
        params = [SamplingParams(max_tokens=5, seed=100 + i, record=True) for i in range(2)]
        outputs.append(engine.generate([prompt(0, 16), prompt(1, 48)], params))
    for want, got in zip(*outputs, strict=True):
        assert got.token_ids == want.token_ids
        assert want.recording is not None and got.recording is not None
        assert torch.equal(got.recording.attention, want.recording.attention)


@dataclass
class Breaks(EvictionPolicy):
    """Raises, or scores NaN, from a length on."""

    how: str
    length: int

    def evict_token(self, cache: CacheView) -> Tensor:
        if bool((cache.length >= self.length).all()):
            if self.how == "raise":
                raise ValueError("broken")
            return cache.evict_lowest(torch.full_like(cache.live, torch.nan, dtype=torch.float32))
        return cache.evict_lowest(cache.positions)


@pytest.mark.parametrize("stops", [False, True])
def test_a_policy_that_breaks_loses_the_same_tokens_however_it_breaks(stops: bool) -> None:
    config = EngineConfig(pool_blocks=20, budget=4, chunk=16, evict=EvictOptions("never", 2))
    fifth = (
        make_engine(small().served, config, Breaks("raise", 999)).generate([prompt(0, 20)], SamplingParams(max_tokens=5))[0].token_ids[-1]
    )
    params = SamplingParams(max_tokens=9, stop_token_ids=(fifth,) if stops else ())
    raised, scored = (make_engine(small().served, config, Breaks(how, 24)).generate([prompt(0, 20)], params)[0] for how in ("raise", "NaN"))
    assert raised.token_ids == scored.token_ids
    assert len(raised.token_ids) == 5
    assert raised.finish_reason == scored.finish_reason == ("stop" if stops else "error")


@pytest.mark.parametrize("how", ["raise", "NaN"])
def test_what_died_before_a_policy_broke_does_not_depend_on_how_late_the_host_hears_of_it(how: str) -> None:
    """Chunks launched in between run, and tokens leave the sliding window."""
    logs = []
    for lag in (1, 2, 4):
        config = EngineConfig(runtime="naive", block_size=8, pool_blocks=99, chunk=16, budget=20, lag=lag, evict=EvictOptions("chunk", 4))
        engine = make_engine(tiny("mistral-window").served, config, Breaks(how, 30))
        output = engine.generate([prompt(0, 120)], SamplingParams(max_tokens=4))[0]
        assert output.finish_reason == "error"
        logs.append(output.evictions)
    assert logs[0] == logs[1] == logs[2]


def test_a_running_prompt_is_not_overtaken() -> None:
    """A prefix hit makes a first chunk short; the next chunks of two requests do not fit in one step."""
    config = EngineConfig(runtime="naive", pool_blocks=400, chunk=64, prefill_tokens=80, prefix_cache=True, max_running=20)
    engine = make_engine(small().served, config)
    shared = prompt(0, 48)
    engine.generate([[*shared, *prompt(9, 1)]], SamplingParams(max_tokens=1))
    prompts = [[*shared, *prompt(1, 300)], [*shared, *prompt(2, 100)], *(prompt(10 + i, 16) for i in range(6))]
    long, other, *short = (engine.add_request(ids, SamplingParams(max_tokens=2)) for ids in prompts)
    first: list[str] = []
    while engine.has_work:
        step_audited(engine)
        first += [name for name, output in engine.outputs.items() if output.token_ids and name not in first]
    assert engine.outputs[long].prefix_hit_tokens == engine.outputs[other].prefix_hit_tokens == 48
    # Of the step's 80 tokens, the first chunks after the hits left room for three; then 64 and 64 are too many.
    assert first[1:5] == [*short[:3], long]
