"""What the vToken paper reports, as the project's plan quotes it. Percentages are relative changes."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf


@dataclass(frozen=True)
class Range:
    """From low to high; infinite where the paper gives one bound."""

    low: float
    high: float


UTILIZATION = Range(21.7, 21.9)  # % more
RETAINED_BLOCKS = Range(-72, -27)  # %
THROUGHPUT = Range(9.9, 37.3)  # % more, at a 95th percentile of at most LATENCY_FACTOR times the baseline's
LATENCY_FACTOR = 1.05
HOOKS = Range(-inf, 1.0)  # % of the baseline's time

# (blocks of 16 tokens, prompt tokens, output tokens) -> requests at once, native and vtoken; and the model that the pool was sized for
CAPACITY = {
    (5427, 16384, 256): (5, 8, "Mistral-7B"),
    (11519, 16384, 256): (11, 22, "Llama-3.1-8B"),
}
CAPACITY_GAIN = Range(8 / 5, 22 / 11)  # times
ADMITS = {f"admits_{blocks}": blocks for blocks, *_ in CAPACITY}  # column of the results -> blocks of the pool that it is an estimate for
ADMITS_SMALLER = next(iter(ADMITS))
