"""The policy interface: who `evict_lowest` kills, what state may be assigned, what must be declared, what attention is."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from vtoken_sdk.policy import CacheView, EvictionPolicy, LiveKV, Need, NewTokens, PolicyError, State

SCORES = st.sampled_from([-math.inf, -1.0, 0.0, 1.0, math.inf]) | st.floats(-(2.0**100), 2.0**100, width=32)


@dataclass(frozen=True)
class Row:
    """One request. live, scores: [G][N] with N = its length; keep: [G]."""

    length: int
    budget: int
    live: list[list[bool]]
    scores: list[list[float]]
    keep: list[int]
    last: int


@st.composite
def rows(draw: st.DrawFn, n_groups: int) -> Row:
    n = draw(st.integers(1, 12))
    live = [[*draw(st.lists(st.booleans(), min_size=n - 1, max_size=n - 1)), True] for _ in range(n_groups)]
    scores = [draw(st.lists(SCORES, min_size=n, max_size=n)) for _ in range(n_groups)]
    keep = draw(st.lists(st.integers(1, n + 2), min_size=n_groups, max_size=n_groups))
    return Row(n, draw(st.integers(1, n + 2)), live, scores, keep, draw(st.integers(0, n + 2)))


BATCHES = st.integers(1, 3).flatmap(lambda n_groups: st.lists(rows(n_groups), min_size=1, max_size=3))


def view_of(batch: list[Row], pad: int = 0) -> tuple[CacheView, Tensor]:
    """The view, and the scores [B, G, T]; T is the longest row and `pad` columns. NaN where there is no token."""
    n_groups, width = len(batch[0].live), max(r.length for r in batch) + pad
    live = torch.zeros(len(batch), n_groups, width, dtype=torch.bool)
    scores = torch.full(live.shape, torch.nan)
    for b, r in enumerate(batch):
        live[b, :, : r.length] = torch.tensor(r.live)
        scores[b, :, : r.length] = torch.tensor(r.scores)
    return view(live, [r.length for r in batch], [r.budget for r in batch]), scores.masked_fill(~live, torch.nan)


def view(live: Tensor, lengths: list[int], budgets: list[int]) -> CacheView:
    def column(values: list[int]) -> Tensor:
        return torch.tensor(values)[:, None, None]

    state = State(live.shape, live.device)
    return CacheView(live, column(lengths), column(budgets), column([0] * len(lengths)), (1, live.shape[1]), state)


def dead_by_hand(row: Row, group: int, keep: int, first: int, last: int) -> list[int]:
    """The unprotected by score, the lower id first, then the protected by id; the newest is not among them."""
    ids = [t for t in range(row.length) if row.live[group][t]]
    protected = [t for t in ids if t < first or t >= row.length - last]
    others = sorted((row.scores[group][t], t) for t in ids if t not in protected)
    queue = [t for t in [t for _, t in others] + protected if t != row.length - 1]
    return sorted(queue[: max(0, len(ids) - max(keep, 1))])


def dead(kill: Tensor) -> list[list[list[int]]]:
    return [[g.nonzero().flatten().tolist() for g in row] for row in kill]


@settings(max_examples=100, deadline=None, derandomize=True)
@given(BATCHES, st.integers(0, 14), st.integers(0, 14), st.integers(0, 5))
def test_evict_lowest_is_a_sort_by_protection_score_and_id(batch: list[Row], first: int, last: int, pad: int) -> None:
    cache, scores = view_of(batch, pad)
    kill = cache.evict_lowest(scores, first=first, last=last)
    assert kill.shape == cache.live.shape
    assert kill.dtype == torch.bool
    assert dead(kill) == [[dead_by_hand(r, g, r.budget, first, last) for g in range(len(r.live))] for r in batch]


@settings(max_examples=100, deadline=None, derandomize=True)
@given(BATCHES, st.integers(0, 14))
def test_evict_lowest_with_keep_and_last_a_request(batch: list[Row], first: int) -> None:
    """Where the sum of `keep` is above the groups' budgets, what is beyond one each is scaled down; the sum then fits the budget."""
    cache, scores = view_of(batch)
    keep = torch.tensor([r.keep for r in batch])[..., None]
    kill = cache.evict_lowest(scores, first=first, last=torch.tensor([r.last for r in batch])[:, None, None], keep=keep)
    expected = []
    for r in batch:
        groups, total, cap = len(r.keep), sum(r.keep), r.budget * len(r.keep)
        shares = [1 + (k - 1) * (cap - groups) // (total - groups) if total > cap else k for k in r.keep]
        assert sum(shares) <= max(cap, groups)
        expected.append([dead_by_hand(r, g, share, first, r.last) for g, share in enumerate(shares)])
        if all(shares):
            survivors = [sum(live) - len(ids) for live, ids in zip(r.live, expected[-1], strict=True)]
            assert sum(survivors) <= cap
    assert dead(kill) == expected


@settings(max_examples=50, deadline=None, derandomize=True)
@given(BATCHES, st.integers(0, 5), st.integers(0, 5), st.integers(1, 9))
def test_a_row_alone_is_the_row_in_a_batch_whatever_the_padding(batch: list[Row], first: int, last: int, pad: int) -> None:
    cache, scores = view_of(batch)
    kill = dead(cache.evict_lowest(scores, first=first, last=last))
    for b, row in enumerate(batch):
        alone, score = view_of([row], pad)
        assert dead(alone.evict_lowest(score, first=first, last=last)) == [kill[b]]


@settings(max_examples=50, deadline=None, derandomize=True)
@given(BATCHES, st.integers(0, 14), st.integers(0, 14))
def test_the_newest_lives_and_one_budget_bounds_all(batch: list[Row], first: int, last: int) -> None:
    cache, scores = view_of(batch)
    left = cache.live & ~cache.evict_lowest(scores, first=first, last=last)
    for b, row in enumerate(batch):
        assert left[b, :, row.length - 1].all()
        assert (left[b].sum(-1) <= torch.minimum(cache.live[b].sum(-1), cache.budget[b, 0])).all()


def test_evict_lowest_leaves_its_inputs_alone() -> None:
    live = torch.rand(2, 1, 9, generator=torch.Generator().manual_seed(0)) < 0.7
    live[..., -1] = True
    cache, score = view(live.clone(), [9, 9], [3, 4]), torch.arange(9.0).flip(0)
    cache.evict_lowest(score, first=2, last=2)
    assert torch.equal(cache.live, live)
    assert torch.equal(score, torch.arange(9.0).flip(0))


def test_protected_tokens_outrank_a_policys_infinity() -> None:
    cache = view(torch.ones(1, 1, 6, dtype=torch.bool), [6], [3])
    score = torch.tensor([0.0, 0.0, math.inf, math.inf, 0.0, -math.inf])
    assert dead(cache.evict_lowest(score, first=2, last=1)) == [[[2, 3, 4]]]


def test_where_the_protected_exceed_the_budget_the_lower_ids_go() -> None:
    cache = view(torch.ones(1, 1, 6, dtype=torch.bool), [6], [2])
    assert dead(cache.evict_lowest(-cache.positions, first=10_000)) == [[[0, 1, 2, 3]]]
    assert dead(cache.evict_lowest(-cache.positions, first=4, last=10_000)) == [[[0, 1, 2, 3]]]


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.float64, torch.bfloat16, torch.float16])
def test_scores_of_any_dtype_broadcast_and_are_compared_in_fp32(dtype: torch.dtype) -> None:
    cache = view(torch.ones(2, 2, 5, dtype=torch.bool), [5, 5], [2, 3])
    score = torch.tensor([1, 0, 1, 0, 1]).to(dtype)
    assert dead(cache.evict_lowest(score)) == [[[0, 1, 3]] * 2, [[1, 3]] * 2]


def test_a_nan_of_a_live_token_is_an_error_and_of_a_dead_one_is_not() -> None:
    live = torch.tensor([[[True, False, True, True]], [[True, True, True, True]]])
    score = torch.tensor([[[0.0, torch.nan, 1.0, 2.0]], [[0.0, 1.0, 2.0, 3.0]]])
    cache = view(live, [4, 4], [1, 1])
    assert dead(cache.evict_lowest(score)) == [[[0, 2]], [[0, 1, 2]]]
    score[1, 0, 1] = torch.nan
    with pytest.raises(PolicyError, match="NaN"):
        cache.evict_lowest(score)


def test_a_runtime_learns_whose_score_was_nan_without_an_error() -> None:
    bad = torch.zeros(2, dtype=torch.bool)
    live = torch.ones(2, 1, 3, dtype=torch.bool)
    column = torch.tensor([3, 3])[:, None, None]
    cache = CacheView(live, column, column - 1, column, (1, 1), State(live.shape, live.device), _bad=bad)
    kill = cache.evict_lowest(torch.tensor([[[0.0, 1.0, 2.0]], [[0.0, torch.nan, 2.0]]]))
    assert bad.tolist() == [False, True]
    assert dead(kill[:1]) == [[[0]]], "the other request is served"


def new_state(*, writable: bool = True) -> State:
    return State(torch.Size((2, 1, 4)), torch.device("cpu"), writable=writable)


def test_state_starts_at_zero_and_takes_what_broadcasts() -> None:
    state = new_state()
    assert torch.equal(state["mass"], torch.zeros(2, 1, 4))
    state["mass"] += torch.arange(4)
    state["row"] = torch.tensor([1.0, 2.0])[:, None, None]
    state["count"] = torch.ones(4, dtype=torch.int64)
    assert state["mass"].tolist() == [[[0, 1, 2, 3]]] * 2
    assert state["row"].tolist() == [[[1] * 4], [[2] * 4]]
    assert state["count"].dtype == torch.float32
    assert sorted(state) == ["count", "mass", "row"]
    assert len(state) == 3


@pytest.mark.parametrize("value", [torch.zeros(3), torch.zeros(2, 4), torch.zeros(1, 2, 1, 4)])
def test_state_of_a_wrong_shape_is_refused(value: Tensor) -> None:
    with pytest.raises(PolicyError, match=r'state\["mass"\] wants shape \(2, 1, 4\)'):
        new_state()["mass"] = value


def test_state_holds_tensors_only() -> None:
    with pytest.raises(PolicyError, match=r"wants a tensor .* not float"):
        new_state()["mass"] = 1.0  # type: ignore[assignment]  # the mistake under test


def test_state_is_not_assigned_in_evict_token_and_never_deleted() -> None:
    state = new_state(writable=False)
    assert torch.equal(state["mass"], torch.zeros(2, 1, 4)), "reading is fine"
    assert list(state) == []
    with pytest.raises(PolicyError, match="sync_new_tokens only"):
        state["mass"] = torch.zeros(2, 1, 4)
    with pytest.raises(PolicyError, match="freed by the runtime"):
        del new_state()["mass"]


def test_what_was_not_declared_cannot_be_read() -> None:
    cache = view(torch.ones(1, 1, 1, dtype=torch.bool), [1], [1])
    kv = LiveKV(torch.zeros(1, 1, 2), torch.zeros(1, 1, 2), torch.zeros(1, 1, dtype=torch.long), torch.zeros(1), 1.0, lambda p: (p, p))
    reads: list[tuple[str, Callable[[], object]]] = [
        ("attention", lambda: NewTokens(cache.length).attention),
        ("queries", lambda: kv.queries),
        ("queries", kv.attention),
        ("future", lambda: cache.future),
    ]
    for name, read in reads:
        with pytest.raises(PolicyError, match=f'"{name}" is not in the policy\'s `needs`; add it there'):
            read()
    with pytest.raises(PolicyError, match="keys and values"):
        cache.score(lambda kv: kv.keys)


def test_needs_are_checked_when_the_class_is_made() -> None:
    with pytest.raises(TypeError, match=r"Misspelt.needs has \['attentoin'\]; allowed are \['attention', 'future', 'queries'\]"):

        class Misspelt(EvictionPolicy):
            needs: ClassVar[frozenset[Need]] = frozenset({"attentoin"})  # type: ignore[arg-type]  # the mistake under test

    with pytest.raises(TypeError, match=r"Worded.needs is the string 'attention'; write needs = frozenset"):

        class Worded(EvictionPolicy):
            needs = "attention"  # type: ignore[assignment]  # the mistake under test

    with pytest.raises(TypeError, match=r"Windowless needs .* a field `window: int`"):

        class Windowless(EvictionPolicy):
            needs = frozenset({"queries"})

    class Windowed(EvictionPolicy):
        needs = frozenset({"queries"})
        window: int = 4

    class Inherits(Windowed):
        needs = frozenset({"queries", "attention"})

    with pytest.raises(TypeError, match="abstract"):
        Inherits()  # type: ignore[abstract]  # the mistake under test


def test_a_class_promises_for_itself_that_graphs_can_hold_it() -> None:
    class Keeps(EvictionPolicy):
        capturable = True

        def evict_token(self, cache: CacheView) -> Tensor:
            return torch.zeros_like(cache.live)

    class Counts(Keeps):
        def evict_token(self, cache: CacheView) -> Tensor:
            self.calls = getattr(self, "calls", 0) + 1
            return super().evict_token(cache)

    assert (Keeps.capturable, Counts.capturable, EvictionPolicy.capturable) == (True, False, False)
    with pytest.raises(TypeError, match=r"Worded\.capturable is 'yes'; write True or False"):

        class Worded(Keeps):
            capturable = "yes"  # type: ignore[assignment]  # the mistake under test

    with pytest.raises(TypeError, match=r"Optional\.capturable is of the class and no option"):

        class Optional(Keeps):
            capturable: bool = True

    class Typed(Keeps):
        capturable: ClassVar[bool] = True

    assert Typed.capturable

    with pytest.raises(TypeError, match='Seer is capturable and needs "future"'):

        class Seer(Keeps):
            capturable = True
            needs = frozenset({"future"})


def test_an_error_names_policy_request_and_step() -> None:
    assert str(PolicyError("no", policy="h2o", request="r1", step=0)) == "policy h2o, request r1, step 0: no"
    assert str(PolicyError("no")) == "no"


@pytest.mark.parametrize("softcap", [None, 5.0])
@pytest.mark.parametrize("window", [None, 3])
def test_attention_over_the_live_is_a_causal_softmax(softcap: float | None, window: int | None) -> None:
    g = torch.Generator().manual_seed(0)
    keys, queries = torch.randn(2, 5, 8, generator=g).bfloat16(), torch.randn(2, 3, 4, 8, generator=g).bfloat16()
    positions, asked = torch.tensor([[1, 2, 6, 8, 9], [0, 3, 4, 8, 9]]), torch.tensor([0, 6, 7, 9])
    kv = LiveKV(keys, keys, positions, asked, 0.5, lambda p: (p, p), queries, softcap, window)
    got = kv.attention()
    assert got.shape == (2, 3, 4, 5)
    assert got.dtype == torch.float32
    for h in range(2):
        for r in range(3):
            for w, t in enumerate(asked.tolist()):
                logits = {}
                for n, j in enumerate(positions[h].tolist()):
                    x = sum(float(a) * float(b) for a, b in zip(queries[h, r, w], keys[h, n], strict=True)) * 0.5
                    if j <= t and (window is None or t - j < window):
                        logits[n] = math.exp(x if softcap is None else softcap * math.tanh(x / softcap))
                row = [logits.get(n, 0.0) / sum(logits.values()) if logits else 0.0 for n in range(5)]
                assert got[h, r, w].tolist() == pytest.approx(row, abs=1e-6)


def test_assigned_state_is_a_copy_of_its_own() -> None:
    state = State(torch.Size((2, 1, 5)), torch.device("cpu"))
    mass = torch.ones(2, 1, 5)
    state["mass"] = mass
    state["other"] = state["mass"]
    state["mass"] += 1
    assert mass.sum() == 10
    assert state["other"].sum() == 10
    assert state["mass"].sum() == 20


def test_a_broadcast_value_can_be_added_to() -> None:
    state = State(torch.Size((2, 1, 5)), torch.device("cpu"))
    state["seen"] = torch.ones(2, 1, 1)
    state["seen"] += torch.arange(5)
    assert state["seen"][0, 0].tolist() == [1, 2, 3, 4, 5]


def test_scores_of_any_size_keep_their_order() -> None:
    cache = view(torch.ones(1, 1, 4, dtype=torch.bool), [4], [2])
    big = torch.tensor([3e38, 2e38, 1.9e38, 0.0])
    assert cache.evict_lowest(big).flatten().tolist() == [False, True, True, False]


@pytest.mark.parametrize("keep", [2**62, 2**63 - 1])
def test_more_to_keep_than_there_is_means_the_budget(keep: int) -> None:
    cache = view(torch.ones(1, 1, 60, dtype=torch.bool), [60], [20])
    assert int(cache.evict_lowest(cache.positions, keep=torch.tensor(keep).view(1, 1, 1)).sum()) == 40
