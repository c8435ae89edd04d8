"""Checks of precision and devices."""

from __future__ import annotations

import dataclasses

import torch

from .factory import PolicyFactory, make_policy
from .faults import CheckFailed, CheckSkipped
from .memory_cache import MemoryCache, ordinary_run
from .modes import OneDevice, no_host_reads
from .record import expect_same
from .requests import Request, ordinary_requests


def check_bf16(make: PolicyFactory) -> None:
    """Decides in bf16 as in fp32.

    The numbers are the same, keys, values and queries rounded to bf16, and given once as bf16 and once as fp32.
    """
    if "score" not in ordinary_run(make).reads:
        raise CheckSkipped("it reads no keys, values or queries")
    low = [_cast(r, torch.bfloat16) for r in ordinary_requests()]
    same = [_cast(r, torch.float32) for r in low]
    # Head by head: a mean over heads and layers would hide most ties.
    expect_same(
        MemoryCache(make_policy(make), low, per_head=True).run(),
        MemoryCache(make_policy(make), same, per_head=True).run(),
        ": keys, values and queries were bf16 in the first, the same numbers in fp32 in the second. In bf16 most scores "
        "tie or are rounded to another order: begin with kv.keys.float(), likewise for values and queries.",
    )


def check_device(make: PolicyFactory) -> None:
    """Makes no tensor on another device.

    Tried on tensors without values, so that no GPU is needed.
    """
    try:
        MemoryCache(make_policy(make), ordinary_requests()[::4], device="meta", around=OneDevice).run()
    except CheckFailed as error:
        if isinstance(error.__cause__, NotImplementedError | RuntimeError) and "device" not in str(error.__cause__):
            raise CheckSkipped(f"could not be tried: {error.__cause__}") from error
        raise


def check_host_reads(make: PolicyFactory) -> None:
    """Never makes the host wait for the device.

    Found on a CPU too, by the operations that it runs.
    """
    MemoryCache(make_policy(make), ordinary_requests(), around=no_host_reads).run()


def _cast(r: Request, dtype: torch.dtype) -> Request:
    return dataclasses.replace(r, queries=r.queries.to(dtype), keys=r.keys.to(dtype), values=r.values.to(dtype))
