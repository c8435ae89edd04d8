"""One figure of an experiment, with the paper's beside it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from vtoken_sdk.paper import Range

Unit = Literal["%", "share", "requests", "times", "ms", "MB", "nats", "figure"]
FORMATS: dict[str, str] = {
    "%": "{:+.1f} %", "share": "{:.3f}", "requests": "{:,.0f}", "times": "{:.2f} x", "ms": "{:,.2f} ms", "MB": "{:,.1f} MB",
    "nats": "{:.3f} nats", "figure": "{:.3f}",
}  # fmt: skip


def show_range(paper: Range, unit: Unit) -> str:
    """What the paper says, for people."""
    ends = [FORMATS[unit].format(value).removesuffix(f" {unit}") for value in (paper.low, paper.high)]
    tail = f" {unit}" if FORMATS[unit].endswith(f" {unit}") else ""
    if math.isinf(paper.low):
        return f"under {ends[1].lstrip('+')}{tail}"
    if math.isinf(paper.high):
        return f"at least {ends[0]}{tail}"
    return f"{ends[0]}{tail}" if paper.low == paper.high else f"{ends[0]} to {ends[1]}{tail}"


@dataclass(frozen=True)
class Finding:
    """measured: None where the sweep could not say; the note tells why. paper: None where the paper gives no figure.

    better: which side of the paper's range is as good as the range. at_least: the sweep ended before the figure did.
    """

    metric: str
    setting: str
    measured: float | None
    unit: Unit
    paper: Range | None = None
    better: Literal["higher", "lower"] = "higher"
    note: str = ""
    at_least: bool = False

    @property
    def verdict(self) -> str:
        """within the paper's range, better or missed; open: a sweep that goes further may reach it.

        Better by far can mean another setting than the paper's.
        """
        if self.measured is None:
            return "not measured"
        if self.paper is None:
            return "no figure"
        if self.paper.low <= self.measured <= self.paper.high:
            return "within"
        if self.at_least and self.measured < self.paper.low:
            return "open"
        above = self.measured > self.paper.high
        return "better" if above == (self.better == "higher") else "missed"

    @property
    def shown(self) -> str:
        if self.measured is None:
            return "-"
        return ">= " * self.at_least + FORMATS[self.unit].format(self.measured)

    @property
    def paper_shown(self) -> str:
        return "-" if self.paper is None else show_range(self.paper, self.unit)

    def as_json(self) -> dict[str, Any]:
        paper = None if self.paper is None else [v if math.isfinite(v) else None for v in (self.paper.low, self.paper.high)]
        return {
            "metric": self.metric,
            "setting": self.setting,
            "measured": self.measured,
            "at_least": self.at_least,
            "unit": self.unit,
            "paper": paper,
            "better": self.better,
            "verdict": self.verdict,
            "note": self.note,
        }


@dataclass(frozen=True)
class Outcome:
    """An experiment's findings. question: what it asks. detail: series and points behind them, as JSON has it. notes: what they are."""

    question: str
    findings: list[Finding]
    detail: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
