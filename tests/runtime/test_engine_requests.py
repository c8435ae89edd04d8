"""What comes in and how it ends: refusals with numbers in them, requests that just fit, and aborts at any moment."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch

from vtoken_sdk.policies.h2o import H2O
from vtoken_sdk.policies.random import Random
from vtoken_sdk.policies.streaming_llm import StreamingLLM
from vtoken_sdk.policy import EvictionPolicy
from vtoken_sdk.runtime import (
    ConfigError,
    Engine,
    EngineConfig,
    EvictOptions,
    ReclaimOptions,
    RequestOutput,
    RequestRejected,
    SamplingParams,
)

from .oracles import SMALL, Run, assert_close, drive, make_engine, masked_logits, prompt, small, step_audited, step_until, tiny


def engine(policy: EvictionPolicy | None = None, **options: Any) -> Engine:
    defaults: dict[str, Any] = {"pool_blocks": 8, "max_running": 4, "chunk": 32, "poison": True}
    return make_engine(small().served, EngineConfig(**{**defaults, **options}), policy)


# -- what can never run -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", [None, StreamingLLM()], ids=["none", "streaming_llm"])
def test_a_prompt_larger_than_the_pool_is_refused_and_blocks_nobody(policy: EvictionPolicy | None) -> None:
    """Also under a policy whose budget would fit, where the whole prompt is held before the policy is asked."""
    one = engine(policy, budget=32)
    with pytest.raises(RequestRejected, match=r"needs 13 blocks of 16 tokens .* the pool has 8.*pool_blocks"):
        one.add_request(prompt(0, 200), SamplingParams(max_tokens=1))
    run = drive(one, [prompt(i, 9) for i in range(3)], SamplingParams(max_tokens=5))
    assert [o.finish_reason for o in run.outputs] == ["length"] * 3
    assert one.steps < 20


@pytest.mark.parametrize("n", [126, 127, 128])
def test_a_prompt_that_just_fits_runs(n: int) -> None:
    run = drive(engine(), [prompt(0, n)], SamplingParams(max_tokens=1))
    run.assert_masked(small().oracle)
    assert run.outputs[0].finish_reason == "length"


def test_one_token_more_than_the_pool_is_refused() -> None:
    with pytest.raises(RequestRejected, match="needs 9 blocks"):
        engine().add_request(prompt(0, 129), SamplingParams(max_tokens=1))


@pytest.mark.parametrize("runtime", ["refill", "vtoken", "page1"])
@pytest.mark.parametrize("reclaim", [ReclaimOptions(), ReclaimOptions(publish_after=1), ReclaimOptions(refill=True)], ids=str)
def test_evicting_between_chunks_serves_a_prompt_larger_than_the_pool(runtime: Any, reclaim: ReclaimOptions) -> None:
    """In exactly the blocks that the refusal names."""
    options: dict[str, Any] = {"runtime": runtime, "budget": 40, "evict": EvictOptions("chunk", 16), "reclaim": reclaim, "chunk": 32}
    one = engine(Random(), pool_blocks=1, **options)
    with pytest.raises(RequestRejected) as refusal:
        one.add_request(prompt(0, 400), SamplingParams(max_tokens=20))
    needed = int(str(refusal.value).split("needs ")[1].split()[0])
    blocks = -(-needed // 16) if runtime == "page1" else needed
    assert blocks < 400 // 16
    run = drive(engine(Random(), pool_blocks=blocks, **options), [prompt(0, 400)], SamplingParams(max_tokens=20))
    assert run.outputs[0].finish_reason == "length"
    run.assert_masked(small().oracle)


@pytest.mark.parametrize(
    ("n", "more", "fits"), [(300, 1, False), (250, 20, False), (250, 7, True), (256, 1, True), (257, 1, False), (1, 256, True)], ids=str
)
def test_positions_never_go_beyond_the_models(n: int, more: int, fits: bool) -> None:
    """The last sampled token needs no position: it is never run."""
    model = tiny("llama", **{**SMALL, "max_position_embeddings": 256})
    for policy in (None, StreamingLLM()):
        one = make_engine(model.served, EngineConfig(pool_blocks=40, budget=32), policy)
        if fits:
            one.add_request(prompt(0, n), SamplingParams(max_tokens=more))
        else:
            with pytest.raises(RequestRejected, match=rf"need {n + more - 1} positions; the model has 256"):
                one.add_request(prompt(0, n), SamplingParams(max_tokens=more))
            assert not one.has_work


@pytest.mark.parametrize(
    ("ids", "params", "message"),
    [
        ([], SamplingParams(), "prompt is empty"),
        ([1, 1000], SamplingParams(), "prompt has the token id 1000; .* from 0 to 999"),
        ([1, -1], SamplingParams(), "token id -1"),
        ([1, True], SamplingParams(), "token id True"),
        ([1, 2.0], SamplingParams(), "token id 2.0"),
        ([1], SamplingParams(forced=(5, 1000)), "forced has the token id 1000"),
        ([1], SamplingParams(stop_token_ids=(-5,)), "stop_token_ids has the token id -5"),
        ([1], SamplingParams(stop=("x",)), "needs a tokenizer"),
    ],
    ids=["empty", "above", "negative", "bool", "float", "forced", "stop-id", "stop-string"],
)
def test_bad_requests_name_the_field(ids: list[Any], params: SamplingParams, message: str) -> None:
    one = engine()
    with pytest.raises(RequestRejected, match=message):
        one.add_request(ids, params)
    assert not one.has_work and one.outputs == {}


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("max_tokens", 0),
        ("max_tokens", 2.0),
        ("max_tokens", True),
        ("temperature", -0.1),
        ("temperature", float("nan")),
        ("temperature", float("inf")),
        ("temperature", "hot"),
        ("top_k", -1),
        ("top_k", 1.5),
        ("top_p", 0.0),
        ("top_p", 1.1),
        ("top_p", None),
        ("seed", -1),
        ("seed", 2**63),
        ("seed", 1.0),
        ("stop", "word"),
        ("stop", ("",)),
        ("forced", ()),
    ],
)
def test_bad_sampling_parameters_name_the_key(key: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=f"{key}="):
        SamplingParams(**{key: value})


def test_a_refused_request_leaves_no_trace() -> None:
    """Neither its number, which names and seeds the next one, nor a part of the batch that it came with."""
    one = engine()
    with pytest.raises(RequestRejected):
        one.add_request([], SamplingParams())
    with pytest.raises(RequestRejected):
        one.generate([prompt(0, 5), prompt(1, 500)], SamplingParams(max_tokens=2))
    with pytest.raises(ValueError, match="2 for 1 prompts"):
        one.generate([prompt(0, 5)], [SamplingParams(), SamplingParams()])
    assert not one.has_work and one.outputs == {}
    sampled = SamplingParams(max_tokens=6, temperature=1.0)
    output = one.generate([prompt(0, 5)], sampled)[0]
    assert output.request_id == "request-0"
    assert output.token_ids == engine().generate([prompt(0, 5)], sampled)[0].token_ids


def test_names_are_taken_once() -> None:
    one = engine()
    one.add_request(prompt(0, 5), request_id="a")
    with pytest.raises(RequestRejected, match="'a': already taken"):
        one.add_request(prompt(1, 5), request_id="a")


# -- aborts -----------------------------------------------------------------------------------------------------------------

OPTIONS: dict[str, Any] = {"pool_blocks": 20, "chunk": 16, "budget": 0.5, "evict": EvictOptions("chunk", 4)}
VICTIM, OTHERS = prompt(7, 60), [prompt(8, 40), prompt(9, 21)]


def sequence(one: Engine, name: str) -> Any:
    return one.book.unfinished.get(name)


def is_running(one: Engine) -> bool:
    seq = sequence(one, "victim")
    return seq is not None and seq.row is not None


PHASES: dict[str, Callable[[Engine], bool]] = {
    "waiting": lambda one: not is_running(one),
    "prefill": lambda one: is_running(one) and 0 < sequence(one, "victim").cursor < 60,
    "decode": lambda one: is_running(one) and sequence(one, "victim").decoded == 7,
    "plan in flight": lambda one: is_running(one) and sequence(one, "victim").row in one.compaction.busy_rows,
    "last step launched": lambda one: sequence(one, "victim").launched_all,
}


@functools.cache
def others_alone() -> list[RequestOutput]:
    return [drive(engine(Random(), **OPTIONS), [ids], SamplingParams(max_tokens=24, seed=i)).outputs[0] for i, ids in enumerate(OTHERS)]


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("lag", [1, 2, 3])
def test_an_abort_ends_one_request_and_touches_no_other(phase: str, lag: int) -> None:
    params = SamplingParams(max_tokens=24, logits=True)
    alone = others_alone()
    one = engine(Random(), **OPTIONS, lag=lag)
    names = [one.add_request(ids, SamplingParams(max_tokens=24, logits=True, seed=i)) for i, ids in enumerate(OTHERS)]
    victim = one.add_request(VICTIM, params, request_id="victim")
    step_until(one, PHASES[phase])
    known = list(one.outputs[victim].token_ids)
    one.abort(victim)
    one.check()
    late = one.add_request(prompt(11, 30), params)  # takes the freed blocks at once
    while one.has_work:
        step_audited(one)
    output = one.outputs[victim]
    assert (output.finish_reason, output.token_ids, output.error) == ("abort", known, None)
    if output.logits is not None:
        assert_close(output.logits, masked_logits(small().oracle, VICTIM, output.token_ids, output.evictions))
    for name, want in zip(names, alone, strict=True):
        got = one.outputs[name]
        assert (got.token_ids, got.evictions) == (want.token_ids, want.evictions)
        assert got.logits is not None and want.logits is not None
        assert_close(got.logits, want.logits)
    assert one.outputs[late].finish_reason == "length"
    Run(one, [], []).assert_whole()
    with pytest.raises(KeyError, match="victim"):
        one.abort(victim)


def test_an_aborted_request_that_was_preempted_keeps_its_log() -> None:
    one = engine(H2O(), pool_blocks=7, budget=0.6, evict=EvictOptions("end", 40))
    names = [one.add_request(prompt(i, 30), SamplingParams(max_tokens=60)) for i in range(3)]
    step_until(one, lambda engine: any(seq.saved for seq in engine.scheduler.waiting))
    gone = next(seq.id for seq in one.scheduler.waiting if seq.saved)
    one.abort(gone)
    while one.has_work:
        step_audited(one)
    assert [e.length for e in one.outputs[gone].evictions] == [30]
    assert {one.outputs[n].finish_reason for n in names if n != gone} == {"length"}
    Run(one, [], []).assert_whole()


@pytest.mark.parametrize("lag", [1, 4])
def test_the_log_of_an_aborted_request_speaks_of_its_known_tokens(lag: int) -> None:
    one = engine(Random(), pool_blocks=20, budget=1, evict=EvictOptions("end", 1), lag=lag)
    name = one.add_request(prompt(1, 20), SamplingParams(max_tokens=30))
    for _ in range(9):
        step_audited(one)
    one.abort(name)
    while one.has_work:
        step_audited(one)
    output = one.outputs[name]
    stored = 20 + len(output.token_ids) - 1
    assert output.evictions[-1].length == stored
    assert all(token < stored for e in output.evictions for token in e.ids)


def test_names_that_a_user_chose_are_passed_over() -> None:
    one = engine(pool_blocks=20)
    one.add_request([1], request_id="request-1")
    assert [one.add_request([1]) for _ in range(2)] == ["request-2", "request-3"]
    assert len(one.generate([[1], [2]])) == 2


def test_a_plan_that_is_published_late_keeps_nobody_waiting() -> None:
    options = {"pool_blocks": 20, "max_running": 1, "budget": 0.5, "reclaim": ReclaimOptions(publish_after=500)}
    one = engine(Random(), **options, evict=EvictOptions("end", 1))
    for i in range(2):
        one.add_request(prompt(i, 14), SamplingParams(max_tokens=10))
    while one.has_work:
        step_audited(one)
    assert one.steps < 50


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *[("temperature", 10**400), ("forced", 5), ("forced", torch.tensor([1, 2])), ("stop_token_ids", 5), ("stop_token_ids", None)],
        *[("stop", None), ("stop", "text"), ("logits", "no"), ("ignore_eos", 1)],
    ],
)
def test_params_of_the_wrong_kind_are_refused_by_name(field: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=f"^{field}="):
        SamplingParams(**{field: value})


@pytest.mark.parametrize("ids", [None, 7])
def test_a_prompt_that_holds_no_ids_is_refused(ids: Any) -> None:
    with pytest.raises(RequestRejected, match="prompt="):
        engine(pool_blocks=20).add_request(ids)


@pytest.mark.parametrize("batch", [1, 3, 8, 65, 700])
def test_graphs_are_made_ready_for_every_batch_up_to_the_largest(batch: int) -> None:
    from vtoken_sdk.runtime.graphs import bucket
    from vtoken_sdk.runtime.worker_graphs import sizes_up_to

    sizes = sizes_up_to(batch)
    assert all(bucket(n) in sizes for n in range(1, batch + 1))
    assert sizes[-1] == bucket(batch)


def test_warm_up_makes_room_and_changes_nothing() -> None:
    config = EngineConfig(pool_blocks=64, max_running=4, chunk=16, budget=0.5, evict=EvictOptions("chunk", 2))
    prompts, params = [prompt(i, 40) for i in range(3)], SamplingParams(max_tokens=8)
    cold, warm = (make_engine(tiny("llama").served, config, Random()) for _ in range(2))
    warm.warm_up(48)
    assert warm.worker.table.max_tokens >= 48
    told = [[(o.token_ids, o.evictions) for o in engine.generate(prompts, params)] for engine in (cold, warm)]
    assert told[0] == told[1]
    warm.add_request(prompts[0])
    with pytest.raises(RuntimeError, match="before add_request"):
        warm.warm_up(48)


@pytest.mark.parametrize(
    "prompt", [torch.tensor([5, 6, 7]), torch.tensor([5, 6, 7]).numpy(), (5, 6, 7), range(5, 8)], ids=lambda p: type(p).__name__
)
def test_ids_may_come_in_anything_that_holds_them(prompt: Any) -> None:
    engine = make_engine(tiny("llama").served, EngineConfig(pool_blocks=8, max_running=1))
    params = SamplingParams(max_tokens=4)
    assert engine.generate([prompt], params)[0].token_ids == engine.generate([[5, 6, 7]], params)[0].token_ids
    for wrong in (5, torch.tensor(5)):
        with pytest.raises(RequestRejected, match="give a list of token ids"):
            engine.add_request(wrong)  # type: ignore[arg-type]  # the mistake under test


@pytest.mark.parametrize(("policy", "why"), [(None, "there is no policy"), (Random(), "only CUDA graphs")])
def test_a_capture_that_cannot_be_is_refused(policy: EvictionPolicy | None, why: str) -> None:
    config = EngineConfig(runtime="native" if policy is None else "vtoken", capture_policy=True, cuda_graphs=False)
    with pytest.raises(ConfigError, match=f"capture_policy=True: {why}"):
        make_engine(tiny("llama").served, config, policy)


@pytest.mark.parametrize("key", ["prefix_cache", "poison", "cuda_graphs", "capture_policy"])
def test_a_word_is_no_switch(key: str) -> None:
    """ "false" is true to Python."""
    options: dict[str, Any] = {key: "false"}
    with pytest.raises(ConfigError, match=f"{key}='false': use true or false"):
        EngineConfig(**options)
    with pytest.raises(ConfigError, match=r"reclaim\.refill='false': use true or false"):
        ReclaimOptions(refill="false")  # type: ignore[arg-type]


@pytest.mark.parametrize(("key", "kind"), [("evict", "EvictOptions"), ("reclaim", "ReclaimOptions")])
def test_groups_of_options_have_their_own_class(key: str, kind: str) -> None:
    options: dict[str, Any] = {key: "chunk"}
    with pytest.raises(ConfigError, match=f"{key}='chunk': use {kind}"):
        EngineConfig(**options)


def test_things_of_another_kind_are_refused_with_what_is_wanted() -> None:
    model, config = tiny("llama").served, EngineConfig(pool_blocks=20)
    wrong: list[tuple[tuple[Any, ...], str]] = [
        (("tiny", config), r"model='tiny': use what load_model"),
        ((model, {"runtime": "vtoken"}), r"config=\{.*: use EngineConfig"),
        ((model, config, "h2o"), r"policy='h2o': use an instance of a policy, such as H2O\(\)"),
        ((model, config, Random), r"policy=<class .*: use an instance of a policy"),
    ]
    for args, said in wrong:
        with pytest.raises(TypeError, match=said):
            Engine(*args)
    engine = Engine(model, config, Random())
    params: Any = {"max_tokens": 3}
    with pytest.raises(TypeError, match=r"params=\{'max_tokens': 3\}: use SamplingParams"):
        engine.add_request(prompt(0, 9), params)
    with pytest.raises(TypeError, match=r"use SamplingParams"):
        engine.generate([prompt(0, 9)], [params])
    for tokens, batch in (("512", None), (-5, None), (512, 0)):
        with pytest.raises(ValueError, match=r"(tokens|batch)=.*: use a whole number >= 1"):
            engine.warm_up(tokens, batch)  # type: ignore[arg-type]
    assert not engine.has_work
