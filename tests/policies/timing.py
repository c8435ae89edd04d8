"""When a policy is asked in these tests, and for whom."""

from __future__ import annotations

from typing import NamedTuple

from vtoken_sdk.policy import EvictionPolicy

from . import reference
from .driver import Driver, Log, Request

PROMPTS, TOTAL = (9, 17, 24), 30


class Timing(NamedTuple):
    """When the policy is asked, as the driver's options."""

    chunk: int = 100
    prefill: str = "end"
    every: int = 1

    def due(self, prompt: int) -> set[int]:
        """The lengths at which it is asked."""
        after = {n for n in range(prompt + 1, TOTAL + 1) if (n - prompt) % self.every == 0} if self.every else set()
        inside = set(range(self.chunk, prompt, self.chunk)) if self.prefill == "chunk" else set()
        return after | inside | ({prompt} if self.prefill != "never" else set())

    def driver(self, policy: EvictionPolicy, requests: list[Request], granularity: str) -> Driver:
        return Driver(policy, requests, granularity, self.chunk, self.prefill, self.every)


TIMINGS = {
    "end": Timing(),
    "even": Timing(every=2),
    "chunks": Timing(5, "chunk", 3),
    "never": Timing(prefill="never", every=2),
    "once": Timing(every=0),
}


def together(deaths: list[reference.Deaths]) -> Log:
    """The deaths of each group at the same lengths, as one log."""
    return [(row[0][0], [ids for _, ids in row]) for row in zip(*deaths, strict=True)]
