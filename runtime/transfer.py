"""From the host to the device, and back, without waiting."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


def to_device(values: Sequence[Any], device: torch.device) -> Tensor:
    """Whole numbers, nested as they like, as int64 on the device: through pinned memory, ordered on the current stream."""
    return torch.tensor(values, dtype=torch.int64, pin_memory=device.type == "cuda").to(device, non_blocking=True)


def to_host(values: Tensor) -> Tensor:
    """Starts the way to the host; the result holds once the stream has come to here."""
    if values.device.type != "cuda":
        return values.clone()
    return torch.empty(values.shape, dtype=values.dtype, pin_memory=True).copy_(values, non_blocking=True)


class Ring:
    """Places on the host where results of the last few steps arrive, each with an event: made once, then used in turn.

    depth: as many are on their way, or being read, at once.
    """

    def __init__(self, depth: int) -> None:
        self.depth = depth
        self._places: list[tuple[Tensor, torch.cuda.Event]] = []
        self._next = 0

    def send(self, values: Tensor) -> tuple[Tensor, torch.cuda.Event | None]:
        """Where the values, always of one shape, will be on the host, and the event after which they are (None: at once)."""
        if values.device.type != "cuda":
            return values, None
        if len(self._places) < self.depth:
            self._places.append((torch.empty(values.shape, dtype=values.dtype, pin_memory=True), torch.cuda.Event()))
        place, ready = self._places[self._next]
        self._next = (self._next + 1) % self.depth
        place.copy_(values, non_blocking=True)
        ready.record()
        return place, ready


class Sender:
    """`to_device`, which sends the same numbers once: a batch that decodes on names the same rows at every step.

    Nobody writes into what it gives.
    """

    KEPT = 32

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._sent: OrderedDict[tuple[Any, ...], Tensor] = OrderedDict()

    def __call__(self, values: tuple[Any, ...]) -> Tensor:
        found = self._sent.get(values)
        if found is None:
            found = self._sent[values] = to_device(values, self.device)
            if len(self._sent) > self.KEPT:
                self._sent.popitem(last=False)
        else:
            self._sent.move_to_end(values)
        return found
