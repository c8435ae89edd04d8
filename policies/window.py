"""The most recent tokens, and not one of the first: the classic failure."""

from __future__ import annotations

import warnings
from dataclasses import dataclass

from torch import Tensor

from vtoken_sdk.policy import CacheView, EvictionPolicy


@dataclass
class Window(EvictionPolicy):
    """Window attention (the baseline of Xiao et al. 2023, arXiv 2309.17453): the most recent tokens only. Known to fail.

    Definition: kept are the last `budget` ids, as by streaming_llm with sinks=0. The first tokens, which models use as attention sinks,
        go first, and the loss explodes as soon as they are gone. It is here to show that; a warning says so.
    Acts: whenever the run asks, after the prompt and in decode alike. Learns nothing.
    Reads: positions only. Folding: none is needed, every head and layer would choose the same tokens.
    Fidelity: exact with evict.every = 1; with evict.every = n the window is up to n tokens too long between two evictions. Original
        positions are kept.
    Options: none.
    """

    capturable = True

    def __post_init__(self) -> None:
        warnings.warn(
            "Window keeps no attention sinks, and models are known to collapse as soon as the first tokens are gone: bad text is then "
            "the policy's, not a fault of the runtime. Use streaming_llm unless this is the point.",
            UserWarning,
            stacklevel=3,  # past the generated __init__, to whoever chose it
        )

    def evict_token(self, cache: CacheView) -> Tensor:
        return cache.evict_lowest(cache.positions)
