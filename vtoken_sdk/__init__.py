"""vtoken-sdk: write a KV-cache eviction policy, and see what it costs in quality and what it buys in freed blocks.

The names below are imported on first use, so that `import vtoken_sdk` does not wait for torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vtoken_sdk.policy import CacheView, EvictionPolicy, LiveKV, NewTokens, PolicyError
    from vtoken_sdk.registry import load_policy
    from vtoken_sdk.runtime import Engine, EngineConfig, SamplingParams

__version__ = "0.1.0"

__all__ = [
    "CacheView",
    "Engine",
    "EngineConfig",
    "EvictionPolicy",
    "LiveKV",
    "NewTokens",
    "PolicyError",
    "SamplingParams",
    "__version__",
    "load_policy",
]

_HOME = {
    "CacheView": "vtoken_sdk.policy",
    "Engine": "vtoken_sdk.runtime",
    "EngineConfig": "vtoken_sdk.runtime",
    "EvictionPolicy": "vtoken_sdk.policy",
    "LiveKV": "vtoken_sdk.policy",
    "NewTokens": "vtoken_sdk.policy",
    "PolicyError": "vtoken_sdk.policy",
    "SamplingParams": "vtoken_sdk.runtime",
    "load_policy": "vtoken_sdk.registry",
}


def __getattr__(name: str) -> object:
    """A public name, from the module that defines it. Raises AttributeError for any other name."""
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
