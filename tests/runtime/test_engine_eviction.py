"""With eviction every runtime computes what a dense forward computes that hides the evicted tokens, and evicts the same tokens."""

from __future__ import annotations

import functools
import itertools
import random
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from vtoken_sdk.policies.h2o import H2O
from vtoken_sdk.policies.random import Random
from vtoken_sdk.policies.scissorhands import Scissorhands
from vtoken_sdk.policies.streaming_llm import StreamingLLM
from vtoken_sdk.policy import EvictionPolicy
from vtoken_sdk.runtime import EngineConfig, Eviction, EvictOptions, ReclaimOptions, SamplingParams

from .oracles import Run, Tiny, copy_some, drive, make_engine, prompt, small, tiny
from .sample_policies import Everything, Newest, Scripted, SnapLike

EVICTING = ("naive", "refill", "vtoken", "page1")
BUNDLED: dict[str, EvictionPolicy] = {
    "h2o": H2O(),
    "random": Random(),
    "scissorhands": Scissorhands(window=12, recent=4),
    "streaming_llm": StreamingLLM(),
}
OPTIONS: dict[str, Any] = {"pool_blocks": 40, "max_running": 4, "chunk": 32, "budget": 0.4, "poison": True}
PROMPTS = [prompt(0, 90), prompt(1, 33), prompt(2, 64), prompt(3, 3)]


def run(
    model: Tiny, policy: EvictionPolicy, runtime: Any, prompts: Sequence[Sequence[int]] = PROMPTS, *, tokens: int = 21, **options: Any
) -> Run:
    """Teacher-forced, so that two runs are about the same tokens; a copy stream that lags at random; dead slots hold NaN."""
    config = EngineConfig(**{**OPTIONS, "runtime": runtime, **options})
    forced = [SamplingParams(forced=tuple(prompt(50 + i, tokens))) for i in range(len(prompts))]
    return drive(make_engine(model.served, config, policy, copy_some(0)), prompts, forced)


@functools.cache
def without_copies(policy: str, runtime: str, evict: EvictOptions) -> Run:
    """What many ways to compact are held against."""
    return run(small(), BUNDLED[policy], runtime, evict=evict, tokens=30)


SCHEDULES = tuple(itertools.product(("chunk", "end", "never"), (0, 1, 3, 16)))
CASES = [  # every schedule once; each policy in each kind of prefill
    *itertools.product(("h2o",), SCHEDULES),
    *itertools.product(("random",), (("chunk", 0), ("chunk", 1), ("end", 3), ("never", 16))),
    *itertools.product(("scissorhands", "streaming_llm"), (("chunk", 1), ("end", 16), ("never", 3))),
]


@pytest.mark.parametrize(("policy", "schedule"), CASES, ids=[f"{policy}-{prefill}-{every}" for policy, (prefill, every) in CASES])
def test_all_runtimes_evict_the_same_and_agree_with_the_masked_forward(policy: str, schedule: tuple[Any, int]) -> None:
    model, (prefill, every) = small(), schedule
    prompts, evict = PROMPTS[:2], EvictOptions(prefill, every)
    runs = [run(model, BUNDLED[policy], runtime, prompts, tokens=18, evict=evict, chunk=24) for runtime in EVICTING]
    for one in runs:
        one.assert_masked(model.oracle)
        assert one.evictions == runs[0].evictions
    assert any(runs[0].evictions) == (prefill != "never" or every > 0)
    lengths = {e.length - 90 for e in runs[0].evictions[0]}
    due = {-66, -42, -18} if prefill == "chunk" else set()
    due |= {0} if prefill != "never" else set()
    due |= set(range(every, 17, every)) if every else set()
    assert lengths == {x for x in due if 90 + x > 36}


@pytest.mark.parametrize(
    "reclaim",
    [
        ReclaimOptions(packing, publish_after=after, refill=refill)
        for packing, after, refill in itertools.product(("fill", "fresh"), (1, 2, 4), (False, True))
    ],
    ids=lambda r: f"{r.packing}-{r.publish_after}-{'refill' if r.refill else 'plain'}",
)
@pytest.mark.parametrize("policy", ["random", "h2o"])
def test_compaction_changes_nothing_but_the_blocks(policy: str, reclaim: ReclaimOptions) -> None:
    model, evict = small(), EvictOptions("chunk", 3)
    plain = without_copies(policy, "naive", evict)
    packed = run(model, BUNDLED[policy], "vtoken", evict=evict, tokens=30, reclaim=reclaim, block_size=8, pool_blocks=80)
    packed.assert_masked(model.oracle)
    assert packed.evictions == plain.evictions
    assert sum(r.moves for r in packed.records) > 0


@pytest.mark.parametrize(
    "reclaim",
    [
        ReclaimOptions(threshold=0.3),
        ReclaimOptions(slack=3),
        ReclaimOptions(move_cap=5),
        ReclaimOptions("fresh", margin=0, threshold=0.6),
        ReclaimOptions("fresh", slack=5, move_cap=17),
    ],
    ids=["threshold", "slack", "move_cap", "fresh-threshold", "fresh-slack-move_cap"],
)
def test_every_reclaim_option_leaves_the_logits_alone(reclaim: ReclaimOptions) -> None:
    model, evict = small(), EvictOptions("end", 2)
    packed = run(model, BUNDLED["random"], "vtoken", evict=evict, tokens=30, reclaim=reclaim)
    packed.assert_masked(model.oracle)
    assert packed.evictions == without_copies("random", "page1", evict).evictions


@pytest.mark.parametrize("runtime", EVICTING)
@pytest.mark.parametrize("architecture", ["mistral-window", "qwen2", "qwen3", "gemma2"])
def test_every_architecture_under_eviction(architecture: str, runtime: Any) -> None:
    """Biases, norms of queries and keys, soft caps, and windows that hide tokens which the policy keeps."""
    model = tiny(architecture)
    for policy in (H2O(), Random(sinks=2)):
        run(model, policy, runtime, PROMPTS[:2], evict=EvictOptions("chunk", 4), tokens=12).assert_masked(model.oracle)


@pytest.mark.parametrize("lag", [1, 3])
def test_how_far_the_host_lags_changes_nothing(lag: int) -> None:
    model = small()
    expected = run(model, H2O(), "vtoken", tokens=30, evict=EvictOptions("end", 3))
    got = run(model, H2O(), "vtoken", tokens=30, evict=EvictOptions("end", 3), lag=lag)
    got.assert_masked(model.oracle)
    assert got.evictions == expected.evictions
    assert [o.token_ids for o in got.outputs] == [o.token_ids for o in expected.outputs]


# -- positions and causality ------------------------------------------------------------------------------------------------


def _middle_script(first: Sequence[int], steps: int, seed: int) -> dict[int, list[int]]:
    """After a prompt of 100: `first` at once, then a random token that is neither first nor last, every third step."""
    draw, dead = random.Random(seed), set(first)
    script = {100: list(first)}
    for length in range(103, 100 + steps, 3):
        victim = draw.choice([t for t in range(1, length - 1) if t not in dead])
        dead.add(victim)
        script[length] = [victim]
    return script


@pytest.mark.parametrize(("architecture", "runtime"), [("llama", "naive"), ("llama", "vtoken"), ("qwen3", "vtoken")])
def test_positions_go_on_counting_whatever_is_evicted(architecture: str, runtime: Any) -> None:
    """200 steps with holes in the middle; positions taken from kept counts would be off by 50 and more."""
    model = small(architecture)
    options = {"budget": 1, "evict": EvictOptions("end", 3), "chunk": 64, "lag": 1, "reclaim": ReclaimOptions(publish_after=1)}
    script = _middle_script(range(10, 60), 200, seed=1)
    one = run(model, Scripted(script), runtime, [prompt(5, 100)], tokens=201, **options)
    one.assert_masked(model.oracle)
    assert one.evictions[0] == [Eviction(length, tuple(sorted(ids))) for length, ids in script.items()]
    if runtime == "vtoken":
        assert sum(r.plans for r in one.records) > 20


@pytest.mark.parametrize("chunk", [1, 7, 16, 64, 300])
def test_a_chunk_after_evictions_sees_what_is_left_and_itself(chunk: int) -> None:
    """Twenty tokens, spread over what the first chunk holds, die one by one after the chunks that follow."""
    model, ids = small(), prompt(5, 300 if chunk > 1 else 100)
    victims = iter(random.Random(2).sample(range(1, max(chunk, 40) - 1), 20))
    stride = -(-21 // chunk) * chunk
    script = {length: list(itertools.islice(victims, 2)) for length in range(-(-42 // chunk) * chunk, len(ids) + 1, stride)}
    one = run(model, Scripted(script), "vtoken", [ids], tokens=4, chunk=chunk, budget=1, evict=EvictOptions("chunk", 0))
    one.assert_masked(model.oracle)
    assert [e.length for e in one.evictions[0]] == [length for length, dead in script.items() if dead]


def test_a_policy_that_kills_in_its_own_chunk_acts_from_the_next_one_on() -> None:
    model = small()
    own = Scripted({32: list(range(16, 31)), 64: list(range(33, 63, 2)), 90: list(range(66, 89, 3))})
    one = run(model, own, "vtoken", [prompt(0, 90)], tokens=4, budget=1, evict=EvictOptions("chunk", 0))
    one.assert_masked(model.oracle)
    assert [(e.length, min(e.ids), max(e.ids)) for e in one.evictions[0]] == [(32, 16, 30), (64, 33, 61), (90, 66, 87)]


# -- the newest token -------------------------------------------------------------------------------------------------------


def test_with_the_cache_full_new_tokens_still_get_in() -> None:
    """A new token has no score yet; a policy must not throw it out in the step that wrote it."""
    model = small()
    one = run(model, H2O(), "vtoken", [prompt(0, 40)], tokens=121, budget=40, evict=EvictOptions("end", 1))
    one.assert_masked(model.oracle)
    kept = [set(one.live_at(length)) for length in range(60, 160, 20)]
    assert all(len(k) == 40 for k in kept)
    assert all(len(after - before) >= 10 for before, after in itertools.pairwise(kept))
    for eviction in one.evictions[0]:
        assert eviction.length - 1 not in eviction.ids


@pytest.mark.parametrize("runtime", EVICTING)
@pytest.mark.parametrize("policy", [Newest(), Everything()], ids=["newest", "everything"])
def test_the_newest_token_lives_whatever_a_policy_wants(policy: EvictionPolicy, runtime: Any) -> None:
    model = small()
    one = run(model, policy, runtime, tokens=20, budget=1, evict=EvictOptions("chunk", 1))
    one.assert_masked(model.oracle)
    for i, ids in enumerate(one.prompts):
        live = one.live_at(len(ids) + 18, i)  # nobody is asked after the last step
        assert live == ([len(ids) + 17] if isinstance(policy, Everything) else list(range(len(ids) + 18)))


# -- victims ----------------------------------------------------------------------------------------------------------------


def _h2o_by_hand(oracle: PreTrainedModel, sequence: list[int], prompt_tokens: int, budget: int, every: int) -> list[Eviction]:
    """Heavy hitters from transformers' own attention: summed over queries, mean over all query heads and layers."""
    n, log = len(sequence), []
    live, dead_from = set(range(prompt_tokens)), torch.full((n,), n + 1)
    for length in range(prompt_tokens, n, every):
        live |= set(range(length - every, length)) if length > prompt_tokens else set()
        query, key = torch.arange(n)[:, None], torch.arange(n)
        mask = torch.zeros(n, n).masked_fill((key > query) | (query >= dead_from), torch.finfo(torch.float32).min)
        with torch.inference_mode():
            out = oracle(torch.tensor([sequence]), attention_mask=mask[None, None], use_cache=False, output_attentions=True)
        mass: Tensor = torch.stack(out.attentions)[:, 0, :, :length].sum(2).mean((0, 1))
        heavy = sorted((t for t in live if t < length - budget // 2), key=lambda t: (float(mass[t]), t))
        dead = heavy[: max(0, len(live) - budget)]
        live -= set(dead)
        dead_from[dead] = length
        log.append(Eviction(length, tuple(sorted(dead))))
    return log


@pytest.mark.parametrize("heads", [(8, 8), (8, 2), (8, 1)])
def test_heavy_hitters_are_those_of_transformers_attention(heads: tuple[int, int]) -> None:
    """The rule for query heads that share a key: the mean."""
    model = tiny("llama", num_attention_heads=heads[0], num_key_value_heads=heads[1], num_hidden_layers=2)
    ids = prompt(4, 200)
    one = run(model, H2O(), "vtoken", [ids], tokens=50, budget=64, chunk=48, evict=EvictOptions("end", 16))
    one.assert_masked(model.oracle)
    assert one.evictions[0] == _h2o_by_hand(model.oracle, ids + one.outputs[0].token_ids[:-1], 200, 64, 16)


@pytest.mark.parametrize("policy", [H2O(), SnapLike()], ids=["h2o", "snap-like"])
def test_neighbors_and_their_order_change_nothing(policy: EvictionPolicy) -> None:
    model, prompts = small(), [prompt(i, n) for i, n in enumerate((3, 17, 33, 64, 65, 100, 128, 257))]
    params = [SamplingParams(max_tokens=20, seed=i) for i in range(8)]
    config = EngineConfig(pool_blocks=70, chunk=48, budget=48, evict=EvictOptions("end", 4))
    together = drive(make_engine(model.served, config, policy), prompts, params)
    reversed_ = drive(make_engine(model.served, config, policy), prompts[::-1], params[::-1])
    alone = [drive(make_engine(model.served, config, policy), [p], [q]) for p, q in zip(prompts, params, strict=True)]
    for i, one in enumerate(alone):
        assert together.outputs[i].token_ids == one.outputs[0].token_ids == reversed_.outputs[7 - i].token_ids
        assert together.evictions[i] == one.evictions[0] == reversed_.evictions[7 - i]
    assert sum(len(log) for log in together.evictions) > 12
