"""What a policy's own code costs a step, on the machine at hand. No model runs, and no keys are read from a pool."""

from __future__ import annotations

import platform
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from vtoken_sdk.policy import CacheView, EvictionPolicy, LiveKV, NewTokens, State

from .factory import PolicyFactory, make_policy
from .memory_cache import ordinary_run

SECONDS, MOST = 2.0, 50  # a figure is the median of the calls that fit in so many seconds, at most; of one call if none fits


@dataclass(frozen=True)
class Shape:
    """requests x tokens, all live; layers, KV heads, query heads of each and head size where keys are read."""

    requests: int = 64
    tokens: int = 16_384
    layers: int = 0
    heads: int = 2
    query_heads: int = 2
    size: int = 64

    def __str__(self) -> str:
        plain = f"{self.requests} requests x {self.tokens:,} tokens"
        return f"{plain}, {self.layers} layers" if self.layers else plain


PLAIN, KEYS = Shape(), Shape(4, 4096, layers=2)


@dataclass(frozen=True)
class Cost:
    """Median milliseconds of `calls` calls of a method."""

    method: str
    ms: float
    calls: int
    shape: Shape


def bench(make: PolicyFactory, device: torch.device, plain: Shape = PLAIN, keys: Shape = KEYS) -> list[Cost]:
    """sync_new_tokens over one new token a request, evict_token down to half of the tokens. Raises CheckFailed if the policy is broken.

    A policy that calls cache.score is asked on the shape `keys`: its cost grows with requests and layers, each of which is a call.
    """
    scores = "score" in ordinary_run(make).reads
    policy = make_policy(make)
    costs = []
    if type(policy).sync_new_tokens is not EvictionPolicy.sync_new_tokens:
        cache, new = _cache(policy, plain, device), _new(policy, plain, device)
        costs.append(_cost("sync_new_tokens", lambda: policy.sync_new_tokens(cache, new), plain, device))
    shape = keys if scores else plain
    asked = _cache(policy, shape, device)
    policy.sync_new_tokens(asked, _new(policy, shape, device))
    asked.state._writable = False
    costs.append(_cost("evict_token", lambda: policy.evict_token(asked), shape, device))
    return costs


def device_name(device: torch.device) -> str:
    """For people."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    name = platform.processor() or platform.machine()
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        name = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), name)
    except OSError:  # not Linux
        pass
    threads = torch.get_num_threads()
    return f"{name}, {threads} thread{'s' if threads > 1 else ''}"


def _cost(method: str, act: Callable[[], object], shape: Shape, device: torch.device) -> Cost:
    def timed() -> float:
        began = time.perf_counter()
        act()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return (time.perf_counter() - began) * 1e3

    timed()  # the first call allocates
    spent = [timed()]
    while len(spent) < MOST and sum(spent) < SECONDS * 1e3:
        spent.append(timed())
    return Cost(method, statistics.median(spent), len(spent), shape)


def _new(policy: EvictionPolicy, shape: Shape, device: torch.device) -> NewTokens:
    attention = torch.rand(shape.requests, 1, shape.tokens, device=device).softmax(-1) if "attention" in policy.needs else None
    return NewTokens(torch.ones(shape.requests, 1, 1, dtype=torch.int64, device=device), attention)


def _cache(policy: EvictionPolicy, shape: Shape, device: torch.device) -> CacheView:
    live = torch.ones(shape.requests, 1, shape.tokens, dtype=torch.bool, device=device)

    def column(value: int) -> Tensor:
        return torch.full((shape.requests, 1, 1), value, dtype=torch.int64, device=device)

    dtype = torch.float32 if device.type == "cpu" else torch.bfloat16
    keys, values = torch.randn(2, shape.heads, shape.tokens, shape.size, dtype=dtype, device=device)
    window = min(getattr(policy, "window", 0), shape.tokens) if "queries" in policy.needs else 0
    queries = torch.randn(shape.heads, shape.query_heads, window, shape.size, dtype=dtype, device=device) if window else None
    ids = torch.arange(shape.tokens, device=device)

    def rotary(positions: Tensor) -> tuple[Tensor, Tensor]:
        angles = positions[:, None] * torch.logspace(0, -4, shape.size, device=device)
        return angles.cos(), angles.sin()

    def score(fn: Callable[[LiveKV], Tensor]) -> Tensor:
        kv = LiveKV(keys, values, ids.expand(shape.heads, -1), ids[shape.tokens - window :], shape.size**-0.5, rotary, queries)
        rows = [torch.stack([fn(kv).float().mean(0) for _ in range(shape.layers)]).mean(0) for _ in range(shape.requests)]
        return torch.stack(rows)[:, None]

    return CacheView(
        live=live,
        length=column(shape.tokens),
        budget=column(shape.tokens // 2),
        seed=column(7),
        groups=(1, 1),
        state=State(live.shape, live.device),
        _score=score,
        _future=torch.rand(live.shape, device=device) if "future" in policy.needs else None,
        _bad=torch.zeros(shape.requests, dtype=torch.bool, device=device),
    )
