"""Replays against real runs: the same victims wherever the evictions change nothing that the policy reads."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from torch import Tensor

from tests.runtime.oracles import drive, make_engine, prompt, small
from vtoken_sdk.policies.full import Full
from vtoken_sdk.policies.h2o import H2O
from vtoken_sdk.policies.knorm import KNorm
from vtoken_sdk.policies.oracle import Oracle
from vtoken_sdk.policies.random import Random
from vtoken_sdk.policies.snapkv import SnapKV
from vtoken_sdk.policies.streaming_llm import StreamingLLM
from vtoken_sdk.policy import CacheView, EvictionPolicy, NewTokens, PolicyError
from vtoken_sdk.replay.file import RecordedRun, RecordingError, read_recording, write_recording
from vtoken_sdk.replay.replay import Replay, ReplayResult
from vtoken_sdk.runtime import EngineConfig, EvictOptions, ReclaimOptions, SamplingParams, look_ahead

PROMPTS = [prompt(i, n) for i, n in enumerate((70, 33, 50))]
TOKENS = (24, 30, 9)
CHUNK = 24


@functools.cache
def recorded() -> tuple[RecordedRun, tuple[SamplingParams, ...]]:
    params = [SamplingParams(max_tokens=n, seed=None) for n in TOKENS]
    params = look_ahead(small().served, EngineConfig(chunk=CHUNK), PROMPTS, params)
    recordings = [p.future for p in params if p.future is not None]
    return RecordedRun(tuple(recordings), tuple(map(len, PROMPTS)), {"model": "small"}), tuple(params)


def replay(policy: EvictionPolicy, runtime: Any = "vtoken", prefill: Any = "chunk", **options: Any) -> ReplayResult:
    config = EngineConfig(runtime=runtime, chunk=CHUNK, budget=0.4, evict=EvictOptions(prefill, 3), **options)
    return Replay(recorded()[0], policy, config)()


def real_victims(policy: EvictionPolicy, prefill: Any = "chunk") -> list[list[tuple[int, tuple[int, ...]]]]:
    config = EngineConfig(runtime="naive", chunk=CHUNK, budget=0.4, evict=EvictOptions(prefill, 3), pool_blocks=60, max_running=3)
    outputs = make_engine(small().served, config, policy).generate(PROMPTS, recorded()[1])
    return [[(e.length, e.ids) for e in output.evictions] for output in outputs]


@pytest.mark.parametrize("prefill", ["chunk", "end"])
@pytest.mark.parametrize("policy", [StreamingLLM(), Random(), Oracle(), Full()], ids=lambda p: type(p).__name__)
def test_policies_that_evictions_do_not_mislead_have_the_same_victims(policy: EvictionPolicy, prefill: Any) -> None:
    assert [list(log) for log in replay(policy, prefill=prefill).victims] == real_victims(policy, prefill)


@pytest.mark.parametrize("policy", [H2O(), KNorm()], ids=["h2o", "knorm"])
def test_others_agree_until_the_first_eviction(policy: EvictionPolicy) -> None:
    for log, real in zip(replay(policy).victims, real_victims(policy), strict=True):
        assert log[0] == real[0]
        assert [length for length, _ in log] == [length for length, _ in real]


@dataclass
class Watches(EvictionPolicy):
    """Notes the attention that it is shown."""

    needs: ClassVar = frozenset({"attention"})

    def sync_new_tokens(self, cache: CacheView, new: NewTokens) -> None:
        torch.testing.assert_close(new.attention.sum(-1), new.count[..., 0].float(), atol=1e-4, rtol=1e-4)
        assert not new.attention.masked_select(~cache.live).any()

    def evict_token(self, cache: CacheView) -> Tensor:
        return cache.evict_lowest(cache.positions % 7)


def test_attention_is_of_live_tokens_and_sums_to_the_queries() -> None:
    assert replay(Watches()).evictions > 50


@pytest.mark.parametrize("reclaim", [ReclaimOptions(), ReclaimOptions("fresh", margin=0), ReclaimOptions(move_cap=5, publish_after=3)])
def test_runtimes_have_the_same_victims_and_their_own_blocks(reclaim: ReclaimOptions) -> None:
    """naive holds the blocks that the victims leave it, counted by hand; vtoken and page1 come near the ideal."""
    results = {name: replay(Random(), name, reclaim=reclaim) for name in ("naive", "refill", "vtoken", "page1")}
    assert len({r.victims for r in results.values()}) == 1
    naive, vtoken, page1 = results["naive"], results["vtoken"], results["page1"]
    run, steps = recorded()[0], max(len(r.lengths) for r in recorded()[0].requests)
    held = []
    for step in range(steps):
        blocks = 0
        for recording, log in zip(run.requests, naive.victims, strict=True):
            if step < len(recording.lengths):
                length = int(recording.lengths[step])
                dead = {token for at, ids in log if at <= length for token in ids}
                blocks += len({token // 16 for token in range(length) if token not in dead})
        held.append(blocks)
    assert naive.blocks_held == pytest.approx(sum(held) / steps)
    assert naive.blocks_held_peak == max(held)
    assert naive.moves == 0 < vtoken.moves
    assert vtoken.blocks_held < naive.blocks_held
    assert page1.waste == 0 and page1.blocks_held == page1.live_tokens == naive.live_tokens


def test_the_oracle_keeps_the_most_attention() -> None:
    kept = {type(p).__name__: replay(p).attention_kept for p in (Oracle(), H2O(), Random())}
    assert kept["Oracle"] == max(v for v in kept.values() if v is not None)
    assert replay(Full()).attention_kept is None  # nothing was evicted


@dataclass
class Fails(EvictionPolicy):
    def evict_token(self, cache: CacheView) -> Tensor:
        return cache.score(lambda kv: kv.keys.sum(-1)) > 0


def test_what_a_recording_lacks_is_refused_by_name() -> None:
    with pytest.raises(PolicyError, match=r"reads queries.*vtoken-sweep"):
        replay(SnapKV())
    with pytest.raises(PolicyError, match=r"policy Fails, request request-\d: .*kv.keys is not in a recording.*key_norms.*vtoken-sweep"):
        replay(Fails())


def test_a_file_gives_back_what_was_written(tmp_path: Path) -> None:
    run = recorded()[0]
    write_recording(tmp_path / "a.parquet", run)
    got = read_recording(tmp_path / "a.parquet")
    assert (got.prompt_tokens, got.about) == (run.prompt_tokens, run.about)
    for one, other in zip(got.requests, run.requests, strict=True):
        assert one.lengths.equal(other.lengths) and one.attention.equal(other.attention) and one.key_norms.equal(other.key_norms)


def test_other_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "text.parquet").write_text("no")
    pq.write_table(pa.table({"x": [1]}), tmp_path / "table.parquet")
    for name, said in {"none": "no such file", "text": "not a readable", "table": "no recording"}.items():
        with pytest.raises(RecordingError, match=f"{name}.parquet.*{said}"):
            read_recording(tmp_path / f"{name}.parquet")


def test_a_real_run_is_the_measure(tmp_path: Path) -> None:
    """The policy's tokens on the real engine are those of the masked forward, forced to the recorded text."""
    config = EngineConfig(chunk=CHUNK, budget=0.4, evict=EvictOptions("chunk", 3), pool_blocks=60, max_running=3)
    run = drive(make_engine(small().served, config, Oracle()), PROMPTS, recorded()[1])
    run.assert_masked(small().oracle)
