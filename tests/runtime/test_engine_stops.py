"""Requests end where transformers would end them, for the reason they say."""

from __future__ import annotations

import pytest
import torch

from vtoken_sdk.runtime import Engine, EngineConfig, SamplingParams
from vtoken_sdk.runtime.model_loader import LoadedModel

from .oracles import SMALL, build, drive, greedy, make_engine, prompt, small

CONFIG = EngineConfig(runtime="native", pool_blocks=40, chunk=16)
ENDS = (5, 9, 12)


def engine_with_ends(*ends: int) -> Engine:
    model = build("llama", **SMALL)
    model.generation_config.eos_token_id = list(ends)
    return make_engine(LoadedModel.from_transformers(model), CONFIG)


@pytest.mark.parametrize("lag", [1, 2, 3])
@pytest.mark.parametrize("which", range(3))
def test_each_of_several_end_tokens_stops_where_transformers_stops(which: int, lag: int) -> None:
    """The n-th token of the free run is made one of the end tokens; requests beside it run on."""
    ids, other = prompt(2, 40), prompt(3, 25)
    free = make_engine(small().served, CONFIG).generate([ids, other], SamplingParams(max_tokens=20))
    first = {token: i for i, token in reversed(list(enumerate(free[0].token_ids)))}
    end, at = next((t, i) for t, i in first.items() if i >= 6 and t not in free[1].token_ids)
    ends = [901, 902, 903]
    ends[which] = end
    model = build("llama", **SMALL)
    model.generation_config.eos_token_id = ends
    expected = model.generate(
        torch.tensor([ids]), max_new_tokens=20, do_sample=False, pad_token_id=0, attention_mask=torch.ones(1, 40).long()
    )
    config = EngineConfig(runtime="native", pool_blocks=40, chunk=16, lag=lag)
    run = drive(make_engine(LoadedModel.from_transformers(model), config), [ids, other], SamplingParams(max_tokens=20))
    stopped, going = run.outputs
    assert stopped.token_ids == expected[0, 40:].tolist() == free[0].token_ids[: at + 1]
    assert stopped.finish_reason == "stop"
    assert stopped.logits is not None
    assert len(stopped.logits) == at + 1
    assert going.token_ids == free[1].token_ids
    assert going.finish_reason == "length"
    assert sum(r.decode_tokens for r in run.records) == at + 19  # a stopped row runs no more, whatever was launched


def test_end_tokens_can_be_ignored_and_others_added() -> None:
    ids = prompt(2, 40)
    free = make_engine(small().served, CONFIG).generate([ids], SamplingParams(max_tokens=12))[0].token_ids
    end, added = free[4], free[7]
    engine = engine_with_ends(end, 901)
    ignoring, with_own, both = engine.generate(
        [ids] * 3,
        [
            SamplingParams(max_tokens=12, ignore_eos=True),
            SamplingParams(max_tokens=12, ignore_eos=True, stop_token_ids=(added,)),
            SamplingParams(max_tokens=12, stop_token_ids=(added,)),
        ],
    )
    assert (ignoring.token_ids, ignoring.finish_reason) == (free, "length")
    assert (with_own.token_ids, with_own.finish_reason) == (free[: free.index(added) + 1], "stop")
    assert (both.token_ids, both.finish_reason) == (free[: free.index(end) + 1], "stop")


def test_an_end_token_in_the_last_place_is_a_stop() -> None:
    ids = prompt(2, 40)
    free = make_engine(small().served, CONFIG).generate([ids], SamplingParams(max_tokens=5))[0].token_ids
    at = free.index(free[4]) + 1
    done = engine_with_ends(free[4]).generate([ids], SamplingParams(max_tokens=at))[0]
    assert (len(done.token_ids), done.finish_reason) == (at, "stop")


def test_forced_tokens_are_fed_back_and_end_at_their_last() -> None:
    forced = (5, 77, 5, 9, 300)
    engine = engine_with_ends(*ENDS)
    run = drive(engine, [prompt(4, 30)], SamplingParams(forced=forced))
    assert run.outputs[0].token_ids == list(forced)
    assert run.outputs[0].finish_reason == "length"
    run.assert_masked(small().oracle)


def test_tokens_that_leave_every_window_die_alike_whatever_the_lag() -> None:
    model = small("mistral-window")
    stop = greedy(model.oracle, prompt(3, 45), 3)[-1]
    logs = []
    for lag in (1, 2, 4):
        engine = make_engine(model.served, EngineConfig(runtime="native", block_size=8, pool_blocks=40, lag=lag))
        logs.append(engine.generate([prompt(3, 45)], SamplingParams(max_tokens=30, stop_token_ids=(stop,)))[0].evictions)
    assert logs[0] == logs[1] == logs[2] != []
