"""What one run over the memory cache saw."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from .faults import CheckFailed

Deaths = list[tuple[int, list[list[int]]]]  # of one request: (length, the ids that died in each group), one entry an eviction


@dataclass(frozen=True)
class Answer:
    """One call of evict_token, all on the CPU. requests: who is in which row. asked: bool [B, G, T] as returned. live: before it.

    due: bool [B], whose answer counts. length, budget: int64 [B, 1, 1].
    """

    requests: tuple[int, ...]
    asked: Tensor
    live: Tensor
    due: Tensor
    length: Tensor
    budget: Tensor

    @property
    def newest(self) -> Tensor:
        """bool [B, 1, T]."""
        ids = (self.length - 1).new_tensor(range(self.live.shape[-1]))
        return ids == self.length - 1

    @property
    def left(self) -> Tensor:
        """int64 [B, G]: live tokens afterwards, if every wish for a live token were granted."""
        return (self.live & ~self.asked).sum(-1)

    def told(self, row: int) -> str:
        """'request 3 (length 33, budget 11)'."""
        return f"request {self.requests[row]} (length {int(self.length[row])}, budget {int(self.budget[row])})"


@dataclass
class Record:
    """deaths: of each request. changed: inputs that the policy changed. stained: state that evict_token changed in place.

    hidden: attributes of the policy or its class that a call changed. impure: of answers that differed when asked again.
    nan: where a NaN arose. reads: "attention", "queries", "future", "score".
    """

    deaths: list[Deaths]
    answers: list[Answer] = field(default_factory=list)
    reads: set[str] = field(default_factory=set)
    changed: list[str] = field(default_factory=list)
    stained: list[str] = field(default_factory=list)
    hidden: list[str] = field(default_factory=list)
    impure: list[str] = field(default_factory=list)
    nan: list[str] = field(default_factory=list)


def first_difference(one: Record, other: Record) -> str | None:
    """Where two runs part, for a message; None if the same tokens died at the same lengths."""
    for request, (a, b) in enumerate(zip(one.deaths, other.deaths, strict=True)):
        if a == b:
            continue
        at, also_at = dict(a), dict(b)
        length = min(n for n in at.keys() | also_at.keys() if at.get(n) != also_at.get(n))
        groups = zip(at.get(length) or [[]] * len(also_at[length]), also_at.get(length) or [[]] * len(at[length]), strict=True)
        died, also = next((set(x), set(y)) for x, y in groups if x != y)
        only = [sorted(died - also)[:6], sorted(also - died)[:6]]
        return f"request {request}, length {length}: {only[0]} died only in the first run, {only[1]} only in the second"
    return None


def expect_same(one: Record, other: Record, why: str) -> None:
    """Raises CheckFailed with the first difference and `why`, which goes on with the sentence."""
    if difference := first_difference(one, other):
        raise CheckFailed(f"{difference}{why}")
