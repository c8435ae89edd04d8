"""Attention sinks plus a recent window."""

from __future__ import annotations

import warnings
from dataclasses import dataclass

from torch import Tensor

from vtoken_sdk.policy import CacheView, EvictionPolicy


@dataclass
class StreamingLLM(EvictionPolicy):
    """StreamingLLM (Xiao et al. 2023, arXiv 2309.17453): the first `sinks` tokens and the most recent ones.

    Definition: kept are ids 0 .. sinks - 1 and the last budget - sinks ids. The sinks are part of the budget; where it is smaller
        than sinks + 1, the budget wins: the newest token stays, then the sinks with the higher ids.
    Acts: whenever the run asks, after the prompt and in decode alike. Learns nothing.
    Reads: positions only. Folding: none is needed, every head and layer would choose the same tokens.
    Fidelity: adapted. The kept tokens are the paper's, but each keeps its original position, as a paged engine needs; the authors'
        code numbers the kept tokens anew by their place in the cache. So this one runs out of positions where the paper's does not.
        With evict.every = n the window is up to n tokens too long between two evictions. Defaults: 4 sinks as published; the
        window follows from the budget (the authors' class keeps 4 + 512).
    Options: sinks, int >= 0. With 0 it is the plain recency window, which is known to collapse: a warning says so.
    """

    capturable = True

    sinks: int = 4

    def __post_init__(self) -> None:
        if type(self.sinks) is not int or self.sinks < 0:  # True is an int to isinstance
            raise ValueError(f"sinks={self.sinks!r}: use a whole number >= 0 (4 is the paper's)")
        if self.sinks == 0:
            warnings.warn(
                "StreamingLLM with sinks=0 drops the first tokens, and models are known to collapse as soon as they are gone "
                "(attention sinks): bad text is then the policy's, not a fault of the runtime. Use sinks=4 unless this is the point.",
                UserWarning,
                stacklevel=3,  # past the generated __init__, to whoever chose the option
            )

    def evict_token(self, cache: CacheView) -> Tensor:
        return cache.evict_lowest(cache.positions, first=self.sinks)
