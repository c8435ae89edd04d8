"""What makes a host wait, and what lies on another device, is found on a CPU."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from vtoken_sdk.check import CheckFailed, no_host_reads
from vtoken_sdk.check.modes import OneDevice

X = torch.arange(6.0)
MASK = X > 2

READS: dict[str, Callable[[], object]] = {
    "item": lambda: X[0].item(),
    "int": lambda: int(X[0]),
    "if": lambda: 1 if MASK.any() else 0,
    "range": lambda: range(torch.tensor(3)),
    "slice": lambda: X[: torch.tensor(3)],
    "in": lambda: 3.0 in X,
    "tolist": lambda: X.tolist(),
    "numpy": lambda: X.numpy(),
    "asarray": lambda: np.asarray(X),
    "cpu": lambda: X.cpu(),
    "to": lambda: X.to("cpu"),
    "to_device": lambda: X.to(device="cpu"),
    "format": lambda: f"{X}",
    "print": lambda: str(X),
    "mask": lambda: X[MASK],
    "put": lambda: X.clone().__setitem__(MASK, torch.zeros(3)),
    "nonzero": lambda: MASK.nonzero(),
    "where": lambda: torch.where(MASK),
    "masked_select": lambda: X.masked_select(MASK),
    "unique": lambda: X.unique(),
    "equal": lambda: torch.equal(X, X),
    "allclose": lambda: torch.allclose(X, X),
    "repeat": lambda: X.repeat_interleave(torch.tensor([1, 2, 1, 1, 1, 1])),
    "bincount": lambda: X.long().bincount(),
}
FINE: dict[str, Callable[[], object]] = {
    "where": lambda: torch.where(MASK, X, 0),
    "masked_fill": lambda: X.masked_fill(MASK, 0),
    "put_a_number": lambda: X.clone().__setitem__(MASK, 0),
    "index": lambda: X[torch.tensor([1, 2])],
    "gather": lambda: X.gather(0, torch.tensor([1, 2])),
    "sort": lambda: X.argsort(stable=True),
    "topk": lambda: X.topk(2),
    "shape": lambda: X[: X.shape[0] // 2],
    "repeat": lambda: X.repeat_interleave(2),
    "to_dtype": lambda: X.to(torch.int64),
    "to_like": lambda: X.to(MASK.device),
    "unbind": lambda: list(X),
}


@pytest.mark.parametrize("name", READS)
def test_a_host_read_is_found(name: str) -> None:
    with pytest.raises(CheckFailed, match="makes the host wait for the device"), no_host_reads():
        READS[name]()


@pytest.mark.parametrize("name", FINE)
def test_what_needs_no_value_is_let_through(name: str) -> None:
    with no_host_reads():
        FINE[name]()


HERE = torch.zeros(3, device="meta")
MIXED: dict[str, Callable[[Tensor], object]] = {
    "add": lambda x: HERE + x,
    "gather": lambda x: HERE.gather(0, x.long()),
    "index": lambda x: HERE[x.long()],
    "where": lambda x: torch.where(x > 0, HERE, 0),
    "cat": lambda x: torch.cat([HERE, x]),
    "einsum": lambda x: torch.einsum("i,i->", HERE, x),
}


@pytest.mark.parametrize("name", MIXED)
def test_tensors_of_two_devices_are_found(name: str) -> None:
    with pytest.raises(CheckFailed, match=r"mixes a tensor on the CPU.*device=cache\.live\.device"), OneDevice():
        MIXED[name](torch.ones(3))
    with OneDevice():
        MIXED[name](torch.ones(3, device="meta"))


def test_numbers_and_copies_may_cross() -> None:
    with OneDevice():
        assert (HERE + torch.tensor(1.0)).is_meta
        assert torch.ones(3).to("meta").is_meta
        assert torch.as_tensor(torch.arange(3), device="meta").is_meta
