"""What each docstring says, worked out by hand: a reader must be able to predict a policy."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from vtoken_sdk.policies.expected_attention import ExpectedAttention
from vtoken_sdk.policies.h2o import H2O
from vtoken_sdk.policies.keydiff import KeyDiff
from vtoken_sdk.policies.knorm import KNorm
from vtoken_sdk.policies.lagkv import LagKV
from vtoken_sdk.policies.oracle import Oracle
from vtoken_sdk.policies.pyramidkv import PyramidKV
from vtoken_sdk.policies.r_kv import RKV
from vtoken_sdk.policies.random import Random
from vtoken_sdk.policies.scissorhands import Scissorhands
from vtoken_sdk.policies.snapkv import SnapKV
from vtoken_sdk.policies.streaming_llm import StreamingLLM
from vtoken_sdk.policies.tova import TOVA
from vtoken_sdk.policy import EvictionPolicy

from . import reference
from .bundled import make
from .driver import Driver, Request

# Query by key, in percent. Two heavy hitters (2 and 5); the rest is thin.
MATRIX = """
100
 40 60
 20 10 70
 10  5 60 25
 10  5 50  5 30
  5  5 40  5  5 40
  5  5 30  5  5 40 10
  5  5 30  5  5 30  5 15
  5  5 20  5  5 30  5  5 20
  5  5 20  5  5 30  5  5  5 15
  5  4 20  4  5 30  5  5  5  5 12
  4  4 20  4  4 30  4  4  4  4  4 14
"""

# Worked out by hand from each docstring, for one eviction after these 12 tokens, budget 6:
BY_HAND = [
    # Sinks 0 to 3, and the last 6 - 4 = 2.
    (StreamingLLM(), {0, 1, 2, 3, 10, 11}),
    # Recent: floor(0.5 * 6) = 3, that is 9, 10, 11. Column sums of the others:
    # 214, 113, 360, 63, 64, 230, 34, 34, 34. The three highest are 2, 5, 0.
    (H2O(), {0, 2, 5, 9, 10, 11}),
    # Recent: floor(0.2 * 6) = 1. The five highest of 0 to 10 (24 for 9, 16 for 10) are 2, 5, 0, 1, 4.
    (H2O(recent=0.2), {0, 1, 2, 4, 5, 11}),
    # The budget is below recent = 10: a plain recency window.
    (Scissorhands(), {6, 7, 8, 9, 10, 11}),
    # Queries 8 to 11, whose means are 11.1, 10, 9.1 and 8.3 percent. Below it: 2 and 5 never; 8 in 3 of 4; 9 in 2 of 3;
    # 0, 1, 3, 4, 6, 7 always. 10 and 11 are recent; the four others with the lowest shares are 2, 5, 9, 8.
    (Scissorhands(window=4, recent=2), {2, 5, 8, 9, 10, 11}),
    # drop = 0.5 keeps 6 - 3 = 3: the two recent ones and, of 2 and 5, which tie at 0, the higher id.
    (Scissorhands(window=4, recent=2, drop=0.5), {5, 10, 11}),
    # Protected: 0 and 1; 9, 10 and 11. One more by the draw, checked against unbounded integers below.
    (Random(sinks=2, recent=3), {0, 1, 9, 10, 11}),
    # The last row: 5 has 30 percent, 2 has 20, 11 has 14. The others tie at 4: the lower ids die.
    (TOVA(), {2, 5, 8, 9, 10, 11}),
    # Queries 10 and 11 on 0 to 9: 9, 8, 40, 8, 9, 60, 9, 9, 9, 9. The window is 10 and 11; the four highest, the lower ids first to die.
    (SnapKV(window=2, kernel=1), {2, 5, 8, 9, 10, 11}),
    # The maximum of three: 9, 40, 40, 40, 60, 60, 60, 9, 9, 9. All of the 60s, and of the 40s the highest id.
    (SnapKV(window=2, kernel=3), {3, 4, 5, 6, 10, 11}),
    # One group: uniform.
    (PyramidKV(window=2, kernel=3), {3, 4, 5, 6, 10, 11}),
    # The budget is below the window.
    (SnapKV(), {6, 7, 8, 9, 10, 11}),
    # No two keys are alike, so redundancy is the same for all; shares of the past, 88 and 82 percent, leave the order as it is.
    (RKV(window=2, kernel=1), {2, 5, 8, 9, 10, 11}),
    (RKV(window=2, kernel=3), {3, 4, 5, 6, 10, 11}),
    # All keys have norm 1, and the same cosine with their mean; too few tokens for two chunks: the lower ids die.
    (KNorm(), {6, 7, 8, 9, 10, 11}),
    (KeyDiff(), {6, 7, 8, 9, 10, 11}),
    (LagKV(sinks=0), {6, 7, 8, 9, 10, 11}),
    # No query is to come: all tie.
    (Oracle(), {6, 7, 8, 9, 10, 11}),
    (make("window"), {6, 7, 8, 9, 10, 11}),
]


def logits() -> Tensor:
    """fp32 [1, 1, 1, 12, 12], whose softmax is the matrix."""
    attention = np.zeros((12, 12))
    for t, line in enumerate(MATRIX.strip().splitlines()):
        attention[t, : t + 1] = [int(x) for x in line.split()]
    assert (attention.sum(1) == 100).all()
    return torch.tensor(attention / 100).clamp(min=1e-30).log().float()[None, None, None]


@pytest.mark.parametrize(("policy", "kept"), BY_HAND, ids=lambda x: repr(x) if isinstance(x, EvictionPolicy) else "")
def test_a_matrix_worked_by_hand(policy: EvictionPolicy, kept: set[int]) -> None:
    (log,) = Driver(policy, [Request.of_logits(logits(), prompt=12, budget=6, seed=3)]).run()
    if isinstance(policy, Random):
        kept = kept | {max(range(2, 9), key=lambda j: reference.random_lot(3, 0, 12, j))}
    assert log == [(12, [sorted(set(range(12)) - kept)])]


def test_the_oracle_by_hand() -> None:
    """After 8 tokens: rows 8 to 11 give 19, 18, 80, 18, 19, 120, 19 percent to 0 to 6. 7 is the newest; 5, 2, and of the 19s the last."""
    (log,) = Driver(Oracle(), [Request.of_logits(logits(), prompt=8, budget=4)], every=0).run()
    assert log == [(8, [[0, 1, 3, 4]])]


# Keys of six tokens, two channels each; the values are the same vectors.
KEYS = [
    # Norms 5, 1, 13, 2, 10, 0.5: the two largest die.
    (KNorm(), [(3, 4), (1, 0), (5, 12), (0, 2), (6, 8), (0.5, 0)], {2, 4}),
    # The anchor is (2, 1) / 6: the three along x are nearest, and the lower ids of them die. Lengths do not matter.
    (KeyDiff(), [(1, 0), (9, 0), (0, 7), (0.1, 0), (-1, 0), (0, 0)], {0, 1}),
    # Chunks of two. Scaled by the next, the first is (0.5, 0.5) and (0, 1), the second (0, 0) and (0.25, 0.25): the spreads are
    # 0 and 0.71, 0 and 0. The lowest rank of each chunk dies, where they tie the lower id.
    (LagKV(sinks=0, lag=2), [(0.5, 0.5), (0, 1), (0, 0), (1, 1), (0, 4), (4, 0)], {0, 2}),
    # Zero queries expect the same of every key; the value's norm decides, the sinks aside.
    (ExpectedAttention(sinks=1), [(0, 0), (1, 0), (5, 12), (0, 2), (6, 8), (0.5, 0)], {1, 3}),
]


@pytest.mark.parametrize(("policy", "keys", "dead"), KEYS, ids=lambda x: repr(x) if isinstance(x, EvictionPolicy) else "")
def test_keys_worked_by_hand(policy: EvictionPolicy, keys: list[tuple[float, float]], dead: set[int]) -> None:
    x = torch.tensor(keys)[None, None]
    (log,) = Driver(policy, [Request(torch.zeros(1, 1, 1, 6, 2), x, x, prompt=6, budget=4)]).run()
    assert log == [(6, [sorted(dead)])]


def test_r_kv_drops_what_is_said_again() -> None:
    """Four tokens before a window of two, and zero queries: redundancy decides. 0 and 1 are alike, 2 and 3 too; 4 is like both of these.

    Rows 0 and 1 forgive each other. Rows 2 and 3 forgive their latest like, 4, and hold 1 against each other; row 4 forgives 3 and
    holds 0.6 against 2. Against 0 to 3 stand 0, 0, 1.6 and 1.
    """
    keys = torch.tensor([(1, 0, 0), (1, 0, 0), (0, 1, 0), (0, 1, 0), (0, 0.6, 0.8), (0, 0, -1)])[None, None]
    (log,) = Driver(RKV(window=2, kernel=1), [Request(torch.zeros(1, 1, 1, 6, 3), keys, keys, prompt=6, budget=5)]).run()
    assert log == [(6, [[2]])]
