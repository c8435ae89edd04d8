"""Every test leaves the process as it found it."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def no_policies_left_behind() -> Iterator[None]:
    """A policy loaded by its path stays in sys.modules, and its folder on sys.path: right for a user, not for the next test."""
    path, modules = list(sys.path), set(sys.modules)
    yield
    sys.path[:] = path
    for name in set(sys.modules) - modules:
        if name.startswith("vtoken_policy_"):
            del sys.modules[name]
