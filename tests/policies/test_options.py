"""Impossible options are refused by name, before anything runs; dangerous ones warn."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest

from vtoken_sdk.policies.adakv import AdaKV
from vtoken_sdk.policies.expected_attention import ExpectedAttention
from vtoken_sdk.policies.h2o import H2O
from vtoken_sdk.policies.lagkv import LagKV
from vtoken_sdk.policies.pyramidkv import PyramidKV
from vtoken_sdk.policies.r_kv import RKV
from vtoken_sdk.policies.random import Random
from vtoken_sdk.policies.scissorhands import Scissorhands
from vtoken_sdk.policies.snapkv import SnapKV
from vtoken_sdk.policies.streaming_llm import StreamingLLM
from vtoken_sdk.policies.window import Window
from vtoken_sdk.policy import EvictionPolicy

from .bundled import BUNDLED, make, options_of

BAD: list[tuple[Callable[..., EvictionPolicy], dict[str, object]]] = [
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
    (SnapKV, {"window": 0}),
    (SnapKV, {"window": True}),
    (SnapKV, {"kernel": 4}),
    (SnapKV, {"kernel": -1}),
    (SnapKV, {"kernel": 3.0}),
    (SnapKV, {"pooling": "mean"}),
    (PyramidKV, {"window": 0}),
    (PyramidKV, {"beta": 0}),
    (PyramidKV, {"beta": 2.5}),
    (AdaKV, {"kernel": 2}),
    (AdaKV, {"alpha": -0.1}),
    (AdaKV, {"alpha": 1.5}),
    (AdaKV, {"alpha": True}),
    (LagKV, {"sinks": -1}),
    (LagKV, {"lag": 0}),
    (LagKV, {"lag": 8.0}),
    (ExpectedAttention, {"window": 0}),
    (ExpectedAttention, {"horizon": 0}),
    (ExpectedAttention, {"sinks": -4}),
    (ExpectedAttention, {"epsilon": -1e-3}),
    (ExpectedAttention, {"epsilon": float("inf")}),
    (RKV, {"window": -8}),
    (RKV, {"kernel": 6}),
    (RKV, {"mix": 1.01}),
    (RKV, {"threshold": -0.5}),
    (RKV, {"threshold": False}),
]


@pytest.mark.parametrize(("cls", "options"), BAD, ids=lambda x: x.__name__ if isinstance(x, type) else str(x))
def test_impossible_options_are_refused_by_name(cls: Callable[..., EvictionPolicy], options: dict[str, object]) -> None:
    (name, value) = next(iter(options.items()))
    with pytest.raises(ValueError, match=rf"^{name}={value!r}: use "):
        cls(**options)


@pytest.mark.parametrize("value", ["nonsense", None, float("nan"), -1])
@pytest.mark.parametrize(("name", "option"), [(name, option) for name in BUNDLED for option in options_of(name)])
def test_nonsense_is_refused_by_every_option(name: str, option: str, value: object) -> None:
    with pytest.raises(ValueError, match=rf"^{option}={value!r}: use "):
        make(name, **{option: value})


def test_streaming_llm_without_sinks_warns_of_the_collapse_where_it_is_made() -> None:
    with pytest.warns(UserWarning, match="sinks=0.*collapse.*attention sinks") as caught:
        policy = StreamingLLM(sinks=0)
    assert caught[0].filename == __file__
    copy.deepcopy(policy)  # warned once, not at every copy: a warning is an error here


def test_window_warns_of_the_collapse_where_it_is_made() -> None:
    with pytest.warns(UserWarning, match="no attention sinks.*collapse.*Use streaming_llm") as caught:
        policy = Window()
    assert caught[0].filename == __file__
    copy.deepcopy(policy)
