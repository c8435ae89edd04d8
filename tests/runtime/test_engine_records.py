"""What a step says of itself equals what is counted by hand from the eviction log."""

from __future__ import annotations

from typing import Any

import pytest

from vtoken_sdk.policies.random import Random
from vtoken_sdk.policies.streaming_llm import StreamingLLM
from vtoken_sdk.policy import EvictionPolicy
from vtoken_sdk.runtime import Engine, EngineConfig, EvictOptions, SamplingParams, StepRecord

from .oracles import Run, make_engine, prompt, small, step_audited

EVICTING = ("naive", "refill", "vtoken", "page1")
PROMPTS = [prompt(i, n) for i, n in enumerate((70, 33, 16, 5))]
TOKENS = (30, 20, 12, 25)


def watch(engine: Engine, prompts: list[list[int]] = PROMPTS, **params: Any) -> tuple[Run, list[dict[str, int]]]:
    """Run to the end; with the cursor of each request that holds blocks at the end of each step."""
    each = [SamplingParams(max_tokens=n, seed=i, **params) for i, n in enumerate(TOKENS)]
    names = [engine.add_request(ids, p) for ids, p in zip(prompts, each, strict=False)]
    records: list[StepRecord] = []
    cursors: list[dict[str, int]] = []
    while engine.has_work:
        before = engine.steps
        records += step_audited(engine)
        if engine.steps > before:
            cursors.append({seq.id: seq.cursor for seq in engine.scheduler.running})
    assert [r.step for r in records] == list(range(len(cursors)))
    return Run(engine, prompts, [engine.outputs[name] for name in names], records), cursors


def engine(runtime: Any, policy: EvictionPolicy | None = None, **options: Any) -> Engine:
    defaults: dict[str, Any] = {"pool_blocks": 40, "max_running": 4, "chunk": 24, "budget": 0.5, "evict": EvictOptions("chunk", 3)}
    return make_engine(small().served, EngineConfig(**{**defaults, "runtime": runtime, **options}), policy)


@pytest.mark.parametrize("runtime", EVICTING)
def test_tokens_blocks_and_waste_are_those_of_the_log(runtime: Any) -> None:
    one = engine(runtime, Random())
    run, cursors = watch(one)
    slots = one.config.slots_per_block
    of = {output.request_id: i for i, output in enumerate(run.outputs)}
    for record, held in zip(run.records, cursors, strict=True):
        live = {name: run.live_at(cursor, of[name]) for name, cursor in held.items()}
        assert record.running == len(held)
        assert record.live_tokens == record.live_slots == sum(map(len, live.values()))
        assert record.blocks_ideal == sum(-(-len(tokens) // slots) for tokens in live.values())
        assert record.blocks_held >= record.blocks_ideal
        assert record.slots_held == record.blocks_held * slots
        if held:
            assert record.utilization == record.live_tokens / (record.blocks_held * slots)
            assert record.waste == 1 - record.live_tokens / (record.blocks_held * slots)
        else:
            assert (record.utilization, record.waste, record.blocks_held) == (None, None, 0)
        if runtime == "naive":  # tokens never move: a block is held as long as one of its tokens lives
            assert record.blocks_held == sum(len({t // slots for t in tokens}) for tokens in live.values())
        if runtime == "page1":
            assert record.waste in (0, None)


@pytest.mark.parametrize("runtime", EVICTING)
def test_sums_over_a_run_balance(runtime: Any) -> None:
    one = engine(runtime, Random())
    run, _ = watch(one)
    records, slots = run.records, one.config.slots_per_block
    assert sum(r.prefill_tokens for r in records) == sum(map(len, PROMPTS))
    assert sum(r.decode_tokens for r in records) == sum(n - 1 for n in TOKENS)
    assert sum(r.evicted for r in records) == sum(len(e.ids) for log in run.evictions for e in log) > 0
    moves = sum(r.moves for r in records)
    assert (moves > 0) == (runtime == "vtoken") == (sum(r.plans for r in records) > 0)
    config: Any = small().served.hf.config
    of_a_token = 2 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim * 4
    assert sum(r.bytes_moved for r in records) == 2 * moves * of_a_token
    # Blocks taken: those held now that were not before, and those given back in between.
    freed = sum(r.blocks_freed for r in records)
    assert records[-1].blocks_held == 0
    stored = [len(ids) + n - 1 for ids, n in zip(PROMPTS, TOKENS, strict=True)]
    if runtime in ("naive", "page1"):  # nothing is used twice: every token's block was taken once
        assert freed == sum(-(-n // slots) for n in stored)
    assert max(r.blocks_freed for r in records) <= freed <= sum(stored)


def test_what_stops_early_is_counted_as_it_ran_and_given_back_in_a_record() -> None:
    """Rows that had stopped, unknown to the host, ran nothing; the last blocks are freed in a step of their own."""
    free, _ = watch(engine("native"))
    stops = tuple({o.token_ids[len(o.token_ids) // 2] for o in free.outputs})
    totals = []
    for lag in (1, 2, 4):
        run, _ = watch(engine("native", lag=lag), stop_token_ids=stops)
        assert {o.finish_reason for o in run.outputs} == {"stop"}
        totals.append(sum(r.decode_tokens for r in run.records))
        assert totals[-1] == sum(len(o.token_ids) - 1 for o in run.outputs)
        assert run.records[-1].blocks_held == 0
        blocks = [-(-(len(ids) + len(o.token_ids) - 1) // 16) for ids, o in zip(PROMPTS, run.outputs, strict=True)]
        # A row that stopped may have been given the block for a token that it did not run: never.
        assert sum(r.blocks_freed for r in run.records) == sum(blocks)
    assert len(set(totals)) == 1


def test_shared_blocks_are_counted_once_and_cached_ones_not_at_all() -> None:
    shared = prompt(0, 64)
    prompts = [shared + prompt(i, 6 + i) for i in range(3)]
    one = engine("naive", prefix_cache=True, chunk=128)
    run, cursors = watch(one, prompts)
    together = next(i for i, held in enumerate(cursors) if len(held) == 3)
    record, held = run.records[together], cursors[together]
    assert [o.prefix_hit_tokens for o in run.outputs] == [0, 64, 64]
    assert record.live_tokens == sum(held.values())
    assert record.live_slots == sum(held.values()) - 2 * 64
    assert record.blocks_held == 4 + sum(-(-(n - 64) // 16) for n in held.values())
    assert run.records[-1].blocks_held == 0 and one.worker.index is not None and len(one.worker.index) >= 4


def test_times_are_kept_apart_and_rows_are_flat() -> None:
    run, _ = watch(engine("vtoken", Random()))
    for part in ("model", "policy", "table", "plan", "copy"):
        assert sum(getattr(r, f"{part}_ms") for r in run.records) > 0
    assert all(a.time_s <= b.time_s for a, b in zip(run.records, run.records[1:], strict=False))
    row = run.records[5].as_row()
    assert {"step", "live_tokens", "blocks_held", "utilization", "waste", "model_ms"} <= set(row)
    assert all(value is None or isinstance(value, int | float) for value in row.values())
    without, _ = watch(engine("native"))
    assert all(r.policy_ms == r.plan_ms == r.copy_ms == 0 for r in without.records)


@pytest.mark.parametrize("runtime", ["vtoken", "page1", "refill"])
def test_a_recency_policy_holds_what_it_keeps(runtime: Any) -> None:
    """At most ceil(live / block) + 1 blocks a request, once what is dead is reclaimed."""
    one = engine(runtime, StreamingLLM(), evict=EvictOptions("end", 4), chunk=100)
    run, cursors = watch(one)
    settled = [(r, held) for r, held in zip(run.records[12:], cursors[12:], strict=True) if held]
    assert settled
    for record, held in settled:
        assert runtime == "refill" or record.blocks_held <= record.blocks_ideal + len(held)


def test_concurrency_peak_counts_requests_that_held_blocks_at_once() -> None:
    one = engine("native", max_running=3)
    run, cursors = watch(one)
    assert one.concurrency_peak == max(r.running for r in run.records) == max(map(len, cursors)) == 3
    assert max(r.waiting for r in run.records) >= 1


@pytest.mark.parametrize("runtime", ["native", "naive", "refill", "vtoken", "page1"])
def test_occupancy_counts_every_held_block_and_live_token(runtime: Any) -> None:
    policy = None if runtime == "native" else Random()
    config = EngineConfig(runtime=runtime, pool_blocks=60, chunk=16, evict=EvictOptions("chunk", 3), prefix_cache=runtime == "naive")
    engine = Engine(small().served, config, policy)
    for i in range(3):
        engine.add_request(prompt(i % 2, 50 + 9 * (i % 2)), SamplingParams(max_tokens=12, ignore_eos=True))
    records: list[StepRecord] = []
    counts: dict[int, list[int]] = {}
    while engine.has_work:
        records += engine.step()
        counts[engine.steps - 1] = engine.occupancy()
    for record in records:
        assert len(counts[record.step]) == engine.config.slots_per_block + 1
        assert sum(counts[record.step]) == record.blocks_held
        assert sum(live * n for live, n in enumerate(counts[record.step])) == record.live_slots
    assert sum(r.blocks_held > 0 for r in records) > 10
