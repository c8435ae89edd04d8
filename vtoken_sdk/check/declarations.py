"""Checks of what a class says of itself: its options and its needs."""

from __future__ import annotations

import dataclasses
import enum
import types
import warnings

from vtoken_sdk.policy import EvictionPolicy

from .factory import PolicyFactory, make_policy
from .faults import CheckFailed, CheckWarning
from .memory_cache import ordinary_run

FIXED = (bool, int, float, str, bytes, type(None), type, enum.Enum, types.FunctionType)


def check_options(make: PolicyFactory) -> None:
    """A dataclass, each of whose options has a default."""
    policy = make_policy(make)
    cls = type(policy)
    if "__dataclass_params__" not in vars(cls):
        missing = sorted(n for n in vars(cls).get("__annotations__", {}) if n not in ("needs", "window", "capturable"))
        what = f"; {', '.join(missing)} cannot be set" if missing else ""
        if missing or not dataclasses.is_dataclass(cls):
            raise CheckFailed(f"{cls.__name__} is no dataclass, so it has no options{what}. Put @dataclass above the class.")
    for field in dataclasses.fields(policy):  # type: ignore[arg-type]  # just looked at
        has_default = field.default is not dataclasses.MISSING
        if field.init and not has_default and field.default_factory is dataclasses.MISSING:
            raise CheckFailed(f"the option {field.name} has no default, so `policy=NAME` alone cannot make one. Give it one that works.")
        if has_default and not _is_fixed(field.default):
            raise CheckFailed(
                f"the default of {field.name} is a {type(field.default).__name__}, one object for all policies. "
                "Use a number, string or tuple, or field(default_factory=...)."
            )
    shared = [n for c in _own_classes(cls) for n, v in vars(c).items() if not n.startswith("__") and isinstance(v, list | dict | set)]
    if shared:
        raise CheckFailed(
            f"{cls.__name__}.{shared[0]} is a {type(getattr(cls, shared[0])).__name__} of the class, one object for all policies. "
            "Keep per-token values in cache.state, and constants in tuples."
        )


def check_needs(make: PolicyFactory) -> None:
    """Reads what it declares in `needs`, and no more."""
    policy = make_policy(make)
    window = getattr(policy, "window", None)
    if "queries" in policy.needs and (isinstance(window, bool) or not isinstance(window, int) or window < 1):
        raise CheckFailed(
            f'it needs "queries", and window={window!r}. Give it a field `window: int = 32`: how many of the last queries it reads.'
        )
    record = ordinary_run(make)
    if type(policy).capturable and (hosts := {"score", "future"} & record.reads):
        raise CheckFailed(
            f"it promises `capturable`, and reads cache.{min(hosts)}, which looks up requests on the host, so that no CUDA graph can hold "
            "the call. Remove `capturable`."
        )
    unused = sorted(policy.needs - record.reads)
    if unused:
        warnings.warn(
            f"declares {', '.join(unused)} in `needs` and never reads it; providing it costs time in every step. Remove it there.",
            CheckWarning,
            stacklevel=2,
        )


def _is_fixed(value: object) -> bool:
    if isinstance(value, tuple | frozenset):
        return all(map(_is_fixed, value))
    return isinstance(value, FIXED)


def _own_classes(cls: type) -> list[type]:
    return list(cls.__mro__[: cls.__mro__.index(EvictionPolicy)])
