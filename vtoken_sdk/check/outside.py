"""What a policy may not depend on, or change: process-wide random generators, and attributes that outlive a call."""

from __future__ import annotations

import dataclasses
import functools
import pickle
import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

from vtoken_sdk.policy import EvictionPolicy


def seed_draws(entropy: int) -> None:
    """Start the generators of torch, numpy and random from here."""
    torch.default_generator.manual_seed(entropy)
    random.seed(entropy)
    np.random.seed(entropy)  # noqa: NPY002  # a policy may use it; we do not


@contextmanager
def kept_draws() -> Iterator[None]:
    """Afterwards the generators of torch, numpy and random are where they were."""
    before = torch.default_generator.get_state(), random.getstate(), np.random.get_state()  # noqa: NPY002
    try:
        yield
    finally:
        torch.default_generator.set_state(before[0])
        random.setstate(before[1])
        np.random.set_state(before[2])  # noqa: NPY002


def fingerprint(policy: EvictionPolicy) -> dict[str, bytes]:
    """Attribute -> its value as bytes, of the policy (self.x) and of its classes (Mine.x). A functools.cached_property does not count."""
    found: dict[str, object] = {}
    classes = type(policy).__mro__[: type(policy).__mro__.index(EvictionPolicy)]
    for cls in classes:
        for name, value in vars(cls).items():
            plain = not callable(value) and not hasattr(value, "__get__") and not name.startswith(("__", "_abc_"))
            if plain and name not in {f.name for f in _fields(cls)}:
                found[f"{cls.__name__}.{name}"] = value
    for name in [*getattr(policy, "__dict__", {}), *(f.name for f in _fields(type(policy)))]:
        if not any(isinstance(vars(cls).get(name), functools.cached_property) for cls in classes):
            found[f"self.{name}"] = getattr(policy, name, None)
    return {name: _bytes(value) for name, value in found.items()}


def _fields(cls: type) -> tuple[dataclasses.Field[object], ...]:
    return dataclasses.fields(cls) if dataclasses.is_dataclass(cls) else ()


def _bytes(value: object) -> bytes:
    try:
        return pickle.dumps(value)
    except Exception:  # whatever __reduce__ raises: the check of copies says so
        return repr(value).encode()
