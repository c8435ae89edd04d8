"""Uniform among the live tokens: the baseline that knows nothing."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from vtoken_sdk.policy import CacheView, EvictionPolicy

BITS_32 = 0xFFFFFFFF


def mix(x: Tensor) -> Tensor:
    """A bijection of 32-bit values held in int64, in which each bit of x changes about half the bits. No product leaves int64."""
    x = ((x ^ (x >> 15)) * 0x2C1B3C6D) & BITS_32
    x = ((x ^ (x >> 12)) * 0x297A2D39) & BITS_32
    return x ^ (x >> 15)


@dataclass
class Random(EvictionPolicy):
    """Random: victims drawn uniformly. No paper; the floor that a policy has to beat.

    Definition: each live token gets a 24-bit number, an integer hash of the request's seed, the group, the token id and, if `fresh`,
        the length; the lowest die. fresh=True draws anew at each eviction: all candidates are equally likely, so old tokens, which
        were drawn for more often, thin out. fresh=False gives each token one lot for life: at any time the kept tokens are a
        uniform sample of all tokens seen. Say which one is meant by "random". The newest token always stays.
    Acts: whenever the run asks, after the prompt and in decode alike. Learns nothing.
    Reads: seed, length and ids; no generator, so the same request loses the same tokens in any batch, order and process.
    Folding: one draw for all heads and layers of a group; groups draw apart.
    Fidelity: exact, up to ties of 24 bits (one pair in 16 million; the lower id dies).
    Options: sinks, the first tokens, and recent, the last ones, int >= 0: spared as long as the budget allows. With both 0 it is
        pure, and loses the attention sinks like any blind policy; report it with sinks=4 and some recent tokens as well.
        fresh, bool: see the definition.
    """

    capturable = True

    sinks: int = 0
    recent: int = 0
    fresh: bool = True

    def __post_init__(self) -> None:
        for name in ("sinks", "recent"):
            if type(value := getattr(self, name)) is not int or value < 0:  # True is an int to isinstance
                raise ValueError(f"{name}={value!r}: use a whole number >= 0")
        if not isinstance(self.fresh, bool):
            raise ValueError(f"fresh={self.fresh!r}: use true (a draw at each eviction) or false (one lot a token)")

    def evict_token(self, cache: CacheView) -> Tensor:
        group = torch.arange(cache.live.shape[1], device=cache.live.device)[None, :, None]
        x = mix((cache.seed & BITS_32) ^ 0x1E3779B9)
        for word in (cache.seed >> 32, group, cache.length * self.fresh, cache.positions):
            x = mix(x ^ (word & BITS_32))
        return cache.evict_lowest(x >> 8, first=self.sinks, last=self.recent)
