"""The papers' definitions in plain Python, one request and one group at a time, to hold the policies against.

Nothing here is shared with the package: lists, sets and float64. `logits` is an array [L, H, R, N, N] of one request, query by key;
a group is a list of (layer, head); `due` are the lengths at which the policy is asked. Each answers [(length, dead ids), ...].
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

Logits = NDArray[np.float64]
Group = list[tuple[int, int]]
Deaths = list[tuple[int, list[int]]]


def groups_of(layers: int, heads: int, granularity: str) -> list[Group]:
    rows = [[(layer, head) for head in range(heads)] for layer in range(layers)]
    every = [where for row in rows for where in row]
    return {"token": [every], "layer": rows, "head": [[where] for where in every]}[granularity]


def attend(row: NDArray[np.float64], ids: list[int]) -> dict[int, float]:
    """One query's softmax over these tokens."""
    top = max(row[j] for j in ids)
    e = {j: math.exp(row[j] - top) for j in ids}
    return {j: x / sum(e.values()) for j, x in e.items()}


def attend_mean(logits: Logits, where: tuple[int, int], t: int, ids: list[int]) -> dict[int, float]:
    """The mean over the query heads that share a KV head."""
    rows = [attend(logits[where][r, t], ids) for r in range(logits.shape[2])]
    return {j: sum(row[j] for row in rows) / len(rows) for j in ids}


def run(n: int, due: set[int], budget: int, see: Callable[[int, list[int]], None], choose: Callable[[int, list[int]], list[int]]) -> Deaths:
    """Tokens arrive one by one. `see(t, live)`: query t looks at them. `choose(length, live)`: who dies, if there are too many."""
    live: list[int] = []
    deaths: Deaths = []
    for t in range(n):
        live.append(t)
        see(t, live)
        if t + 1 in due and len(live) > budget:
            dead = choose(t + 1, live)
            live = [j for j in live if j not in dead]
            deaths.append((t + 1, sorted(dead)))
    return deaths


def streaming_llm(n: int, due: set[int], budget: int, sinks: int) -> Deaths:
    def choose(length: int, live: list[int]) -> list[int]:
        window = budget - sinks
        return [j for j in live if not (j < sinks or j >= length - window)]

    return run(n, due, budget, lambda t, live: None, choose)


def h2o(logits: Logits, group: Group, due: set[int], budget: int, recent: float) -> Deaths:
    total = dict.fromkeys(range(logits.shape[-1]), 0.0)

    def see(t: int, live: list[int]) -> None:
        for where in group:
            for j, a in attend_mean(logits, where, t, live).items():
                total[j] += a / len(group)

    def choose(length: int, live: list[int]) -> list[int]:
        window = max(1, math.floor(recent * budget))
        others = [j for j in live if j < length - window]
        heavy = sorted(others, key=lambda j: total[j], reverse=True)[: budget - window]
        return [j for j in others if j not in heavy]

    return run(logits.shape[-1], due, budget, see, choose)


def scissorhands(logits: Logits, group: Group, due: set[int], budget: int, window: int, recent: int, drop: float) -> Deaths:
    def counts(j: int, length: int, live: list[int]) -> tuple[Fraction, ...]:
        """Of each head of the group: how many of the last queries found token j below their mean, scaled up for the young."""
        last = range(max(0, length - window), length)
        out = []
        for where in group:
            queries = [t for t in last if t >= j]
            count = 0
            for t in queries:
                seen = [i for i in live if i <= t]
                count += attend_mean(logits, where, t, seen)[j] < 1 / len(seen)
            out.append(Fraction(count * len(last), len(queries)))
        return tuple(out)

    def choose(length: int, live: list[int]) -> list[int]:
        others = {j: counts(j, length, live) for j in live if j < length - max(recent, 1)}
        worst = sorted(others, key=lambda j: (-sum(others[j]), j))
        n = len(live) - (budget - math.floor(drop * budget))
        last = others[worst[n - 1]]
        for kept in worst[n:]:  # equal sums of unequal fractions tie on paper, but rounding may part them
            whole = all(x.denominator == 1 for x in others[kept] + last)
            assert whole or others[kept] == last or sum(others[kept]) != sum(last), "a tie by rounding: take other logits"
        return worst[:n]

    return run(logits.shape[-1], due, budget, lambda t, live: None, choose)


def random_lot(seed: int, group: int, length: int, token: int) -> int:
    """The 24-bit number of a token; length 0 stands for one lot for life. Unbounded integers, so nothing can overflow."""
    mask = 2**32 - 1

    def mix(x: int) -> int:
        x = ((x ^ (x >> 15)) * 0x2C1B3C6D) & mask
        x = ((x ^ (x >> 12)) * 0x297A2D39) & mask
        return x ^ (x >> 15)

    x = mix((seed & mask) ^ 0x1E3779B9)
    for word in (seed >> 32 & mask, group, length, token):
        x = mix(x ^ word)
    return x >> 8


def random(n: int, group: int, due: set[int], budget: int, seed: int, sinks: int, recent: int, *, fresh: bool) -> Deaths:
    def choose(length: int, live: list[int]) -> list[int]:
        others = [j for j in live if sinks <= j < length - max(recent, 1)]
        drawn = sorted(others, key=lambda j: (random_lot(seed, group, length if fresh else 0, j), j))
        return drawn[: len(live) - budget]

    return run(n, due, budget, lambda t, live: None, choose)
