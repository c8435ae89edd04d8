"""Each bundled policy that scores tokens kills what its paper's definition, in plain loops, says: head by head, and folded to groups."""

from __future__ import annotations

from typing import NamedTuple

import pytest
import torch

from vtoken_sdk.policies.expected_attention import ExpectedAttention
from vtoken_sdk.policies.keydiff import KeyDiff
from vtoken_sdk.policies.knorm import KNorm
from vtoken_sdk.policies.lagkv import LagKV
from vtoken_sdk.policies.oracle import Oracle
from vtoken_sdk.policies.r_kv import RKV
from vtoken_sdk.policies.snapkv import SnapKV
from vtoken_sdk.policies.tova import TOVA
from vtoken_sdk.policy import EvictionPolicy

from . import reference
from . import reference_scores as scores
from .bundled import BUNDLED, make
from .driver import Request
from .timing import PROMPTS, TIMINGS, TOTAL, together


class Case(NamedTuple):
    """A policy, its definition, and how many of the first and last tokens its paper keeps by rule."""

    policy: EvictionPolicy
    score: scores.Score
    first: int = 0
    last: int = 1  # the newest stays, whatever the paper


CASES = {
    "tova": Case(TOVA(), scores.tova),
    "snapkv": Case(SnapKV(4, 3), lambda h: scores.snapkv(h, 4, 3, "max"), last=4),
    "snapkv-unpooled": Case(SnapKV(2, 1), lambda h: scores.snapkv(h, 2, 1, "max"), last=2),
    "snapkv-avg": Case(SnapKV(3, 5, "avg"), lambda h: scores.snapkv(h, 3, 5, "avg"), last=3),
    "knorm": Case(KNorm(), scores.knorm),
    "keydiff": Case(KeyDiff(), scores.keydiff),
    "lagkv": Case(LagKV(2, 3), lambda h: scores.lagkv(h, 2, 3), first=2),
    "lagkv-no-sinks": Case(LagKV(0, 5), lambda h: scores.lagkv(h, 0, 5)),
    "expected_attention": Case(ExpectedAttention(12, 9, 2), lambda h: scores.expected_attention(h, 12, 9, 2, 0.0), first=2),
    "expected_attention-all": Case(ExpectedAttention(100, 1, 0, 0.5), lambda h: scores.expected_attention(h, 100, 1, 0, 0.5)),
    "r_kv": Case(RKV(3, 3), lambda h: scores.r_kv(h, 3, 3, 0.07, 0.5), last=3),
    "r_kv-even": Case(RKV(2, 1, 0.5, 0.2), lambda h: scores.r_kv(h, 2, 1, 0.5, 0.2), last=2),
    "oracle": Case(Oracle(), scores.oracle),
    "window": Case(make("window"), lambda h: {j: float(j) for j in h.ids}),
}
ELSEWHERE = {"full", "streaming_llm", "h2o", "scissorhands", "random", "pyramidkv", "adakv"}
ASKED = [("token", "once"), ("token", "chunks"), ("layer", "even"), ("head", "even"), ("head", "chunks")]


def expect(request: Request, case: Case, group: reference.Group, due: set[int]) -> reference.Deaths:
    """Who dies in a group: the lowest of the mean over its heads, ties by the lower id, and by id alone among those kept by rule."""
    queries, keys, values = (x.double().numpy() for x in (request.queries, request.keys, request.values))

    def choose(length: int, live: list[int]) -> list[int]:
        each = [case.score(scores.Head(length, live, keys[w], values[w], queries[w], request.scale)) for w in group]
        others = [j for j in live if case.first <= j < length - case.last]
        ruled = [j for j in live if j not in others and j != length - 1]
        fold = {j: sum(one[j] for one in each) / len(each) for j in others}
        return [*sorted(others, key=lambda j: (fold[j], j)), *ruled][: len(live) - request.budget]

    return reference.run(request.total, due, request.budget, lambda t, live: None, choose)


def check(case: Case, requests: list[Request], granularity: str, timing: str = "end") -> None:
    when = TIMINGS[timing]
    for request, log in zip(requests, when.driver(case.policy, requests, granularity).run(), strict=True):
        groups = reference.groups_of(len(request.keys), request.keys.shape[1], granularity)
        assert log == together([expect(request, case, group, when.due(request.prompt)) for group in groups])
        assert len(log) >= (1 if timing == "once" else 2)


def unequal(layers: int = 2, heads: int = 2, per_head: int = 2) -> list[Request]:
    """Requests of other lengths and budgets, one of them below every window."""
    return [Request.random(i, p, TOTAL, b, layers, heads, per_head) for i, (p, b) in enumerate(zip(PROMPTS, (7, 2, 11), strict=True))]


@pytest.mark.parametrize(("granularity", "timing"), ASKED)
@pytest.mark.parametrize("case", CASES)
def test_the_definition_head_by_head_and_folded(case: str, granularity: str, timing: str) -> None:
    check(CASES[case], unequal(), granularity, timing)


@pytest.mark.parametrize(("heads", "per_head"), [(8, 1), (2, 4), (1, 8)])
@pytest.mark.parametrize("case", CASES)
def test_query_heads_fold_as_the_docstring_says(case: str, heads: int, per_head: int) -> None:
    check(CASES[case], unequal(1, heads, per_head)[::2], "token", "once")


def test_sharp_attention() -> None:
    """On one-hot keys a query is its row of attention, as it would be recorded from a model: sharp, with sinks and a diagonal."""
    g = torch.Generator().manual_seed(5)
    logits = 2 * torch.randn(2, 2, 2, TOTAL, TOTAL, generator=g) + 3 * torch.eye(TOTAL)
    logits[..., 0] += 4
    for case in ("tova", "snapkv", "snapkv-avg", "r_kv"):
        check(CASES[case], [Request.of_logits(logits, prompt, 7) for prompt in PROMPTS], "head", "even")


@pytest.mark.parametrize("timing", ["end", "never"])
@pytest.mark.parametrize("case", ["oracle", "window", "tova", "knorm"])
def test_a_death_each_step(case: str, timing: str) -> None:
    """Where no token is protected, and each decode step may take the last one's."""
    check(CASES[case], unequal(), "head", timing)


def test_full_keeps_all() -> None:
    assert TIMINGS["end"].driver(make("full"), unequal(), "head").run() == [[], [], []]


def test_every_bundled_policy_is_held_to_its_definition() -> None:
    """A new file in policies/ fails here until it has a case, here or in a test file that its name is put to ELSEWHERE for."""
    assert set(BUNDLED) == {case.partition("-")[0] for case in CASES} | ELSEWHERE
