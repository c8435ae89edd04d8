"""What a forward pass over some rows gave."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Decoded:
    """count: int64 [B], tokens that ran. logits: [B, V]. chosen: int64 [B], the greedy choice. bad_layer: int64 [B], -1 if all is finite.

    mass: fp32 [B, width] by token id, where it was asked for. learned: the policy has seen it already.
    """

    rows: Tensor
    count: Tensor
    logits: Tensor
    chosen: Tensor
    bad_layer: Tensor
    mass: Tensor | None
    learned: bool = False

    def first(self, n: int) -> Decoded:
        """Of the first n rows."""
        mass = None if self.mass is None else self.mass[:n]
        return Decoded(self.rows[:n], self.count[:n], self.logits[:n], self.chosen[:n], self.bad_layer[:n], mass, self.learned)
