"""Where the copies of a plan run: a second CUDA stream, or on a CPU a queue that is as late as a test wants it; or the main stream."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch

from .config import StreamName
from .kv_cache import KVCache
from .planner import Plan


class CopyStream(Protocol):
    """Runs one plan's copies beside the main stream."""

    def submit(self, plan: Plan) -> None:
        """Start copying once everything launched on the main stream so far is done."""

    def tick(self) -> None:
        """The main stream has launched another operation."""

    def join(self) -> bool:
        """Make the main stream wait for the copies. True if they were unfinished, as far as the host can tell."""

    def abandon(self) -> None:
        """Forget the plan after a failure. The main stream waits for what is still being copied."""


class DeferredStream:
    """On a CPU: copies happen bit by bit at `tick`, as many as `progress(left)` says, the rest at `join`.

    By default all of them wait for `join`, which is the latest that the protocol allows.
    """

    def __init__(self, cache: KVCache, progress: Callable[[int], int] = lambda left: 0) -> None:
        self.cache, self.progress = cache, progress
        self._plan: Plan | None = None
        self._done = self._count = 0

    def submit(self, plan: Plan) -> None:
        assert self._plan is None, "one plan in flight"
        self._plan, self._done, self._count = plan, 0, int(plan.count)

    def tick(self) -> None:
        if self._plan is not None and self._done < self._count:
            left = self._count - self._done
            self._copy(max(0, min(self.progress(left), left)))

    def join(self) -> bool:
        late = self._done < self._count
        self._copy(self._count - self._done)
        self._plan = None
        return late

    def abandon(self) -> None:
        self._plan = None

    def _copy(self, n: int) -> None:
        if n:
            assert self._plan is not None
            part = slice(self._done, self._done + n)
            self.cache.copy_slots(self._plan.source_slot[part], self._plan.target_slot[part])
            self._done += n


class SideStream:
    """On a GPU: a second stream, ordered with the main one by two events."""

    def __init__(self, cache: KVCache) -> None:
        self.cache = cache
        self.stream = torch.cuda.Stream(cache.keys.device)
        self._copied = torch.cuda.Event()
        self._plan: Plan | None = None  # holds the buffers until the main stream has waited

    def submit(self, plan: Plan) -> None:
        self._plan = plan
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            self.cache.move(plan.source_slot, plan.target_slot, plan.count)
            self._copied.record()

    def tick(self) -> None:
        """The device orders itself."""

    def join(self) -> bool:
        late = not self._copied.query()
        torch.cuda.current_stream().wait_event(self._copied)
        self._plan = None
        return late

    def abandon(self) -> None:
        torch.cuda.current_stream().wait_stream(self.stream)
        self._plan = None


class MainStream:
    """Between two steps, as if there were no other stream: what the side stream is measured against."""

    def __init__(self, cache: KVCache) -> None:
        self.cache = cache

    def submit(self, plan: Plan) -> None:
        self.cache.move(plan.source_slot, plan.target_slot, plan.count)

    def tick(self) -> None:
        """Nothing is late."""

    def join(self) -> bool:
        return False

    def abandon(self) -> None:
        """Nothing is left."""


def make_copy_stream(cache: KVCache, name: StreamName = "side") -> CopyStream:
    if name == "main":
        return MainStream(cache)
    return SideStream(cache) if cache.keys.device.type == "cuda" else DeferredStream(cache)
