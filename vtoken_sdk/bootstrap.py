"""Confidence intervals of a mean over seeds, each with items of its own: a bootstrap on two levels.

A draw takes seeds with replacement, and from each of them items with replacement; its statistic is the mean over seeds of their items'
means. Of paired values, give the differences: what makes a seed or an item hard for both cancels out. The same shape of data draws the
same, so that figures of one comparison are drawn alike.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

DRAWS = 2000
LEVEL = 0.95


@dataclass(frozen=True)
class Interval:
    """mean, and the bounds around it; None where there is one value only. seeds, items: how many there are."""

    mean: float
    low: float | None
    high: float | None
    seeds: int
    items: int


def interval(values: Mapping[Hashable, Sequence[float]], *, draws: int = DRAWS, level: float = LEVEL) -> Interval:
    """values: seed -> its items' values. Few seeds give intervals that are too narrow. Raises ValueError without any value."""
    groups = [np.asarray(items, dtype=np.float64) for items in values.values() if len(items)]
    if not groups:
        raise ValueError("no values to draw from")
    mean = float(np.mean([group.mean() for group in groups]))
    count = sum(map(len, groups))
    if count == 1:
        return Interval(mean, None, None, 1, 1)
    random = np.random.default_rng(0)
    seeds = random.integers(len(groups), size=(draws, len(groups)))
    means = np.empty(seeds.shape)
    for number, group in enumerate(groups):
        taken = seeds == number
        means[taken] = group[random.integers(len(group), size=(int(taken.sum()), len(group)))].mean(1)
    low, high = np.quantile(means.mean(1), [(1 - level) / 2, (1 + level) / 2])
    return Interval(mean, float(low), float(high), len(groups), count)


def paired(
    ours: Mapping[Hashable, Mapping[Hashable, float]], theirs: Mapping[Hashable, Mapping[Hashable, float]]
) -> dict[Hashable, list[float]]:
    """seed -> differences ours - theirs of the items that both have. ours, theirs: seed -> item -> value."""
    both = {seed: sorted(ours[seed].keys() & theirs[seed].keys(), key=str) for seed in ours if seed in theirs}
    return {seed: [ours[seed][item] - theirs[seed][item] for item in items] for seed, items in both.items() if items}
