"""What the full cache answered, so that the jobs of a sweep ask it once."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from torch import Tensor

from vtoken_sdk.tracking.files import write_whole

MOST_BYTES = 1 << 30  # in a sweep's folder; above it, answers are computed again by each job


class Shelf(Protocol):
    """Named tensors by key."""

    def get(self, key: str) -> dict[str, Tensor] | None: ...

    def put(self, key: str, tensors: Mapping[str, Tensor]) -> None: ...


class MemoryShelf:
    """For callers that judge several policies in one process."""

    def __init__(self) -> None:
        self._known: dict[str, dict[str, Tensor]] = {}

    def get(self, key: str) -> dict[str, Tensor] | None:
        return self._known.get(key)

    def put(self, key: str, tensors: Mapping[str, Tensor]) -> None:
        self._known[key] = dict(tensors)


class FolderShelf:
    """One file a key, each whole or not there: jobs that run at once may both compute an answer, and write the same.

    A cache, never the truth: what cannot be read is missing, what cannot be written is left out.
    """

    def __init__(self, folder: Path, most_bytes: int = MOST_BYTES) -> None:
        self.folder, self.most_bytes = folder, most_bytes

    def get(self, key: str) -> dict[str, Tensor] | None:
        from safetensors import SafetensorError
        from safetensors.torch import load

        try:
            return dict(load((self.folder / f"{key}.safetensors").read_bytes()))
        except (OSError, SafetensorError, ValueError):
            return None

    def put(self, key: str, tensors: Mapping[str, Tensor]) -> None:
        from safetensors.torch import save

        data = save({name: tensor.contiguous() for name, tensor in tensors.items()})
        with contextlib.suppress(OSError):
            self.folder.mkdir(exist_ok=True)
            if sum(path.stat().st_size for path in self.folder.iterdir()) + len(data) <= self.most_bytes:
                write_whole(self.folder / f"{key}.safetensors", data)
