"""What goes into an engine and what comes out, for one request."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from typing import Literal

from torch import Tensor

from .config import ConfigError
from .recording import Recording

FinishReason = Literal["stop", "length", "capacity", "abort", "error"]
LARGEST = sys.float_info.max
MAX_SEED = 2**63 - 1  # of a request; it travels in an int64


class RequestRejected(ValueError):
    """The request can never run here: too long for the model or the pool, empty, or with ids outside the vocabulary.

    The message names the field, what was needed, what there is, and the mend. Nothing was changed in the engine.
    """


@dataclass(frozen=True)
class SamplingParams:
    """How tokens are chosen and when to stop.

    temperature 0 is greedy. top_k 0 and top_p 1 switch the filters off. seed: the request's own; None takes one from the
    engine's seed and the request's number. stop_token_ids are added to the model's own end tokens; ignore_eos drops the latter.
    stop: strings, with a tokenizer given to the engine. forced: token ids fed back instead of the sampled ones (teacher forcing);
    they also set max_tokens. logits: keep the logits of every sampled position, fp32 [n, vocabulary]. record: keep what a policy can
    learn of every step. future: the same of a full-cache run with these tokens, for a policy that needs it; `look_ahead` makes it.
    """

    max_tokens: int = 16
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int | None = None
    stop_token_ids: tuple[int, ...] = ()
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False
    forced: tuple[int, ...] | None = None
    logits: bool = False
    record: bool = False
    future: Recording | None = None

    @property
    def draws(self) -> bool:
        """Is the next token drawn, rather than the likeliest taken?"""
        return self.temperature > 0 and self.top_k != 1

    def __post_init__(self) -> None:
        for name in ("forced", "stop_token_ids", "stop"):
            value = getattr(self, name)
            if isinstance(value, list):
                object.__setattr__(self, name, tuple(value))
            elif not isinstance(value, tuple) and not (name == "forced" and value is None):
                raise ConfigError(f"{name}={value!r}: use a tuple")
        for name in ("ignore_eos", "logits", "record"):
            if not isinstance(getattr(self, name), bool):
                raise ConfigError(f"{name}={getattr(self, name)!r}: use True or False")
        if self.forced is not None:
            if not self.forced:
                raise ConfigError("forced=(): give at least one token id, or None")
            object.__setattr__(self, "max_tokens", len(self.forced))
        if not _is_whole(self.max_tokens) or self.max_tokens < 1:
            raise ConfigError(f"max_tokens={self.max_tokens!r}: use a whole number >= 1")
        if not _is_number(self.temperature) or not self.temperature >= 0:
            raise ConfigError(f"temperature={self.temperature!r}: use a number >= 0 (0 is greedy)")
        if not _is_whole(self.top_k) or self.top_k < 0:
            raise ConfigError(f"top_k={self.top_k!r}: use a whole number >= 0 (0 is off)")
        if not _is_number(self.top_p) or not 0 < self.top_p <= 1:
            raise ConfigError(f"top_p={self.top_p!r}: use 0 < x <= 1 (1 is off)")
        if self.seed is not None and not (_is_whole(self.seed) and 0 <= self.seed <= MAX_SEED):
            raise ConfigError(f"seed={self.seed!r}: use a whole number from 0 to {MAX_SEED}, or None")
        if not all(isinstance(s, str) and s for s in self.stop):
            raise ConfigError(f"stop={self.stop!r}: use a tuple of strings, none of them empty")


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and -LARGEST <= value <= LARGEST


@dataclass(frozen=True)
class Eviction:
    """One row of a request's eviction log: queries at positions >= `length` no longer see the tokens `ids`."""

    length: int
    ids: tuple[int, ...]


@dataclass
class RequestOutput:
    """The result of one request.

    token_ids: generated ids, the end token included. finish_reason: "stop" (end token or stop string), "length",
    "capacity" (the pool is full and nothing is left to preempt; the tokens so far are here), "abort", "error" (`error` says why).
    Times are host seconds since the engine's first step: arrival, and one for each token when the host learned it.
    evictions: the log that a masked dense forward needs. logits: fp32 [len(token_ids), vocabulary] and recording: where asked for.
    """

    request_id: str
    prompt_tokens: int
    token_ids: list[int] = field(default_factory=list)
    text: str | None = None
    finish_reason: FinishReason | None = None
    error: str | None = None
    arrival_s: float = 0.0
    token_times_s: list[float] = field(default_factory=list)
    preemptions: int = 0
    prefix_hit_tokens: int = 0
    evictions: list[Eviction] = field(default_factory=list)
    logits: Tensor | None = None
    recording: Recording | None = None
