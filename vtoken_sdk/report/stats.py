"""Means with intervals over repeats. A repeat is a seed; what is compared is compared seed by seed."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import fmean, stdev

LEVEL = "95 %"
# 97.5 % points of Student's t for 1 to 10 degrees of freedom; beyond, the expansion below is exact to 0.001.
_T = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)
_Z = 1.959964


def student_t(freedom: int) -> float:
    """The factor of a two-sided 95 % interval (Abramowitz and Stegun 26.7.5 beyond 10 degrees of freedom)."""
    if freedom <= len(_T):
        return _T[freedom - 1]
    z, n = _Z, float(freedom)
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * n**3)
    return z + (z**3 + z) / (4 * n) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * n**2) + third


@dataclass(frozen=True)
class Estimate:
    """A mean over n repeats; `half` is half the width of its 95 % interval, None for one repeat."""

    mean: float
    half: float | None
    n: int

    @classmethod
    def of(cls, values: Iterable[float | None]) -> Estimate | None:
        """None where no repeat has a value. Repeats without one are left out, and n says so."""
        known = [float(v) for v in values if v is not None and math.isfinite(v)]
        if not known:
            return None
        half = student_t(len(known) - 1) * stdev(known) / math.sqrt(len(known)) if len(known) > 1 else None
        return cls(fmean(known), half, len(known))

    @property
    def clear(self) -> bool:
        """Whether the interval leaves out 0. With one repeat nothing contradicts the mean."""
        return self.half is None or abs(self.mean) > self.half
