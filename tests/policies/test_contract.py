"""What holds for every bundled policy: budgets, independence of neighbors and padding, dtypes, copies, size and docstring."""

from __future__ import annotations

import ast
import copy
import inspect
import pickle
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from vtoken_sdk.policies.adakv import AdaKV
from vtoken_sdk.policies.expected_attention import ExpectedAttention
from vtoken_sdk.policies.h2o import H2O
from vtoken_sdk.policies.lagkv import LagKV
from vtoken_sdk.policies.pyramidkv import PyramidKV
from vtoken_sdk.policies.r_kv import RKV
from vtoken_sdk.policies.random import Random
from vtoken_sdk.policies.scissorhands import Scissorhands
from vtoken_sdk.policies.snapkv import SnapKV
from vtoken_sdk.policy import EvictionPolicy

from .bundled import BUNDLED, EVICTING, make, make_small, options_of
from .driver import Driver, Request

SIZES = (0, 1, 4, 16, 10_000)
# Where a policy gives its groups unequal budgets, rounding may leave a token of each unspent.
UNEQUAL = ("pyramidkv", "adakv")


EDGES = [
    *(pytest.param(lambda n=n: make(n), id=n) for n in EVICTING),
    *(pytest.param(lambda s=s: make("streaming_llm", sinks=s), id=f"streaming_llm-{s}") for s in SIZES),
    *(pytest.param(lambda x=x: H2O(recent=x), id=f"h2o-{x}") for x in (0, 0.3, 1)),
    *(pytest.param(lambda s=s: Scissorhands(window=max(s, 1), recent=s), id=f"scissorhands-{s}") for s in SIZES),
    *(pytest.param(lambda x=x: Scissorhands(window=4, recent=0, drop=x), id=f"scissorhands-drop-{x}") for x in (0.5, 0.99)),
    *(pytest.param(lambda s=s, r=r: Random(sinks=s, recent=r), id=f"random-{s}-{r}") for s in SIZES for r in SIZES),
    *(pytest.param(lambda w=w, k=k: SnapKV(window=w, kernel=k), id=f"snapkv-{w}-{k}") for w in (1, 16, 10_000) for k in (1, 9_999)),
    *(pytest.param(lambda c=c: c(window=3, kernel=9), id=c.__name__) for c in (RKV, PyramidKV, AdaKV)),
    *(pytest.param(lambda s=s, n=n: LagKV(s, n), id=f"lagkv-{s}-{n}") for s in (0, 4, 10_000) for n in (1, 4, 16)),
    *(pytest.param(lambda s=s: ExpectedAttention(s + 1, 1, s), id=f"expected_attention-{s}") for s in (0, 4, 16)),
]


@pytest.mark.parametrize("make", EDGES)
def test_budgets_at_the_edge(make: Callable[[], EvictionPolicy]) -> None:
    """The driver raises where a group is empty, the newest dies, or a budget is exceeded after an eviction."""
    corners = [*((n, budget) for n in (1, 2, 3, 15, 16, 17, 40) for budget in (1, 5)), (3, 10_000), (40, 10_000)]
    requests = [Request.random(n, n, n + 20, budget, layers=1) for n, budget in corners]
    logs = Driver(make(), requests, chunk=7, prefill="chunk", every=4).run()
    for r, log in zip(requests, logs, strict=True):
        assert bool(log) == (r.budget < r.total), "a policy acts if, and only if, there is more than the budget"


@pytest.mark.parametrize("granularity", ["token", "head"])
@pytest.mark.parametrize("name", EVICTING)
def test_defaults_spend_the_same_budget(name: str, granularity: str) -> None:
    requests = [Request.random(i, prompt, prompt + 8, budget) for i, (prompt, budget) in enumerate([(40, 20), (33, 12), (64, 16)])]
    spent = []
    for policy in (make(name), H2O()):
        driver = Driver(policy, requests, granularity, every=4)
        driver.run()
        spent.append(torch.stack(driver.kept).sum(-1))  # [calls, B], over all groups
    unspent = len(driver.live[0]) if name in UNEQUAL and granularity == "head" else 0
    assert ((spent[1] - spent[0] >= 0) & (spent[1] - spent[0] <= unspent)).all()
    assert (spent[1][-1] == torch.tensor([20, 12, 16]) * len(driver.live[0])).all()


@pytest.mark.parametrize("granularity", ["token", "head"])
@pytest.mark.parametrize("name", BUNDLED)
def test_neighbors_order_and_padding_do_not_matter(name: str, granularity: str) -> None:
    def run(requests: list[Request], bucket: int) -> list[object]:
        return list(Driver(make_small(name), requests, granularity, chunk=16, prefill="chunk", every=3, bucket=bucket).run())

    requests = [Request.random(i, n, n + 6, max(2, n // 3)) for i, n in enumerate((3, 17, 33, 64, 50))]
    alone = [run([r], bucket=1)[0] for r in requests]
    assert any(alone) or name == "full"
    assert run(requests, bucket=32) == alone
    assert run(requests[::-1], bucket=7)[::-1] == alone


@pytest.mark.parametrize("name", EVICTING)
def test_the_kept_set_moves_on(name: str) -> None:
    """A new token has seen least attention, and must not be the one that goes in each step. (That none goes at once, the driver checks.)"""
    driver = Driver(make_small(name), [Request.random(0, prompt=24, total=64, budget=24)], every=2)
    driver.run()
    assert driver.live[0, :, 24:-1].sum() >= 4
    assert driver.live[0, :, -1].all()


@pytest.mark.parametrize("name", BUNDLED)
def test_a_request_within_its_budget_loses_nothing(name: str) -> None:
    """Beside one that is over it: the driver asks for both and takes the answer for one, an engine may do the same."""
    requests = [Request.random(0, 20, 24, 24), Request.random(1, 20, 24, 8)]
    driver = Driver(make_small(name), requests)
    driver.run()
    assert driver.live[0].sum() == 24
    driver.due[:] = True
    assert not make_small(name).evict_token(driver._view(24, {}, writable=False))[0].any()


@pytest.mark.parametrize("name", BUNDLED)
def test_bf16_keys_decide_as_their_values_do_in_fp32(name: str) -> None:
    low = [Request.random(i, 40, 46, 15).to(torch.bfloat16) for i in range(3)]
    assert Driver(make_small(name), low).run() == Driver(make_small(name), [r.to(torch.float32) for r in low]).run()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", BUNDLED)
def test_huge_and_equal_keys_in_half_precision_give_no_nan(name: str, dtype: torch.dtype) -> None:
    requests = [Request.random(0, 40, 44, 15).to(dtype) for _ in range(4)]
    for r, scale in zip(requests, (0, 1, 30, 1_000), strict=True):
        r.keys[0, 1] *= scale
        r.values[1, 0] *= scale
    Driver(make_small(name), requests).run()  # a NaN score raises PolicyError


@pytest.mark.parametrize("name", BUNDLED)
def test_copies_decide_the_same(name: str) -> None:
    requests, policy = [Request.random(0, 30, 34, 8)], make_small(name)
    for twin in (copy.deepcopy(policy), pickle.loads(pickle.dumps(policy))):
        assert twin == policy
        assert Driver(twin, requests).run() == Driver(policy, requests).run()


@pytest.mark.parametrize("name", BUNDLED)
def test_a_policy_is_under_50_lines_of_code(name: str) -> None:
    source = Path(inspect.getfile(BUNDLED[name])).read_text()
    docstrings = {
        line
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node)
        for line in range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1)
    }
    lines = [text.strip() for number, text in enumerate(source.splitlines(), 1) if number not in docstrings]
    code = [text for text in lines if text and not text.startswith("#")]
    assert 6 < len(code) < 50


@pytest.mark.parametrize("name", BUNDLED)
def test_the_docstring_lets_a_reader_predict_it(name: str) -> None:
    doc = inspect.cleandoc(BUNDLED[name].__doc__ or "")
    assert re.search(r"arXiv \d{4}\.\d{5}|[Nn]o paper", doc.partition("Definition:")[0])
    for part in ("Definition:", "Acts:", "Reads:", "Folding:", "Fidelity:", "Options:"):
        assert part in doc
    fidelity = doc.split("Fidelity: ")[1].split()[0].strip(",.;:")
    assert fidelity in {"exact", "adapted", "inspired"}
    options = doc.split("Options:")[1]
    assert all(option in options for option in options_of(name))
