"""A range of numbers to search, written interval(0.3,1.0), or tag(log,interval(1,64)) on a logarithmic scale, as Hydra has it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

_FORM = re.compile(r"(tag\(\s*log\s*,\s*)?interval\(\s*([^,()]+?)\s*,\s*([^,()]+?)\s*\)(\s*\))?")


@dataclass(frozen=True)
class Interval:
    """Both ends belong to it. Whole numbers at both ends: whole numbers in between."""

    low: Any
    high: Any
    log: bool = False

    @staticmethod
    def written_in(raw: object) -> bool:
        match = _FORM.fullmatch(raw.strip()) if isinstance(raw, str) else None
        return match is not None and bool(match[1]) == bool(match[4])

    @classmethod
    def read(cls, raw: str) -> Interval:
        """Of a text that `written_in` says yes to. The ends are still text."""
        match = _FORM.fullmatch(raw.strip())
        assert match is not None
        return cls(match[2], match[3], bool(match[1]))

    @property
    def whole(self) -> bool:
        return isinstance(self.low, int) and isinstance(self.high, int)

    def __str__(self) -> str:
        plain = f"interval({self.low},{self.high})"
        return f"tag(log,{plain})" if self.log else plain
