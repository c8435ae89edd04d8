"""The conformance kit of a policy: `vtoken-check` on the command line, `parametrize_with_checks` in a test.

Each check is a function of one argument, which makes a fresh policy; `MemoryCache` is what they run it in. The names below are imported
on first use, so that a command's help does not wait for torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .factory import PolicyFactory, factory_of
    from .faults import CheckFailed, CheckSkipped, CheckWarning
    from .kit import CHECKS, Result, run_check, run_checks
    from .memory_cache import MemoryCache
    from .modes import no_host_reads
    from .parametrize import parametrize_with_checks

_HOME = {
    "CHECKS": "kit",
    "CheckFailed": "faults",
    "CheckSkipped": "faults",
    "CheckWarning": "faults",
    "MemoryCache": "memory_cache",
    "PolicyFactory": "factory",
    "Result": "kit",
    "factory_of": "factory",
    "no_host_reads": "modes",
    "parametrize_with_checks": "parametrize",
    "run_check": "kit",
    "run_checks": "kit",
}

__all__ = [
    "CHECKS",
    "CheckFailed",
    "CheckSkipped",
    "CheckWarning",
    "MemoryCache",
    "PolicyFactory",
    "Result",
    "factory_of",
    "no_host_reads",
    "parametrize_with_checks",
    "run_check",
    "run_checks",
]


def __getattr__(name: str) -> object:
    """A public name, from the module that defines it. Raises AttributeError for any other name."""
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
