"""Finds, on a CPU, what a GPU would show: reads by the host that make it wait, and tensors left on another device."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from .faults import CheckFailed

# Operations that read a value, or whose result has a size that depends on values.
READS = (
    "_local_scalar_dense",
    "nonzero",
    "masked_select",
    "_unique",
    "unique",
    "equal",
    "allclose",
    "repeat_interleave",
    "bincount",
)
METHODS = ("tolist", "numpy", "cpu", "__array__", "__format__", "__repr__", "__str__")  # of tensors; on a CPU they run no operation
COPIES = ("_to_copy", "copy_", "lift_fresh")


def _found(what: str) -> NoReturn:
    raise CheckFailed(
        f"{what} makes the host wait for the device, and on a GPU every step with it. Likely an `if`, int(), .item(), .tolist() or x[mask] "
        "on a tensor: use torch.where, masked_fill, or tensors [B, 1, 1], which evict_lowest takes as `last` and `keep`.",
        cause="check_host_reads",
    )


class _Operations(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # of torch

    def __torch_dispatch__(self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> Any:
        name = _name(func)
        masked = name in ("index", "index_put", "index_put_") and any(
            i is not None and i.dtype in (torch.bool, torch.uint8) for i in args[1]
        )
        if masked and name != "index" and args[2].numel() == 1:  # x[mask] = 0 is a masked_fill
            masked = False
        if masked or name.startswith(READS):
            _found(f"{func.name()}{' with a mask' if masked else ''}")
        return func(*args, **(kwargs or {}))


class _Methods(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> Any:
        name = getattr(func, "__name__", "")
        targets = (*args[1:], (kwargs or {}).get("device"))
        to_host = name == "to" and any(isinstance(target, str) and target.startswith("cpu") for target in targets)
        if to_host or (name in METHODS and args and isinstance(args[0], Tensor)):
            _found(f"Tensor.{name}")
        return func(*args, **(kwargs or {}))


@contextmanager
def no_host_reads() -> Iterator[None]:
    """Raises CheckFailed at an operation whose result a host would have to wait for, were the tensors on a GPU."""
    with _Methods(), _Operations():
        yield


class OneDevice(TorchDispatchMode):
    """Raises CheckFailed where an operation mixes tensors of two devices. Numbers (tensors without axes) and copies may cross."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # of torch

    def __torch_dispatch__(self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> Any:
        devices = {x.device for x in tree_iter((args, kwargs)) if isinstance(x, Tensor) and x.dim()}
        if len(devices) > 1 and _name(func) not in COPIES:
            raise CheckFailed(
                f"{func.name()} mixes a tensor on the CPU with the cache's, which may be on a GPU. Make new tensors with "
                "device=cache.live.device (in cache.score: device=kv.keys.device).",
                cause="check_device",
            )
        return func(*args, **(kwargs or {}))


def _name(func: Any) -> str:
    name: str = func.name().removeprefix("aten::").partition(".")[0]
    return name
