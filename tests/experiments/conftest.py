"""Sweeps are run as those of tests/sweep are."""

from tests.sweep.conftest import own_folder, vtoken_sweep

__all__ = ["own_folder", "vtoken_sweep"]
