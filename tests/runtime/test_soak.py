"""Ten thousand random operations on real engines, audited after every step: the books balance, and are empty at the end."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from typing import Any

import pytest

from vtoken_sdk.policies.h2o import H2O
from vtoken_sdk.policies.random import Random
from vtoken_sdk.policies.streaming_llm import StreamingLLM
from vtoken_sdk.policy import EvictionPolicy
from vtoken_sdk.runtime import Engine, EngineConfig, EvictOptions, ReclaimOptions, RequestRejected, SamplingParams
from vtoken_sdk.runtime.step_books import POOL_FIELDS

from .oracles import copy_some, make_engine, tiny

VOCABULARY = 40
SHAPE = {
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "vocab_size": VOCABULARY,
}
TOKENS = {1: 140, 8: 176, 16: 224, 32: 320}  # slots of a pool, by block size: what three or four requests want
OPERATIONS = 320
RUNTIMES: dict[str, dict[str, Any]] = {
    "native": {"runtime": "native"},
    "naive": {"runtime": "naive"},
    "refill": {"runtime": "refill"},
    "page1": {"runtime": "page1"},
    "fill": {"runtime": "vtoken"},
    "fill, capped": {"runtime": "vtoken", "reclaim": ReclaimOptions(move_cap=6, threshold=0.75, slack=4, publish_after=1)},
    "fill with refill": {"runtime": "vtoken", "reclaim": ReclaimOptions(refill=True, publish_after=3)},
    "fresh": {"runtime": "vtoken", "reclaim": ReclaimOptions(packing="fresh", margin=1)},
}
KINDS: dict[tuple[int, str], Counter[str]] = {}


class Soak:
    """One engine, and what happened in it."""

    def __init__(self, size: int, runtime: str) -> None:
        draw = self.draw = random.Random(f"{size} {runtime}")
        self.policy: EvictionPolicy | None = draw.choice([Random(), Random(fresh=False, sinks=2), StreamingLLM(), H2O()])
        if runtime == "native":
            self.policy = None
        config = EngineConfig(
            block_size=size,
            pool_blocks=TOKENS[size] // size,
            max_running=6,
            chunk=draw.choice([16, 32]),
            prefill_tokens=draw.choice([None, 64]),
            budget=draw.choice([0.3, 0.5, 20]),
            evict=EvictOptions(draw.choice(["chunk", "end"]), draw.choice([1, 4, 16])),
            prefix_cache=True,
            lag=draw.choice([1, 2, 3]),
            poison=draw.random() < 0.5,
            **RUNTIMES[runtime],
        )
        self.engine: Engine = make_engine(tiny(**SHAPE).served, config, self.policy, copy_some(draw.randrange(100)))
        self.roots = [[draw.randrange(VOCABULARY) for _ in range(64)] for _ in range(2)]
        self.seen: Counter[str] = Counter()

    def unfinished(self) -> list[str]:
        return [name for name, output in self.engine.outputs.items() if output.finish_reason is None]

    def add(self) -> None:
        draw = self.draw
        prompt = draw.choice(self.roots)[: draw.choice([0, 16, 32, 64])] + [draw.randrange(VOCABULARY) for _ in range(draw.randint(1, 40))]
        params = SamplingParams(
            max_tokens=draw.randint(1, 40),
            temperature=draw.choice([0.0, 1.0]),
            stop_token_ids=(draw.randrange(VOCABULARY),) if draw.random() < 0.2 else (),
        )
        self.seen["add"] += 1
        try:
            self.engine.add_request(prompt, params)
        except RequestRejected:
            self.seen["rejected"] += 1

    def abort(self) -> None:
        if names := self.unfinished():
            self.engine.abort(self.draw.choice(names))
            self.seen["abort"] += 1

    def step(self) -> None:
        self.seen["step"] += 1
        n_blocks, size = self.engine.config.n_blocks, self.engine.config.slots_per_block
        for record in self.engine.step():
            assert 0 <= record.blocks_held <= n_blocks
            assert record.live_slots <= record.blocks_held * size == record.slots_held
            assert record.live_slots <= record.live_tokens
            assert record.utilization is None or 0 < record.utilization <= 1
            self.seen["evicted"] += record.evicted
            self.seen["plan"] += record.plans
            self.seen["move"] += record.moves
            self.seen["freed"] += record.blocks_freed
            self.seen["preempted"] += record.preempted
        self.engine.check()

    def run(self) -> Counter[str]:
        for _ in range(OPERATIONS):
            busy = len(self.unfinished())
            kind = self.draw.random()
            if kind < 0.12 and busy < 9:
                self.add()
            elif kind < 0.14:
                self.abort()
            else:
                self.step()
        while self.engine.has_work:
            self.step()
        worker, index = self.engine.worker, self.engine.worker.index
        assert index is not None
        assert int(worker.record()[-1, POOL_FIELDS.index("held_distinct")]) == 0
        assert worker.pool.n_free() == worker.pool.n_blocks - len(index) * index.blocks_per_entry
        worker.drop_prefixes(len(index))
        self.engine.check()
        assert worker.pool.n_free() == worker.pool.n_blocks
        for output in self.engine.outputs.values():
            assert output.finish_reason in ("stop", "length", "capacity", "abort"), output
            self.seen[output.finish_reason] += 1
            self.seen["hit"] += output.prefix_hit_tokens
        return self.seen


@pytest.mark.parametrize(("size", "runtime"), list(itertools.product(TOKENS, RUNTIMES)))
def test_the_books_balance_after_every_step(size: int, runtime: str) -> None:
    KINDS[size, runtime] = seen = Soak(size, runtime).run()
    assert seen["step"] > 250
    assert seen["length"] > 0
    if runtime != "native":
        assert seen["evicted"] > 0
    if RUNTIMES[runtime]["runtime"] == "vtoken" and size > 1:
        assert seen["plan"] > 0
