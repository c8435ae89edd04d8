"""What a policy costs: which method is measured on which shape."""

from __future__ import annotations

import pytest
import torch

from vtoken_sdk.check import CheckFailed, bench
from vtoken_sdk.policies.h2o import H2O
from vtoken_sdk.policies.oracle import Oracle
from vtoken_sdk.policies.scissorhands import Scissorhands
from vtoken_sdk.policies.streaming_llm import StreamingLLM

from .zoo.answers import Raises

CPU = torch.device("cpu")
PLAIN, KEYS = bench.Shape(4, 256), bench.Shape(2, 64, layers=2, size=16)


@pytest.fixture(autouse=True)
def once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "SECONDS", 0.0)


def test_learning_and_asking_are_measured_apart() -> None:
    costs = bench.bench(H2O, CPU, PLAIN, KEYS)
    assert [(cost.method, cost.shape, cost.calls) for cost in costs] == [("sync_new_tokens", PLAIN, 1), ("evict_token", PLAIN, 1)]
    assert all(cost.ms > 0 for cost in costs)
    assert [cost.method for cost in bench.bench(StreamingLLM, CPU, PLAIN, KEYS)] == ["evict_token"], "it learns nothing"


def test_keys_are_read_on_a_modest_shape() -> None:
    (cost,) = bench.bench(Scissorhands, CPU, PLAIN, KEYS)
    assert cost.shape == KEYS
    assert str(cost.shape) == "2 requests x 64 tokens, 2 layers"


def test_the_shape_is_64_requests_of_16k_tokens() -> None:
    assert str(bench.PLAIN) == "64 requests x 16,384 tokens"


def test_a_future_is_made_up() -> None:
    assert [cost.method for cost in bench.bench(Oracle, CPU, PLAIN, KEYS)] == ["evict_token"]


def test_a_figure_is_the_median_of_several_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "SECONDS", 60.0)
    monkeypatch.setattr(bench, "MOST", 5)
    (cost,) = bench.bench(StreamingLLM, CPU, PLAIN, KEYS)
    assert cost.calls == 5


def test_a_broken_policy_has_no_figures() -> None:
    with pytest.raises(CheckFailed, match="my own mistake"):
        bench.bench(Raises, CPU, PLAIN, KEYS)


def test_the_device_has_a_name() -> None:
    assert "thread" in bench.device_name(CPU)
