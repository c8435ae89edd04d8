"""A policy's view of recorded keys: their norms, and nothing else."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NoReturn

from torch import Tensor

from vtoken_sdk.policy import PolicyError


@dataclass(frozen=True)
class RecordedKV:
    """In place of a LiveKV, one layer and one head that stand for all. key_norms: fp32 [1, N]; positions: int64 [1, N]."""

    key_norms: Tensor
    positions: Tensor

    def __getattr__(self, name: str) -> NoReturn:
        raise PolicyError(
            f"kv.{name} is not in a recording: it has attention by step and the norms of keys (kv.key_norms). "
            "Run this policy with a model: vtoken-sweep"
        )
