"""Nothing goes: the baseline that loses nothing."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from vtoken_sdk.policy import CacheView, EvictionPolicy


@dataclass
class Full(EvictionPolicy):
    """Full cache: no token ever dies. No paper; the quality that every policy is compared with.

    Definition: kept are all tokens. It is the one policy that ignores the budget, so its row of a comparison is not at equal memory, and
        requests may need more blocks than their budget promised; under the runtime `native` no policy is asked at all.
    Acts: never, though it is asked.
    Reads: nothing. Folding: none is needed.
    Fidelity: exact.
    Options: none.
    """

    capturable = True

    def evict_token(self, cache: CacheView) -> Tensor:
        return torch.zeros_like(cache.live)
