"""Finds, on a CPU, what would make the host wait for a device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

# Operations that read a value, or whose result has a size that depends on values.
READS = ("_local_scalar_dense", "nonzero", "masked_select", "_unique", "unique", "equal", "repeat_interleave", "bincount")


class NoHostReads(TorchDispatchMode):
    """Raises at an operation whose result the host would have to wait for."""

    def __torch_dispatch__(self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> Any:
        name = func.name().removeprefix("aten::").partition(".")[0]
        if any(name.startswith(read) for read in READS):
            raise AssertionError(f"{func.name()} makes the host wait for the device")
        if name in ("index", "index_put", "index_put_", "_index_put_impl_"):
            masks = [i for i in args[1] if i is not None and i.dtype in (torch.bool, torch.uint8)]
            if masks:
                raise AssertionError(f"{func.name()} with a mask makes the host wait for the device")
        return func(*args, **(kwargs or {}))


def finds(act: Callable[[], object]) -> bool:
    """Does the mode catch this?"""
    try:
        with NoHostReads():
            act()
    except AssertionError:
        return True
    return False
