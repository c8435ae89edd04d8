"""Every test leaves the process as it found it."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

import pytest
import torch

# Before anything imports Triton, which decides then: kernels are interpreted where there is no GPU.
if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The slow ones first: started last, one of them would run alone on one core."""
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)


@pytest.fixture(autouse=True)
def no_policies_left_behind() -> Iterator[None]:
    """A policy loaded by its path stays in sys.modules, and its folder on sys.path: right for a user, not for the next test."""
    path, modules = list(sys.path), set(sys.modules)
    yield
    sys.path[:] = path
    for name in set(sys.modules) - modules:
        if name.startswith("vtoken_policy_"):
            del sys.modules[name]
