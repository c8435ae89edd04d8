"""Intervals over seeds and items."""

from __future__ import annotations

import random

import pytest

from vtoken_sdk.bootstrap import Interval, interval, paired


def test_the_interval_has_the_width_that_theory_gives() -> None:
    draw = random.Random(0)
    one_each = {seed: [draw.gauss(5, 2)] for seed in range(400)}
    found = interval(one_each)
    assert found.low is not None and found.high is not None
    assert found.high - found.low == pytest.approx(2 * 1.96 * 2 / 20, rel=0.15)
    many = interval({0: [draw.gauss(5, 2) for _ in range(400)]})  # one seed: over its items
    assert many.low is not None and many.high is not None
    assert many.high - many.low == pytest.approx(2 * 1.96 * 2 / 20, rel=0.15)
    # items of a seed that say the same are one piece of news, not a hundred
    copies = interval({seed: values * 10 for seed, values in one_each.items()})
    assert copies.low is not None and copies.high is not None
    assert copies.high - copies.low == pytest.approx(found.high - found.low, rel=0.15)
    assert (copies.seeds, copies.items) == (400, 4000)


def test_pairs_cancel_what_makes_an_item_hard() -> None:
    draw = random.Random(1)
    theirs = {seed: {item: draw.gauss(0, 10) for item in range(3)} for seed in range(4)}
    ours = {seed: {item: value + 0.25 for item, value in items.items()} for seed, items in theirs.items()}
    found = interval(paired(ours, theirs))
    assert (found.mean, found.low, found.high) == pytest.approx((0.25, 0.25, 0.25))
    del ours[0][1], theirs[3]
    assert {seed: len(values) for seed, values in paired(ours, theirs).items()} == {0: 2, 1: 3, 2: 3}


def test_seeds_count_alike_and_one_value_has_no_interval() -> None:
    assert interval({0: [1.0], 1: [2.0, 4.0, 3.0]}).mean == 2
    assert interval({0: [0.5]}) == Interval(0.5, None, None, 1, 1)
    assert interval({0: [1.0, 2.0], 1: [0.0]}) == interval({5: [1.0, 2.0], 7: [0.0]}), "the same draws"
    with pytest.raises(ValueError, match="no values"):
        interval({0: []})
