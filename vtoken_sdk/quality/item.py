"""One thing to judge, and what came out."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

SUITES = ("continuation", "needle", "needle4", "longbench")
Suite = Literal["continuation", "needle", "needle4", "longbench"]
Query = Literal["aware", "agnostic"]


@dataclass(frozen=True)
class Task:
    """An answer to be written, not only recognized.

    score: from the text written to 0..1; metric: its name. max_tokens: what may be written.
    """

    metric: str
    score: Callable[[str], float]
    max_tokens: int


@dataclass(frozen=True)
class Item:
    """prompt: token ids before the eviction at the prompt's end. forced: ids fed after it; those from `answer` on are judged.

    name: within suite and seed. must_find: the item says something only if the full cache's first choices are the answer. facts: for the
    table. task: what is also written freely, after the prompt and the first `answer` forced ids.
    """

    suite: Suite
    name: str
    prompt: list[int]
    forced: list[int]
    answer: int = 0
    seed: int = 0
    must_find: bool = False
    facts: Mapping[str, str | int | float] = field(default_factory=dict)
    task: Task | None = None

    @property
    def wanted(self) -> list[int]:
        """The ids that are judged."""
        return self.forced[self.answer :]

    @property
    def length(self) -> int:
        """The most tokens whose keys and values it ever holds: the last token is never run."""
        written = self.answer + self.task.max_tokens if self.task is not None else 0
        return len(self.prompt) + max(len(self.forced), written) - 1

    @property
    def request_seed(self) -> int:
        """Of the policy's draws: the item's own, whatever else is judged beside it."""
        digest = hashlib.sha256(f"{self.seed}/{self.suite}/{self.name}".encode()).digest()
        return int.from_bytes(digest[:7])


@dataclass(frozen=True)
class Score:
    """One item under eviction. Means over the judged tokens; None where it does not apply.

    nll: nats a token of the true answer; nll_full: with the full cache. kl: KL(full || evicted). top1: share of positions where both have
    the same best token. found: every token of the answer is the best one. score: of the written answer, 0..1. dropped: the full cache
    itself fails, so that nothing was run.
    """

    suite: str
    item: str
    seed: int
    prompt_tokens: int
    judged: int
    nll_full: float
    found_full: bool
    dropped: bool = False
    nll: float | None = None
    kl: float | None = None
    top1: float | None = None
    found: bool | None = None
    metric: str | None = None
    score: float | None = None
    score_full: float | None = None
    depth: float | None = None
    dataset: str | None = None
    prompt: str | None = None
