"""More of the papers' definitions in plain Python: one score a token, from what one KV head holds when it is asked.

Lists, loops and float64; nothing is shared with the package. Each `score` answers token id -> score; the lowest dies first.
"""

from __future__ import annotations

import cmath
import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float64]
Scores = dict[int, float]


@dataclass(frozen=True)
class Head:
    """One KV head after `length` tokens, of which `ids` are live, ascending.

    By position, those to come included: keys[j], values[j], queries[r][t].
    """

    length: int
    ids: list[int]
    keys: NDArray[np.float64]
    values: NDArray[np.float64]
    queries: NDArray[np.float64]
    scale: float

    def logit(self, r: int, t: int, j: int) -> float:
        return float(self.queries[r, t] @ self.keys[j]) * self.scale

    def last(self, window: int) -> list[int]:
        """The positions of the last queries."""
        return list(range(max(0, self.length - window), self.length))


Score = Callable[[Head], Scores]


def softmax(logits: Scores) -> Scores:
    top = max(logits.values(), default=0.0)
    e = {j: math.exp(x - top) for j, x in logits.items()}
    return {j: x / sum(e.values()) for j, x in e.items()}


def mean(x: list[float]) -> float:
    return sum(x) / len(x)


def cosine(a: Vector, b: Vector) -> float:
    return float(a @ b) / (math.sqrt(float(a @ a)) * math.sqrt(float(b @ b)))


def norm(a: Vector) -> float:
    return math.sqrt(sum(float(x) ** 2 for x in a))


def around(x: Scores, ids: list[int], kernel: int) -> dict[int, list[float]]:
    """Of each of these ids, x of the `kernel` of them centered there; fewer at the ends."""
    return {j: [x[i] for i in ids[max(0, n - kernel // 2) : n + kernel // 2 + 1]] for n, j in enumerate(ids)}


# -- attention -------------------------------------------------------------------------------------------------------------


def tova(head: Head) -> Scores:
    t, heads = head.length - 1, range(len(head.queries))
    rows = [softmax({j: head.logit(r, t, j) for j in head.ids}) for r in heads]
    return {j: mean([row[j] for row in rows]) for j in head.ids}


def snapkv(head: Head, window: int, kernel: int, pooling: str) -> Scores:
    """Only of the tokens before the window; the others are not up for choice."""
    asking = head.last(window)
    past = [j for j in head.ids if j < asking[0]]
    votes = dict.fromkeys(past, 0.0)
    for r in range(len(head.queries)):
        for t in asking:
            row = softmax({j: head.logit(r, t, j) for j in head.ids if j <= t})
            for j in past:
                votes[j] += row[j] / len(head.queries)
    near = around(votes, past, kernel)
    return {j: max(x) if pooling == "max" else sum(x) / kernel for j, x in near.items()}


def r_kv(head: Head, window: int, kernel: int, mix: float, threshold: float) -> Scores:
    asking = head.last(window)
    past = [j for j in head.ids if j < asking[0]]
    rows = [softmax({j: max(head.logit(r, t, j) for r in range(len(head.queries))) for j in past}) for t in asking]
    votes = {j: mean([row[j] for row in rows]) for j in past}
    importance = {j: max(x) for j, x in around(votes, past, kernel).items()}

    column = dict.fromkeys(head.ids, 0.0)
    for i in head.ids:
        row = {j: 0.0 if i == j else cosine(head.keys[i], head.keys[j]) for j in head.ids}
        like = [j for j in head.ids if row[j] > threshold]
        row[like[-1] if like else head.ids[0]] = 0.0
        for j in head.ids:
            column[j] += row[j] / len(head.ids)
    redundancy = softmax(column)
    return {j: mix * importance[j] - (1 - mix) * redundancy[j] for j in past}


def oracle(head: Head) -> Scores:
    """What queries to come give to each token, where none has died."""
    scores = dict.fromkeys(head.ids, 0.0)
    for r in range(len(head.queries)):
        for t in range(head.length, len(head.keys)):
            row = softmax({j: head.logit(r, t, j) for j in range(t + 1)})
            for j in head.ids:
                scores[j] += row[j] / len(head.queries)
    return scores


# -- keys and values -------------------------------------------------------------------------------------------------------


def knorm(head: Head) -> Scores:
    return {j: -norm(head.keys[j]) for j in head.ids}


def keydiff(head: Head) -> Scores:
    anchor = sum((head.keys[j] / norm(head.keys[j]) for j in head.ids), np.zeros(head.keys.shape[1])) / len(head.ids)
    return {j: -cosine(head.keys[j], anchor) for j in head.ids}


def lagkv(head: Head, sinks: int, lag: int) -> Scores:
    body = head.ids[sinks:]
    chunks = [body[i : i + lag] for i in range(0, len(body) - lag + 1, lag)]
    if len(chunks) < 2:
        return {j: float(j) for j in head.ids}
    scores = dict.fromkeys(head.ids, math.inf)
    for chunk, following in itertools.pairwise(chunks):
        informative = dict.fromkeys(chunk, 0.0)
        for x in (head.keys, head.values):
            spread = {}
            for j in chunk:
                scaled = []
                for channel in range(x.shape[1]):
                    seen = [float(x[i, channel]) for i in following]
                    scaled.append((float(x[j, channel]) - min(seen)) / max(max(seen) - min(seen), 1e-6))
                center = mean(scaled)
                spread[j] = math.sqrt(sum((y - center) ** 2 for y in scaled) / (len(scaled) - 1))
            for j, y in softmax(spread).items():
                informative[j] += y / 2
        for place, j in enumerate(sorted(chunk, key=lambda j: (informative[j], j))):
            scores[j] = float(place)
    return scores


# -- queries to come -------------------------------------------------------------------------------------------------------


def rotate(x: Vector, turns: list[complex]) -> Vector:
    """RoPE as it is defined: channels i and i + D / 2 are one complex number, multiplied by turns[i]."""
    half = len(x) // 2
    z = [complex(x[i], x[i + half]) * turns[i] for i in range(half)]
    return np.array([y.real for y in z] + [y.imag for y in z])


def expected_attention(head: Head, window: int, horizon: int, sinks: int, epsilon: float) -> Scores:
    size = head.keys.shape[1]
    frequencies = [10_000 ** (-2 * i / size) for i in range(size // 2)]

    def turns(position: int, sign: int = 1) -> list[complex]:
        return [cmath.exp(sign * 1j * position * f) for f in frequencies]

    coming = [turns(p) for p in range(head.length, head.length + horizon)]
    average = [sum(row[i] for row in coming) / horizon for i in range(size // 2)]
    others = [j for j in head.ids if j >= sinks]
    rows = []
    for r in range(len(head.queries)):
        plain = [rotate(head.queries[r, t], turns(t, -1)) for t in head.last(window) if t >= sinks]
        n = max(len(plain), 1)
        center = sum(plain, np.zeros(size)) / n
        covariance = sum((np.outer(q - center, q - center) for q in plain), np.zeros((size, size))) / n
        matrix = np.array([rotate(unit, average) for unit in np.eye(size)]).T
        m, s = matrix @ center, matrix @ covariance @ matrix.T
        rows.append(
            softmax({j: float(head.keys[j] @ m) * head.scale + float(head.keys[j] @ s @ head.keys[j]) * head.scale**2 / 2 for j in others})
        )
    return {j: (mean([row[j] for row in rows]) + epsilon) * norm(head.values[j]) for j in others}
