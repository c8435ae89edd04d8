"""Every bundled policy, as the registry finds them: a new file in policies/ joins these tests by itself."""

from __future__ import annotations

import dataclasses
import warnings
from typing import Any, cast

from vtoken_sdk.policy import EvictionPolicy
from vtoken_sdk.registry import GROUP, available_policies, load_policy_class

BUNDLED = {name: load_policy_class(name) for name, module in available_policies().items() if module == f"{GROUP}.{name}"}
EVICTING = [name for name in BUNDLED if name != "full"]
# Defaults made for long contexts leave a recency window of requests as short as these.
SMALL: dict[str, Any] = {"window": 4, "kernel": 3, "lag": 4, "horizon": 8}


def make(name: str, **options: Any) -> EvictionPolicy:
    """An instance, without the warnings that some give of themselves."""
    with warnings.catch_warnings(action="ignore", category=UserWarning):
        return BUNDLED[name](**options)


def make_small(name: str) -> EvictionPolicy:
    return make(name, **{option: value for option, value in SMALL.items() if option in options_of(name)})


def options_of(name: str) -> list[str]:
    return [field.name for field in dataclasses.fields(cast(Any, BUNDLED[name]))]
