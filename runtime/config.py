"""Options of an engine. Frozen; what follows from them is a property. Bad values raise ConfigError and name the key."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields
from typing import Literal, get_args

RuntimeName = Literal["native", "naive", "refill", "vtoken", "page1"]
Packing = Literal["fill", "fresh"]
StreamName = Literal["side", "main"]
PrefillEviction = Literal["chunk", "end", "never"]
Granularity = Literal["token", "layer", "head"]
Kernels = Literal["auto", "triton", "torch"]

RUNTIMES: tuple[str, ...] = get_args(RuntimeName)
BLOCK_SIZES = (1, 8, 16, 32, 64)
MAX_TOKENS = 2**31 - 1  # token ids are int32
PREFIX_UNIT = 16  # tokens hashed together, whatever the block size; a larger block is its own unit


class ConfigError(ValueError):
    """An option has an impossible value. The message names the key and the values that are allowed."""


def _check_choice(key: str, value: object, allowed: tuple[object, ...]) -> None:
    if value not in allowed or isinstance(value, bool):
        raise ConfigError(f"{key}={value!r}: use one of {', '.join(map(str, allowed))}")


def _check_int(key: str, value: object, low: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < low:
        raise ConfigError(f"{key}={value!r}: use a whole number >= {low}")


def _check_bool(key: str, value: object) -> None:
    if not isinstance(value, bool):
        raise ConfigError(f"{key}={value!r}: use true or false")


def check_budget(budget: object, key: str = "budget") -> float | int:
    """A budget is a ratio of the prompt (float, 0 < x <= 1) or tokens a group (int >= 1). Raises ConfigError."""
    if isinstance(budget, bool) or not isinstance(budget, int | float):
        raise ConfigError(f"{key}={budget!r}: use a ratio of the prompt (0 < x <= 1) or a whole number of tokens (>= 1)")
    if isinstance(budget, int) and budget < 1:
        raise ConfigError(f"{key}={budget!r}: a number of tokens is at least 1")
    if budget > MAX_TOKENS:
        raise ConfigError(f"{key}={budget!r}: more tokens than any request has; use at most {MAX_TOKENS}")
    if isinstance(budget, float) and not 0 < budget <= 1:
        raise ConfigError(f"{key}={budget!r}: a ratio of the prompt is above 0 and at most 1; for tokens write a whole number")
    return budget


@dataclass(frozen=True)
class EvictOptions:
    """When a policy is asked. Part of the run's record, because it changes the victims.

    prefill: after each "chunk", at the prompt's "end", or "never". every: decode steps between evictions, 0 = never.
    """

    prefill: PrefillEviction = "end"
    every: int = 16

    def __post_init__(self) -> None:
        _check_choice("evict.prefill", self.prefill, get_args(PrefillEviction))
        _check_int("evict.every", self.every, 0)


@dataclass(frozen=True)
class ReclaimOptions:
    """How dead tokens become free blocks under the `vtoken` runtime.

    packing: "fill" moves the live tokens of sparse blocks into dead slots of full ones; "fresh" packs them into new blocks.
    threshold: only blocks with at most this live fraction are emptied (0 < x <= 1). margin: free blocks that `fresh` leaves alone.
    slack: free private slots that packing leaves to each request. move_cap: tokens moved by one plan, over the whole batch.
    publish_after: steps between a plan and its publication. refill: new tokens may also take dead slots.
    stream: copies run beside the decoder ("side"), or between its steps ("main"), to see what the side stream gains.
    """

    packing: Packing = "fill"
    threshold: float = 1.0
    margin: int = 8
    slack: int = 0
    move_cap: int = 4096
    publish_after: int = 2
    refill: bool = False
    stream: StreamName = "side"

    def __post_init__(self) -> None:
        _check_choice("reclaim.stream", self.stream, get_args(StreamName))
        _check_choice("reclaim.packing", self.packing, get_args(Packing))
        ok = isinstance(self.threshold, int | float) and not isinstance(self.threshold, bool) and 0 < self.threshold <= 1
        if not ok:
            raise ConfigError(f"threshold={self.threshold!r}: the largest live fraction of a block to empty, 0 < x <= 1")
        _check_int("margin", self.margin, 0)
        _check_int("reclaim.slack", self.slack, 0)
        _check_int("reclaim.move_cap", self.move_cap, 1)
        _check_int("reclaim.publish_after", self.publish_after, 1)
        _check_bool("reclaim.refill", self.refill)


@dataclass(frozen=True)
class EngineConfig:
    """Everything that an engine needs besides the model and the policy.

    pool_blocks counts blocks of `block_size` tokens; `page1` turns the same memory into blocks of one token.
    chunk: prompt tokens a request prefills in one step. max_running: requests held at once.
    prefill_tokens: prompt tokens run in one step, over all requests and in whole chunks, one of them at least; None: as many as `chunk`.
    lag: steps that the host's knowledge is behind the device.
    poison: write NaN into every slot that dies or is freed (a debugging aid).
    kernels: "triton" (needs a GPU, or TRITON_INTERPRET=1 for a debugger's patience), "torch" (their plain twins), or "auto": by device.
    cuda_graphs: replay decode steps and reclaim as CUDA graphs, where kernels run them.
    capture_policy: replay the policy's calls as CUDA graphs too. None: where there are graphs and the policy is `capturable`; True: also
        where it does not say so. Each graph's first answer is compared with the policy's own. Graphs span the longest request so far.
    """

    runtime: RuntimeName = "vtoken"
    block_size: int = 16
    pool_blocks: int = 1024
    max_running: int = 64
    chunk: int = 2048
    prefill_tokens: int | None = None
    budget: float | int = 0.5
    granularity: Granularity = "token"
    evict: EvictOptions = field(default_factory=EvictOptions)
    reclaim: ReclaimOptions = field(default_factory=ReclaimOptions)
    prefix_cache: bool = False
    seed: int = 0
    lag: int = 2
    poison: bool = False
    kernels: Kernels = "auto"
    cuda_graphs: bool = True
    capture_policy: bool | None = None

    def __post_init__(self) -> None:
        _check_choice("kernels", self.kernels, get_args(Kernels))
        for key in ("cuda_graphs", "prefix_cache", "poison"):
            _check_bool(key, getattr(self, key))
        if self.capture_policy is not None:
            _check_bool("capture_policy", self.capture_policy)
        for key, kind in (("evict", EvictOptions), ("reclaim", ReclaimOptions)):
            if not isinstance(getattr(self, key), kind):
                raise ConfigError(f"{key}={getattr(self, key)!r}: use {kind.__name__}(...)")
        _check_choice("runtime", self.runtime, RUNTIMES)
        _check_choice("block_size", self.block_size, BLOCK_SIZES)
        if not isinstance(self.block_size, int):
            raise ConfigError(f"block_size={self.block_size!r}: use one of {BLOCK_SIZES}, as a whole number")
        for f in fields(self):
            if f.name in ("pool_blocks", "max_running", "chunk", "lag"):
                _check_int(f.name, getattr(self, f.name), 1)
        if self.prefill_tokens is not None:
            _check_int("prefill_tokens", self.prefill_tokens, 1)
        _check_int("seed", self.seed, 0)
        check_budget(self.budget)
        _check_choice("granularity", self.granularity, get_args(Granularity))
        if self.granularity != "token":
            raise ConfigError(f"granularity={self.granularity!r}: this release evicts per token only; use granularity=token")

    @property
    def slots_per_block(self) -> int:
        """Tokens a block as the pool sees it: 1 under `page1`."""
        return 1 if self.runtime == "page1" else self.block_size

    @property
    def step_tokens(self) -> int:
        """Prompt tokens of one step."""
        return self.chunk if self.prefill_tokens is None else self.prefill_tokens

    @property
    def n_blocks(self) -> int:
        """Blocks of the pool as the pool sees it: the same memory under every runtime."""
        return self.pool_blocks * self.block_size // self.slots_per_block

    @property
    def prefix_unit(self) -> int:
        """Tokens that the prefix cache hashes together; a multiple of the block."""
        return max(PREFIX_UNIT, self.slots_per_block)

    @property
    def refill(self) -> bool:
        """May a new token take the slot of a dead one?"""
        return self.runtime == "refill" or (self.runtime == "vtoken" and self.reclaim.refill)

    @property
    def compacts(self) -> bool:
        """Does a reclaimer move tokens?"""
        return self.runtime == "vtoken"

    def budget_of(self, prompt_tokens: int) -> int:
        """Tokens a group may keep, for a prompt of this length; never 0."""
        if isinstance(self.budget, int):
            return self.budget
        return max(1, math.ceil(self.budget * prompt_tokens))
