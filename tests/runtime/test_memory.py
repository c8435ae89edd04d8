"""What eviction gives back, and when: blocks held under each runtime, counted by hand, and pools with nothing left to move into."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from vtoken_sdk.policies.random import Random
from vtoken_sdk.policies.streaming_llm import StreamingLLM
from vtoken_sdk.policy import CacheView, EvictionPolicy
from vtoken_sdk.runtime import Engine, EngineConfig, EvictOptions, ReclaimOptions, RequestOutput, SamplingParams, StepRecord
from vtoken_sdk.runtime.config import Packing
from vtoken_sdk.runtime.kv_cache import KVCache
from vtoken_sdk.runtime.reclaimer import ReclaimError
from vtoken_sdk.runtime.step_in_flight import StepInFlight

from .oracles import Tiny, assert_close, copy_some, make_engine, masked_logits, prompt, step_audited, tiny

SIZE = 16
VOCABULARY = 50


def model(**changes: Any) -> Tiny:
    shape = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1}
    return tiny(**{**shape, "head_dim": 8, "vocab_size": VOCABULARY, "initializer_range": 0.4, "max_position_embeddings": 8192, **changes})


def blocks_of(engine: Engine, name: str) -> tuple[int, int]:
    """Blocks held and live tokens of a request, read from the table."""
    (seq,) = (s for s in engine.scheduler.running if s.id == name)
    table = engine.worker.table
    return int((table.blocks[seq.row] != table.pool.trash).sum()), int((table.slot[seq.row] >= 0).sum())


def running(engine: Engine) -> list[str]:
    return [seq.id for seq in engine.scheduler.running if not seq.finished]


def steps(engine: Engine, limit: int = 2000) -> Iterator[list[StepRecord]]:
    while engine.has_work:
        yield step_audited(engine)
        assert engine.steps < limit, "no end in sight"


# -- the space of evicted tokens --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("budget", "naive_share"), [(0.5, 1.0), (0.1, 1 - 0.9**16)])
def test_compaction_holds_each_request_at_its_live_tokens_where_naive_holds_nearly_all(budget: float, naive_share: float) -> None:
    """Four requests of 1,024 tokens. An eviction is known `lag` steps later, a plan published `publish_after` steps after that, and
    one plan may have to wait for another: from then on, and still 64 steps later, ceil(live / 16) blocks and one more are held."""
    prompts = [prompt(i, 1024, VOCABULARY) for i in range(4)]
    held: dict[str, list[int]] = {}
    for runtime in ("naive", "vtoken"):
        config = EngineConfig(runtime=runtime, pool_blocks=320, chunk=512, budget=budget, max_running=4)  # type: ignore[arg-type]
        engine = make_engine(model().served, config, Random(), copy_some(0))
        names = [engine.add_request(ids, SamplingParams(max_tokens=90, seed=i)) for i, ids in enumerate(prompts)]
        settled = 2 * (config.lag + config.reclaim.publish_after)
        asked: dict[str, int] = {}  # the step of a request's last eviction
        held[runtime] = []
        for _ in steps(engine):
            for seq in engine.scheduler.running:
                generated = seq.cursor - len(seq.prompt)
                if generated >= 0 and generated % config.evict.every == 0:
                    asked[seq.id] = engine.steps - 1
                    if generated == 0:
                        held[runtime].append(blocks_of(engine, seq.id)[0])
                if runtime == "vtoken" and engine.steps > asked.get(seq.id, engine.steps) + settled:
                    blocks, live = blocks_of(engine, seq.id)
                    assert blocks <= -(-live // SIZE) + 1, f"{blocks} blocks for {live} live tokens, step {engine.steps}"
            if runtime == "naive" and len(running(engine)) == 4 and engine.steps > 60:
                now = [blocks_of(engine, name) for name in names]
                assert sum(blocks for blocks, _ in now) > 1.5 * sum(-(-live // SIZE) + 1 for _, live in now)
        assert all(len(engine.outputs[name].token_ids) == 90 for name in names)
    # Right after the eviction at the prompt's end both hold the same: compaction comes later.
    for blocks in (held["naive"], held["vtoken"]):
        assert 0.85 * naive_share * 4 * 64 <= sum(blocks) <= min(4 * 64, 1.1 * naive_share * 4 * 64)


def test_freed_blocks_let_a_waiting_request_in() -> None:
    """Four requests fill the pool at their peak; the fifth waits, under naive until one of them ends."""
    started: dict[str, int] = {}
    for runtime in ("naive", "vtoken"):
        config = EngineConfig(runtime=runtime, pool_blocks=4 * 18, chunk=256, budget=0.5, max_running=8)  # type: ignore[arg-type]
        engine = make_engine(model().served, config, Random())
        names = [engine.add_request(prompt(i, 256, VOCABULARY), SamplingParams(max_tokens=24, seed=i)) for i in range(5)]
        for _ in steps(engine):
            if names[4] in running(engine):
                started.setdefault(runtime, engine.steps)
        assert engine.concurrency_peak == {"naive": 4, "vtoken": 5}[runtime]
    assert started["vtoken"] <= 12
    assert started["naive"] > 24


@pytest.mark.parametrize("runtime", ["naive", "refill", "vtoken", "page1"])
def test_the_waste_of_a_record_is_what_a_hand_counts(runtime: Any) -> None:
    config = EngineConfig(runtime=runtime, pool_blocks=64, chunk=64, budget=0.4, evict=EvictOptions("chunk", 8))
    engine = make_engine(model().served, config, Random(), copy_some(1))
    for i, n in enumerate((200, 130, 33)):
        engine.add_request(prompt(i, n, VOCABULARY), SamplingParams(max_tokens=40, seed=i))
    size, table = config.slots_per_block, engine.worker.table
    by_hand: dict[int, tuple[int, int, int]] = {}
    records: list[StepRecord] = []
    for known in steps(engine):
        blocks = [[b for b in row if b != table.pool.trash] for row in table.blocks[:-1].tolist()]
        live = [sum(slot >= 0 for slot in row) for row in table.slot[:-1].tolist()]
        by_hand[engine.steps - 1] = (sum(live), len({b for row in blocks for b in row}), sum(-(-n // size) for n in live))
        records += known
    seen = set()
    for record in records:
        live_tokens, held, ideal = by_hand[record.step]
        assert (record.live_tokens, record.live_slots, record.blocks_held, record.blocks_ideal) == (live_tokens, live_tokens, held, ideal)
        if held:
            assert record.waste == pytest.approx(1 - live_tokens / (held * size))
            seen.add(record.waste)
    assert (len(seen) > 10) == (runtime != "page1")


@pytest.mark.parametrize(
    ("policy", "budget", "least", "most"),
    [(Random(), 0.25, 0.002, 0.022), (Random(), 0.5, 0.0, 0.001), (StreamingLLM(), 0.25, 0.73, 0.76), (StreamingLLM(), 0.5, 0.48, 0.51)],
)
def test_what_naive_gets_back_depends_on_the_victims_pattern(policy: EvictionPolicy, budget: float, least: float, most: float) -> None:
    """A block of 16 is all dead with probability 0.75 ** 16 = 1 % when a quarter survives at random; a window leaves whole blocks."""
    n, prompts = 4096, 4
    config = EngineConfig(runtime="naive", pool_blocks=prompts * (n // SIZE + 1), chunk=n, budget=budget, prefill_tokens=prompts * n)
    engine = make_engine(model().served, config, policy)
    for i in range(prompts):
        engine.add_request(prompt(i, n, VOCABULARY), SamplingParams(max_tokens=2, seed=i))
    step_audited(engine)
    table = engine.worker.table
    assert int(table.n_live[:-1].sum()) == prompts * n * budget
    freed = 1 - int((table.blocks[:-1] != table.pool.trash).sum()) / (prompts * n // SIZE)
    assert least <= freed <= most


# -- one compaction ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("packing", ["fill", "fresh"])
def test_one_compaction_changes_no_logits(packing: Packing, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two long generations, 30 % evicted after the prompt; exactly one compaction at step 100, 200 or 300."""
    prompts = [prompt(i, n, VOCABULARY) for i, n in enumerate((150, 90))]
    runs = {}
    for at in (None, 100, 200, 300):
        reclaim = ReclaimOptions(packing=packing, publish_after=3)
        config = EngineConfig(pool_blocks=80, chunk=64, budget=0.7, evict=EvictOptions("end", 0), reclaim=reclaim, poison=True)
        engine = make_engine(model().served, config, Random(), copy_some(2))
        compaction = engine.compaction

        def only_then(step: int, last: StepInFlight | None, at: int | None = at, real: Any = compaction.plan_if_worth_it) -> None:
            if step == at:
                real(step, last)

        monkeypatch.setattr(compaction, "plan_if_worth_it", only_then)
        names = [engine.add_request(ids, SamplingParams(max_tokens=320, logits=True, seed=i)) for i, ids in enumerate(prompts)]
        moves = sum(record.moves for known in steps(engine) for record in known)
        assert compaction.plans == (at is not None)
        assert (moves > 20) == (at is not None)
        runs[at] = [engine.outputs[name] for name in names]
    for at, outputs in runs.items():
        for ids, output, off in zip(prompts, outputs, runs[None], strict=True):
            assert output.evictions == off.evictions
            assert output.logits is not None
            assert off.logits is not None
            assert torch.equal(output.logits, off.logits), f"compaction at step {at}"
            if at == 200:
                assert_close(output.logits, masked_logits(model().oracle, ids, output.token_ids, output.evictions))


# -- blocks that change hands -----------------------------------------------------------------------------------------------


def alone(ids: list[int], config: EngineConfig, policy: EvictionPolicy | None, params: SamplingParams) -> RequestOutput:
    (output,) = make_engine(model().served, config, policy).generate([ids], params)
    return output


def test_requests_that_take_the_blocks_of_others_at_once_read_as_if_alone() -> None:
    """Every five steps one is aborted and another admitted, on a pool with nothing to spare; freed slots hold NaN."""
    config = EngineConfig(pool_blocks=14, chunk=32, budget=0.5, evict=EvictOptions("chunk", 4), poison=True, max_running=5)
    engine = make_engine(model().served, config, Random(), copy_some(3))
    prompts: dict[str, list[int]] = {}
    for step in range(200):
        if step % 5 == 0:
            if step % 10 == 0 and (names := running(engine)):
                engine.abort(names[step // 10 % len(names)])
            ids = prompt(step, 20 + step * 7 % 50, VOCABULARY)
            prompts[engine.add_request(ids, SamplingParams(max_tokens=12, seed=step, logits=True))] = ids
        step_audited(engine)
    for _ in steps(engine):
        pass
    reasons = {name: engine.outputs[name].finish_reason for name in prompts}
    assert list(reasons.values()).count("abort") > 10
    for step, (name, ids) in enumerate(prompts.items()):
        output = engine.outputs[name]
        if reasons[name] == "length" and step % 3 == 0:
            solo = alone(ids, config, Random(), SamplingParams(max_tokens=12, seed=5 * step, logits=True))
            assert output.evictions == solo.evictions
            assert output.logits is not None
            assert solo.logits is not None
            assert_close(output.logits, solo.logits, 1e-4)


@dataclass
class OnlySeed(EvictionPolicy):
    """Kills three of four tokens, in requests of one seed."""

    guilty: int = 1

    def evict_token(self, cache: CacheView) -> Tensor:
        return cache.live & (cache.positions % 4 != 0) & (cache.seed == self.guilty)


@pytest.mark.parametrize("runtime", ["naive", "refill", "vtoken", "page1"])
def test_evicting_from_a_shared_prefix_leaves_every_request_as_if_alone(runtime: Any) -> None:
    """Two requests share a prefix and one evicts from it; a third fills what becomes free, a fourth comes with the prefix again."""
    shared, other = prompt(0, 40, VOCABULARY), prompt(1, 90, VOCABULARY)
    reclaim = ReclaimOptions(packing="fill", refill=True)
    config = EngineConfig(runtime=runtime, pool_blocks=24, chunk=64, budget=20, evict=EvictOptions("end", 4), poison=True, reclaim=reclaim)
    caching = EngineConfig(**{**vars(config), "prefix_cache": True})
    prompts = [[*shared, *prompt(2 + i, 9, VOCABULARY)] for i in range(3)]
    prompts.insert(2, other)
    engine = make_engine(model().served, caching, OnlySeed(), copy_some(4))
    names = []
    for i, ids in enumerate(prompts):
        names.append(engine.add_request(ids, SamplingParams(max_tokens=24, seed=i, logits=True)))
        for _ in range((1, 8, 8, 0)[i]):
            step_audited(engine)
    for _ in steps(engine):
        pass
    hits = [engine.outputs[name].prefix_hit_tokens for name in names]
    assert hits == [0, 32, 0, 32]
    for i, (name, ids) in enumerate(zip(names, prompts, strict=True)):
        output = engine.outputs[name]
        solo = alone(ids, config, OnlySeed(), SamplingParams(max_tokens=24, seed=i, logits=True))
        assert bool(output.evictions) == (i == 1)
        assert output.evictions == solo.evictions
        assert output.logits is not None
        assert solo.logits is not None
        assert_close(output.logits, solo.logits, 1e-4)
    index = engine.worker.index
    assert index is not None
    engine.worker.drop_prefixes(len(index))
    engine.check()
    assert engine.worker.pool.n_free() == engine.worker.pool.n_blocks


# -- nothing free to move into ----------------------------------------------------------------------------------------------


@dataclass
class SevenOfSixteen(EvictionPolicy):
    """Leaves seven live tokens in each whole block of 16."""

    def evict_token(self, cache: CacheView) -> Tensor:
        return cache.live & (cache.positions % SIZE >= 7)


class HalfDead:
    """A pool that two requests fill to its last block (or the last but one), every block 7/16 live, while a third one waits."""

    def __init__(self, reclaim: ReclaimOptions, pool_blocks: int = 32, *, prefix_cache: bool = False) -> None:
        config = EngineConfig(
            pool_blocks=pool_blocks,
            chunk=256,
            prefill_tokens=512,
            budget=1,
            max_running=4,
            evict=EvictOptions("never", SIZE),
            reclaim=reclaim,
            prefix_cache=prefix_cache,
        )
        self.engine = make_engine(model().served, config, SevenOfSixteen(), copy_some(5))
        self.prompts = [prompt(i, n, VOCABULARY) for i, n in enumerate((240, 240, 90))]
        self.names: list[str] = []
        self.add(24)
        self.add(24)
        self.records: list[StepRecord] = []

    def add(self, tokens: int) -> None:
        ids = self.prompts[len(self.names)]
        self.names.append(self.engine.add_request(ids, SamplingParams(max_tokens=tokens, logits=True)))

    def fill(self) -> None:
        """Up to the step that evicts: 16 blocks each. Then comes the third request."""
        table = self.engine.worker.table
        while int(table.length[0]) < 256 or int(table.length[1]) < 256:
            assert self.engine.steps < 1_000, "the two never get there"
            self.records += step_audited(self.engine)
        held = (table.held[:2].unflatten(1, (-1, SIZE)) >= 0).sum(2)
        counts = held[table.blocks[:2] != table.pool.trash]
        assert sorted(counts.tolist()) == [7] * 30 + [8] * 2  # the newest token never dies
        self.add(8)

    def finish(self, catch: Callable[[], list[StepRecord]] | None = None) -> list[RequestOutput]:
        """To the end, without a long stretch in which nothing runs."""
        idle = 0
        while self.engine.has_work:
            before = self.engine.steps
            known = (catch or (lambda: step_audited(self.engine)))()
            self.records += known
            idle = 0 if any(r.decode_tokens + r.prefill_tokens for r in known) or self.engine.steps == before else idle + 1
            assert idle <= 2 * self.engine.config.lag + 1, "requests wait and none runs"
            assert self.engine.steps < 200
        outputs = [self.engine.outputs[name] for name in self.names]
        for ids, output in zip(self.prompts, outputs, strict=True):
            assert output.finish_reason == "length"
            assert output.logits is not None
            assert_close(output.logits, masked_logits(model().oracle, ids, output.token_ids, output.evictions))
        assert self.engine.worker.pool.n_free() + self.cached() == self.engine.worker.pool.n_blocks
        return outputs

    def cached(self) -> int:
        index = self.engine.worker.index
        return len(index) * index.blocks_per_entry if index is not None else 0

    @property
    def preempted(self) -> int:
        return sum(self.engine.outputs[name].preemptions for name in self.names)


@pytest.mark.parametrize("free", [0, 1])
@pytest.mark.parametrize("cap", [8, 4096])
def test_a_pool_full_of_half_dead_blocks_is_compacted_in_place(free: int, cap: int) -> None:
    trial = HalfDead(ReclaimOptions(move_cap=cap), 32 + free)
    trial.fill()
    trial.finish()
    assert trial.preempted == 0
    assert all(record.moves <= cap * max(1, record.plans) for record in trial.records)


@pytest.mark.parametrize("free", [0, 1])
def test_packing_into_new_blocks_goes_on_by_preemption_where_there_are_none(free: int) -> None:
    trial = HalfDead(ReclaimOptions(packing="fresh", margin=0), 32 + free)
    trial.fill()
    trial.finish()


def test_a_pool_of_shared_blocks_gives_up_its_prefixes_first() -> None:
    trial = HalfDead(ReclaimOptions(), prefix_cache=True)
    trial.fill()
    assert trial.cached() == 30
    trial.finish()
    assert trial.preempted == 0


def test_an_engine_whose_copies_fail_says_so_once_and_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_memory(*_: object) -> None:
        raise torch.OutOfMemoryError("tried to allocate 20.00 MiB")

    trial = HalfDead(ReclaimOptions())
    trial.fill()
    monkeypatch.setattr(KVCache, "copy_slots", no_memory)
    errors: list[ReclaimError] = []

    def step() -> list[StepRecord]:
        try:
            return trial.engine.step()
        except ReclaimError as error:
            errors.append(error)
            return []
        finally:
            trial.engine.check()

    trial.finish(step)
    (error,) = errors
    assert "tried to allocate 20.00 MiB" in str(error)
    assert trial.preempted > 0
    assert sum(record.moves for record in trial.records) == 0
