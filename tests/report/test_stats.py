"""Intervals over seeds, by figures that tables and other programs give."""

from __future__ import annotations

import math

import numpy as np
import pytest

from vtoken_sdk.report.stats import Estimate, student_t


@pytest.mark.parametrize(
    ("freedom", "factor"), [(1, 12.7062), (2, 4.3027), (10, 2.2281), (11, 2.2010), (29, 2.0452), (100, 1.9840), (10**6, 1.9600)]
)
def test_students_t_is_the_tables(freedom: int, factor: float) -> None:
    assert student_t(freedom) == pytest.approx(factor, abs=1e-3)


def test_an_interval_holds_the_mean_as_often_as_it_says() -> None:
    rng = np.random.default_rng(0)
    estimates = [Estimate.of(rng.normal(5, 2, size=4)) for _ in range(4000)]
    inside = [abs(e.mean - 5) <= e.half for e in estimates if e is not None and e.half is not None]
    assert np.mean(inside) == pytest.approx(0.95, abs=0.015)


def test_one_seed_has_no_interval_and_none_has_no_estimate() -> None:
    assert Estimate.of([3.0, None, math.nan]) == Estimate(3.0, None, 1)
    assert Estimate.of([None]) is None
    assert Estimate.of([1.0, 1.0, 1.0]) == Estimate(1.0, 0.0, 3)
