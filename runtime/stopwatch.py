"""Host time by part. Nested parts are exclusive: time counts for the innermost one only."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

PARTS = ("model", "policy", "table", "plan", "copy")


class Stopwatch:
    """ms: milliseconds by part since `reset`."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.ms = dict.fromkeys(PARTS, 0.0)
        self._inner = 0.0  # ms spent in parts nested in the running one

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        outer, self._inner = self._inner, 0.0
        began = time.perf_counter()
        try:
            yield
        finally:
            spent = (time.perf_counter() - began) * 1e3
            self.ms[name] += spent - self._inner
            self._inner = outer + spent
