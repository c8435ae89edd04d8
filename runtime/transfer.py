"""From the host to the device, and back, without waiting."""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
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
    """Places on the host where results of the last few steps arrive, int64 of one shape, each with an event: made once, used in turn.

    places: none where the results are on the host anyway. depth: as many are on their way, or being read, at once.
    """

    def __init__(self, depth: int, shape: tuple[int, ...], device: torch.device) -> None:
        self.places = [torch.empty(shape, dtype=torch.int64, pin_memory=True) for _ in range(depth if device.type == "cuda" else 0)]
        self._events = [torch.cuda.Event() for _ in self.places]
        self._next = 0
        # A kernel that is still to come writes to its place, whoever has that memory by then: it is given back afterwards.
        weakref.finalize(self, _wait, self._events, self.places).atexit = False

    def send(self, values: Tensor) -> tuple[Tensor, torch.cuda.Event | None]:
        """Where the values will be on the host, and the event after which they are (None: at once)."""
        return self.fill(lambda i: self.places[i].copy_(values, non_blocking=True)) if self.places else (values, None)

    def fill(self, write: Callable[[int], object]) -> tuple[Tensor, torch.cuda.Event]:
        """As `send`, of what `write` launches: it is given the number of its place, which kernels can write to as it is."""
        i = self._next
        self._next = (i + 1) % len(self.places)
        write(i)
        self._events[i].record()
        return self.places[i], self._events[i]


def _wait(events: Iterable[torch.cuda.Event], places: Sequence[Tensor]) -> None:
    for event in events:
        event.synchronize()


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
