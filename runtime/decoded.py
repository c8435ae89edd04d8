"""What a forward pass gave for some rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class Decoded:
    """count: int64 [B], tokens that ran. bad_layer: int64 [B], -1 if all is finite. Where a next token is wanted, logits: [B, V], and
    chosen: int64 [B], the greedy choice.

    mass: fp32 [B, width] by token id, key_norms: fp32 [B, n] as `StepContext` has it, where they were asked for.
    learned: the policy has seen it already.
    """

    rows: Tensor
    count: Tensor
    bad_layer: Tensor
    logits: Tensor | None = None
    chosen: Tensor | None = None
    mass: Tensor | None = None
    key_norms: Tensor | None = None
    learned: bool = False

    def first(self, n: int) -> Decoded:
        """Of the first n rows."""
        parts: dict[str, Any] = {f.name: value[:n] for f in fields(self) if isinstance(value := getattr(self, f.name), Tensor)}
        return replace(self, **parts)


def joined(parts: Sequence[Tensor]) -> Tensor:
    """Along the first axis; a single one is not copied."""
    return parts[0] if len(parts) == 1 else torch.cat(list(parts))
