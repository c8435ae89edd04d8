"""From the host to the device without waiting."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


def to_device(values: Sequence[Any], device: torch.device) -> Tensor:
    """Whole numbers, nested as they like, as int64 on the device: through pinned memory, ordered on the current stream."""
    return torch.tensor(values, dtype=torch.int64, pin_memory=device.type == "cuda").to(device, non_blocking=True)
