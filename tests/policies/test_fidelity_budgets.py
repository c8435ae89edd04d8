"""PyramidKV's layer budgets and AdaKV's head budgets: by hand, and against the papers' definitions in plain loops."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from vtoken_sdk.policies.adakv import AdaKV
from vtoken_sdk.policies.pyramidkv import PyramidKV
from vtoken_sdk.policies.snapkv import SnapKV
from vtoken_sdk.policy import CacheView, State

from . import reference_scores as scores
from .driver import Log, Request
from .timing import PROMPTS, TIMINGS, TOTAL, Timing

Budgets = list[list[int]]  # [L][H], tokens that each head keeps
Allocate = Callable[[list[list[scores.Scores]], int, int], Budgets]  # scores [L][H] of the tokens before the window, length, budget


def capped(keep: Budgets, budget: int) -> Budgets:
    """What `evict_lowest` promises: no more than the groups' budgets together, one each first."""
    flat = [max(k, 1) for row in keep for k in row]
    n, total = len(flat), sum(flat)
    cap = n * budget
    if total <= cap:
        return [[max(k, 1) for k in row] for row in keep]
    return [[1 + (max(k, 1) - 1) * (cap - n) // (total - n) for k in row] for row in keep]


def pyramid(layers: int, heads: int, length: int, budget: int, window: int, beta: int) -> Budgets:
    b, n = budget - window, length - window
    if b <= 0 or length < 2 * b:
        return [[max(b, 0) + window] * heads for _ in range(layers)]
    high = 2 * b - b // beta
    low = 2 * b - high
    if high >= n:
        high, low = n, 2 * b - n
    drops = [layer * (high - low) // (layers - 1) if layers > 1 else 0 for layer in range(layers)]
    return [[high - drop + window] * heads for drop in drops]


def adaptive(past: list[list[scores.Scores]], budget: int, window: int, alpha: float) -> Budgets:
    b, keep = max(budget - window, 0), []
    for row in past:
        everything = [(score, j, head) for head, one in enumerate(row) for j, score in one.items()]
        top = sorted(everything)[max(len(everything) - b * len(row), 0) :]
        keep.append([round((1 - alpha) * sum(1 for _, _, h in top if h == head) + alpha * b) + window for head in range(len(row))])
    return keep


def run(request: Request, when: Timing, votes: scores.Score, window: int, allocate: Allocate) -> Log:
    """All heads of a request together: each has live tokens of its own, and they share the budgets."""
    queries, keys, values = (x.double().numpy() for x in (request.queries, request.keys, request.values))
    layers, heads = request.keys.shape[:2]
    live: list[list[list[int]]] = [[[] for _ in range(heads)] for _ in range(layers)]
    log: Log = []
    for length in range(1, request.total + 1):
        for row in live:
            for one in row:
                one.append(length - 1)
        n_live = sum(len(one) for row in live for one in row)
        if length not in when.due(request.prompt) or n_live <= request.budget * layers * heads:
            continue
        past = []
        for i in range(layers):
            views = [scores.Head(length, live[i][h], keys[i, h], values[i, h], queries[i, h], request.scale) for h in range(heads)]
            past.append([votes(view) for view in views])
        keep = capped(allocate(past, length, request.budget), request.budget)
        dead: list[list[int]] = []
        for i in range(layers):
            for h in range(heads):
                old = sorted(past[i][h], key=lambda j, s=past[i][h]: (s[j], j))  # type: ignore[misc]  # a default argument
                queue = [*old, *(j for j in live[i][h] if j not in past[i][h] and j != length - 1)]
                victims = sorted(queue[: max(len(live[i][h]) - keep[i][h], 0)])
                live[i][h] = [j for j in live[i][h] if j not in victims]
                dead.append(victims)
        if any(dead):
            log.append((length, dead))
    return log


def requests(layers: int, heads: int) -> list[Request]:
    return [Request.random(i, p, TOTAL, b, layers, heads) for i, (p, b) in enumerate(zip(PROMPTS, (7, 2, 11), strict=True))]


def votes(head: scores.Head) -> scores.Scores:
    return scores.snapkv(head, 3, 3, "max")


@pytest.mark.parametrize("timing", ["once", "chunks"])
@pytest.mark.parametrize(("layers", "heads"), [(4, 2), (3, 1), (1, 3)])
@pytest.mark.parametrize("beta", [1, 3, 20])
def test_pyramidkv(beta: int, layers: int, heads: int, timing: str) -> None:
    def allocate(past: object, length: int, budget: int) -> Budgets:
        return pyramid(layers, heads, length, budget, 3, beta)

    made, when = requests(layers, heads), TIMINGS[timing]
    logs = when.driver(PyramidKV(3, 3, beta=beta), made, "head").run()
    assert logs == [run(r, when, votes, 3, allocate) for r in made]


@pytest.mark.parametrize("timing", ["once", "chunks"])
@pytest.mark.parametrize(("layers", "heads"), [(2, 4), (3, 1), (1, 3)])
@pytest.mark.parametrize("alpha", [0.0, 0.2, 0.5])
def test_adakv(alpha: float, layers: int, heads: int, timing: str) -> None:
    def allocate(past: list[list[scores.Scores]], length: int, budget: int) -> Budgets:
        return adaptive(past, budget, 3, alpha)

    made, when = requests(layers, heads), TIMINGS[timing]
    logs = when.driver(AdaKV(3, 3, alpha=alpha), made, "head").run()
    assert logs == [run(r, when, votes, 3, allocate) for r in made]


def view(score: Tensor, length: int, budget: int, groups: tuple[int, int]) -> CacheView:
    """Everything live. score: [G, T], handed over as if the votes had been counted."""
    live = torch.ones(1, *score.shape, dtype=torch.bool)
    column = torch.tensor([[[length]], [[budget]]])
    return CacheView(
        live, column[:1], column[1:], column[:1], groups, State(live.shape, live.device, writable=False), lambda fn: score[None]
    )


def kept(policy: SnapKV, score: Tensor, budget: int, groups: tuple[int, int]) -> list[int]:
    return (~policy.evict_token(view(score, score.shape[1], budget, groups))).sum(-1)[0].tolist()


def test_pyramid_by_hand() -> None:
    """b = 100 - 20 = 80. High 160 - 80 // 20 = 156, low 4: 156, 156 - 50, 156 - 101, 4, and the window of 20 each: 401 in all.

    One token each is sure; the other 397 share the 396 left of 4 x 100, rounded down.
    """
    score = torch.rand(4, 1000, generator=torch.Generator().manual_seed(0))
    assert kept(PyramidKV(20), score, 100, (4, 1)) == [175, 125, 74, 23]
    assert kept(PyramidKV(20), score.repeat_interleave(2, 0), 100, (4, 2)) == [175, 175, 125, 125, 74, 74, 23, 23]
    assert kept(PyramidKV(20, beta=1), score, 100, (4, 1)) == [100] * 4


def test_pyramid_is_cut_at_the_prompt_and_uniform_in_a_short_one() -> None:
    score = torch.rand(3, 170, generator=torch.Generator().manual_seed(0))
    # n = 150 < 156: 150, 80 and 10 before the window.
    assert kept(PyramidKV(20), score, 100, (3, 1)) == [170, 100, 30]
    assert kept(PyramidKV(20), score[:, :150], 100, (3, 1)) == [100] * 3
    assert kept(PyramidKV(20), score, 20, (3, 1)) == [20] * 3
    assert kept(PyramidKV(20), score, 15, (3, 1)) == [15] * 3
    assert kept(PyramidKV(20), score[:, :18], 15, (3, 1)) == [15] * 3


def test_adakv_by_hand() -> None:
    """b = 14 - 4 = 10. Of the 96 and 96 tokens before the window the top 20 are 15 of the first head and 5 of the second.

    0.8 x 15 + 0.2 x 10 = 14 and 0.8 x 5 + 2 = 6, and the window.
    """
    score = torch.arange(100.0).repeat(4, 1) / 1000
    score[0, 10:25], score[1, 30:35] = 2.0, 1.0
    assert kept(AdaKV(4), score[:2], 14, (1, 2)) == [18, 10]
    assert kept(AdaKV(4, alpha=1.0), score[:2], 14, (1, 2)) == [14, 14]
    assert kept(AdaKV(4, alpha=0.0), score[:2], 14, (1, 2)) == [19, 9]
    # The heads of the other layer tie, id by id: half each, whatever the first layer does.
    assert kept(AdaKV(4), score, 14, (2, 2)) == [18, 10, 14, 14]
    dead = AdaKV(4).evict_token(view(score[:2], 100, 14, (1, 2)))[0]
    assert (~dead[0]).nonzero().flatten().tolist() == [*range(11, 25), *range(96, 100)]
    assert (~dead[1]).nonzero().flatten().tolist() == [*range(30, 35), 95, *range(96, 100)]


@pytest.mark.parametrize("cls", [PyramidKV, AdaKV])
def test_one_group_a_layer_or_one_in_all_is_uniform(cls: type[SnapKV]) -> None:
    made = requests(3, 2)
    assert TIMINGS["end"].driver(cls(3, 3), made, "token").run() == TIMINGS["end"].driver(SnapKV(3, 3), made, "token").run()
    if cls is AdaKV:
        assert TIMINGS["end"].driver(cls(3, 3), made, "layer").run() == TIMINGS["end"].driver(SnapKV(3, 3), made, "layer").run()
