"""From what a user names to a function that makes a fresh policy."""

from __future__ import annotations

import copy
import dataclasses
import warnings
from collections.abc import Callable
from typing import Any, cast

from vtoken_sdk.policy import EvictionPolicy
from vtoken_sdk.registry import load_policy_class

from .faults import CheckFailed

PolicyFactory = Callable[[], EvictionPolicy]


def factory_of(policy: EvictionPolicy | type[EvictionPolicy] | str) -> PolicyFactory:
    """policy: an instance, whose options each new policy gets; a class; or a spec as for `load_policy`.

    Raises TypeError for anything else, RegistryError for an unknown spec.
    """
    if isinstance(policy, str):
        policy = load_policy_class(policy)
    if isinstance(policy, type) and issubclass(policy, EvictionPolicy):
        return policy
    if not isinstance(policy, EvictionPolicy):
        raise TypeError(f"{policy!r} is no policy: give an EvictionPolicy, its class, or its name")
    instance = policy
    if dataclasses.is_dataclass(instance):
        return lambda: cast(EvictionPolicy, dataclasses.replace(cast(Any, instance)))
    return lambda: copy.deepcopy(instance)


def make_policy(make: PolicyFactory) -> EvictionPolicy:
    """A fresh policy. What its constructor warns of was said when the user made it. Raises CheckFailed."""
    with warnings.catch_warnings(action="ignore"):
        try:
            return make()
        except (Exception, SystemExit) as error:
            raise CheckFailed(
                f"the policy cannot be made without arguments: {type(error).__name__}: {error}. Give every field a default that works.",
                cause="check_options",
            ) from error


def label_of(policy: EvictionPolicy) -> str:
    """The class, and its options where they are not the defaults: H2O, H2O(recent=0.2)."""
    name = type(policy).__name__
    if not dataclasses.is_dataclass(policy):
        return name
    told = []
    for field in dataclasses.fields(policy):
        value, default = getattr(policy, field.name), field.default
        if field.default_factory is not dataclasses.MISSING:
            default = field.default_factory()
        if field.init and repr(value) != repr(default):
            told.append(f"{field.name}={value!r}")
    return f"{name}({', '.join(told)})" if told else name
