"""What holds for every bundled policy: budgets, independence of neighbors and padding, dtypes, options, size and docstring."""

from __future__ import annotations

import ast
import copy
import inspect
import pickle
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from vtoken_sdk.policies.h2o import H2O
from vtoken_sdk.policies.random import Random
from vtoken_sdk.policies.scissorhands import Scissorhands
from vtoken_sdk.policies.streaming_llm import StreamingLLM
from vtoken_sdk.policy import EvictionPolicy

from .driver import Driver, Request

BUNDLED: list[type[EvictionPolicy]] = [StreamingLLM, H2O, Scissorhands, Random]
SIZES = (0, 1, 4, 16, 10_000)


def quiet_streaming_llm(sinks: int) -> StreamingLLM:
    with warnings.catch_warnings(action="ignore", category=UserWarning):
        return StreamingLLM(sinks=sinks)


def request(seed: int, prompt: int, total: int, budget: int, dtype: torch.dtype = torch.float32, layers: int = 2) -> Request:
    """Two KV heads, two query heads each, head size 8."""
    g = torch.Generator().manual_seed(seed)
    queries, keys = torch.randn(layers, 2, 2, total, 8, generator=g), torch.randn(layers, 2, total, 8, generator=g)
    return Request(queries.to(dtype), keys.to(dtype), prompt, budget, seed, scale=8**-0.5)


EDGES = [
    *(pytest.param(lambda s=s: quiet_streaming_llm(s), id=f"streaming_llm-{s}") for s in SIZES),
    *(pytest.param(lambda x=x: H2O(recent=x), id=f"h2o-{x}") for x in (0, 0.3, 1)),
    *(pytest.param(lambda s=s: Scissorhands(window=max(s, 1), recent=s), id=f"scissorhands-{s}") for s in SIZES),
    *(pytest.param(lambda x=x: Scissorhands(window=4, recent=0, drop=x), id=f"scissorhands-drop-{x}") for x in (0.5, 0.99)),
    *(pytest.param(lambda s=s, r=r: Random(sinks=s, recent=r), id=f"random-{s}-{r}") for s in SIZES for r in SIZES),
]


@pytest.mark.parametrize("make", EDGES)
def test_budgets_at_the_edge(make: Callable[[], EvictionPolicy]) -> None:
    """The driver raises where a group is empty, the newest dies, or a budget is exceeded after an eviction."""
    lengths, budgets = (1, 2, 3, 15, 16, 17, 40), (1, 2, 5, 10_000)
    requests = [request(n, n, n + 20, budget, layers=1) for n in lengths for budget in budgets]
    logs = Driver(make(), requests, chunk=7, prefill="chunk").run()
    for r, log in zip(requests, logs, strict=True):
        assert bool(log) == (r.budget < r.total), "a policy acts if, and only if, there is more than the budget"


@pytest.mark.parametrize("granularity", ["token", "head"])
def test_defaults_spend_the_same_budget(granularity: str) -> None:
    requests = [request(i, prompt, prompt + 20, budget) for i, (prompt, budget) in enumerate([(40, 20), (33, 12), (64, 16)])]
    totals = []
    for cls in BUNDLED:
        driver = Driver(cls(), requests, granularity, every=4)
        driver.run()
        totals.append(torch.stack(driver.kept))  # [calls, B, G]
        assert (driver.live.sum(-1) == torch.tensor([[20], [12], [16]])).all()
    assert all(torch.equal(t, totals[0]) for t in totals)


@pytest.mark.parametrize("granularity", ["token", "head"])
@pytest.mark.parametrize("cls", BUNDLED)
def test_neighbors_order_and_padding_do_not_matter(cls: type[EvictionPolicy], granularity: str) -> None:
    def run(requests: list[Request], bucket: int) -> list[object]:
        return list(Driver(cls(), requests, granularity, chunk=16, prefill="chunk", every=3, bucket=bucket).run())

    requests = [request(i, n, n + 12, max(2, n // 3)) for i, n in enumerate((3, 17, 33, 64, 50))]
    alone = [run([r], bucket=1)[0] for r in requests]
    assert any(alone)
    assert run(requests, bucket=32) == alone
    assert run(requests[::-1], bucket=7)[::-1] == alone


@pytest.mark.parametrize("cls", BUNDLED)
def test_bf16_keys_decide_as_their_values_do_in_fp32(cls: type[EvictionPolicy]) -> None:
    low = [request(i, 40, 56, 15, torch.bfloat16) for i in range(3)]
    full = [Request(r.queries.float(), r.keys.float(), r.prompt, r.budget, r.seed, r.scale) for r in low]
    assert Driver(cls(), low).run() == Driver(cls(), full).run()


@pytest.mark.parametrize("scale", [1, 30, 1_000])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("cls", BUNDLED)
def test_huge_keys_in_half_precision_give_no_nan(cls: type[EvictionPolicy], dtype: torch.dtype, scale: int) -> None:
    r = request(0, 40, 56, 15, dtype)
    r.keys[0, 1] *= scale
    Driver(cls(), [r]).run()  # a NaN score raises PolicyError


@pytest.mark.parametrize("cls", BUNDLED)
def test_copies_decide_the_same(cls: type[EvictionPolicy]) -> None:
    requests = [request(0, 30, 40, 8)]
    for twin in (copy.deepcopy(cls()), pickle.loads(pickle.dumps(cls()))):
        assert twin == cls()
        assert Driver(twin, requests).run() == Driver(cls(), requests).run()


BAD = [
    (StreamingLLM, {"sinks": -1}),
    (StreamingLLM, {"sinks": True}),
    (StreamingLLM, {"sinks": 4.0}),
    (StreamingLLM, {"sinks": float("nan")}),
    (H2O, {"recent": -0.1}),
    (H2O, {"recent": 1.5}),
    (H2O, {"recent": float("nan")}),
    (H2O, {"recent": True}),
    (H2O, {"recent": "half"}),
    (Scissorhands, {"window": 0}),
    (Scissorhands, {"window": 2.5}),
    (Scissorhands, {"recent": -1}),
    (Scissorhands, {"recent": False}),
    (Scissorhands, {"drop": 1.0}),
    (Scissorhands, {"drop": -0.5}),
    (Scissorhands, {"drop": float("nan")}),
    (Random, {"sinks": -2}),
    (Random, {"recent": 0.5}),
    (Random, {"fresh": 1}),
    (Random, {"fresh": "no"}),
]


@pytest.mark.parametrize(("cls", "options"), BAD, ids=lambda x: x.__name__ if isinstance(x, type) else str(x))
def test_impossible_options_are_refused_by_name(cls: Callable[..., EvictionPolicy], options: dict[str, object]) -> None:
    (name, value) = next(iter(options.items()))
    with pytest.raises(ValueError, match=rf"^{name}={value!r}: use "):
        cls(**options)


def test_streaming_llm_without_sinks_warns_of_the_collapse_where_it_is_made() -> None:
    with pytest.warns(UserWarning, match="sinks=0.*collapse.*attention sinks") as caught:
        policy = StreamingLLM(sinks=0)
    assert caught[0].filename == __file__
    copy.deepcopy(policy)  # warned once, not at every copy: a warning is an error here


@pytest.mark.parametrize("cls", BUNDLED)
def test_a_policy_is_under_50_lines_of_code(cls: type[EvictionPolicy]) -> None:
    source = Path(inspect.getfile(cls)).read_text()
    docstrings = {
        line
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node)
        for line in range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1)
    }
    lines = [text.strip() for number, text in enumerate(source.splitlines(), 1) if number not in docstrings]
    code = [text for text in lines if text and not text.startswith("#")]
    assert 10 < len(code) < 50


@pytest.mark.parametrize("cls", BUNDLED)
def test_the_docstring_lets_a_reader_predict_it(cls: type[EvictionPolicy]) -> None:
    doc = inspect.cleandoc(cls.__doc__ or "")
    for part in ("Definition:", "Acts:", "Reads:", "Folding:", "Fidelity:", "Options:"):
        assert part in doc
    fidelity = doc.split("Fidelity: ")[1].split()[0].strip(",.;:")
    assert fidelity in {"exact", "adapted", "inspired"}
    options = doc.split("Options:")[1]
    assert all(name in options for name in cls.__dataclass_fields__)  # type: ignore[attr-defined]  # a dataclass, as the registry checks
