"""Triton kernels of the runtime. Each has a twin in plain PyTorch, which is the CPU path and the truth in tests.

The modules are imported only where kernels run: Triton exists on Linux alone, and reads TRITON_INTERPRET when it is imported.
"""

from __future__ import annotations

import os

import torch

from ..config import ConfigError, Kernels


def use_kernels(wanted: Kernels, device: torch.device) -> bool:
    """Do kernels run on this device? Raises ConfigError where they are asked for and cannot."""
    if wanted == "triton" and device.type != "cuda" and os.environ.get("TRITON_INTERPRET") != "1":
        raise ConfigError("kernels=triton: the model is on the CPU; use kernels=auto, or set TRITON_INTERPRET=1 to interpret them (slow)")
    return wanted == "triton" or (wanted == "auto" and device.type == "cuda")


def capability(device: torch.device) -> tuple[int, int] | None:
    """(9, 0) for an H100 or H200; None where kernels are interpreted."""
    return torch.cuda.get_device_capability(device) if device.type == "cuda" else None
