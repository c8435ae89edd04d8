"""The policy interface: what a KV-eviction policy reads, and what it may answer.

Axes: B = requests in the call, G = groups that evict alone (1 at token granularity), T = a bucket at least as long as every
request, H = KV heads, R = query heads a KV head, N = live tokens of one request, W = query window, D = head size.

A token's id, its position and its column in every tensor here are the same number. Slots and blocks never appear.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, MutableMapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal, get_args

import torch
from torch import Tensor

Need = Literal["attention", "queries", "future"]
MOST = 2**31 - 1  # tokens: ids are int32 in the runtime
NEEDS: frozenset[str] = frozenset(get_args(Need))


class PolicyError(RuntimeError):
    """A policy broke the contract. Names the policy, the request and the step where they are known."""

    def __init__(self, message: str, *, policy: str | None = None, request: str | None = None, step: int | None = None) -> None:
        where = [f"policy {policy}" if policy else "", f"request {request}" if request else "", f"step {step}" if step is not None else ""]
        prefix = ", ".join(w for w in where if w)
        super().__init__(f"{prefix}: {message}" if prefix else message)
        self.policy, self.request, self.step = policy, request, step


class EvictionPolicy(ABC):
    """Base class. A subclass is a dataclass whose fields are its options; it writes `evict_token` and, if it learns, `sync_new_tokens`.

    `needs` declares what vanishes with the step: "attention" (`NewTokens.attention`), "queries" (`LiveKV.queries`; the class must
    then have a field `window: int`), "future" (`CacheView.future`). Reading what was not declared raises `PolicyError`.

    `capturable = True` promises that both methods launch the same operations at every call, keep nothing but `cache.state`, and read no
    tensor's value on the host (`cache.score` does): on a GPU they are then replayed as CUDA graphs. It is not inherited.
    """

    needs: ClassVar[frozenset[Need]] = frozenset()
    capturable: ClassVar[bool] = False

    def __init_subclass__(cls, **kwargs: object) -> None:
        super().__init_subclass__(**kwargs)
        cls.capturable = vars(cls).get("capturable", False)
        if not isinstance(cls.capturable, bool):
            raise TypeError(f"{cls.__name__}.capturable is {cls.capturable!r}; write True or False")
        if "ClassVar" not in str(vars(cls).get("__annotations__", {}).get("capturable", "ClassVar")):
            raise TypeError(f"{cls.__name__}.capturable is of the class and no option; write `capturable = True`, without a type")
        if isinstance(cls.needs, str):
            raise TypeError(f'{cls.__name__}.needs is the string {cls.needs!r}; write needs = frozenset({{"{cls.needs}"}})')
        unknown = set(cls.needs) - NEEDS
        if unknown:
            raise TypeError(f"{cls.__name__}.needs has {sorted(unknown)}; allowed are {sorted(NEEDS)}")
        if cls.capturable and "future" in cls.needs:
            raise TypeError(f'{cls.__name__} is capturable and needs "future", which is looked up on the host; leave `capturable` out')
        annotated = any("window" in vars(c).get("__annotations__", {}) for c in cls.__mro__)
        if "queries" in cls.needs and not annotated:
            raise TypeError(
                f'{cls.__name__} needs "queries", so it must have a field `window: int` (how many of the last queries it reads)'
            )

    def sync_new_tokens(self, cache: CacheView, new: NewTokens) -> None:
        """Learn from the step just done. The only place that may assign `cache.state`. Default: nothing."""

    @abstractmethod
    def evict_token(self, cache: CacheView) -> Tensor:
        """Who dies now: bool [B, G, T]. A pure function of `cache`: the same answer if asked twice.

        The newest token never dies, whatever is answered; dead and unknown ids in the answer are ignored.
        """


@dataclass(frozen=True)
class NewTokens:
    """What the step just done appended and saw.

    count: int64 [B, 1, 1], tokens appended (= queries run); 0 for a request that did not run.
    """

    count: Tensor
    _attention: Tensor | None = field(default=None, repr=False)

    @property
    def attention(self) -> Tensor:
        """fp32 [B, G, T]: attention mass that token t received from these `count` queries.

        Causal softmax over the tokens live during the step, summed over queries, mean over the R query heads of a KV head, then
        over the KV heads and layers of the group. A row sums to `count`; exactly 0 for dead tokens and idle rows.
        Raises PolicyError unless "attention" is in `needs`.
        """
        if self._attention is None:
            raise PolicyError('new.attention was read but "attention" is not in the policy\'s `needs`; add it there')
        return self._attention


@dataclass(frozen=True)
class LiveKV:
    """One layer of one request: the H KV heads that hold the same N live tokens. No batch, no padding, no dead tokens.

    keys, values: [H, N, D], keys after RoPE, ascending position. positions: int64 [H, N], token ids.
    query_positions: int64 [W]. scale: the model's softmax scale. rotary: int64 [n] -> (cos, sin), each [n, D].
    """

    keys: Tensor
    values: Tensor
    positions: Tensor
    query_positions: Tensor
    scale: float
    rotary: Callable[[Tensor], tuple[Tensor, Tensor]]
    _queries: Tensor | None = field(default=None, repr=False)
    _softcap: float | None = field(default=None, repr=False)
    _sliding_window: int | None = field(default=None, repr=False)

    @property
    def queries(self) -> Tensor:
        """[H, R, W, D] after RoPE: the request's last W = min(window, length) queries, over chunk borders.

        Raises PolicyError unless "queries" is in `needs`.
        """
        if self._queries is None:
            raise PolicyError('kv.queries was read but "queries" is not in the policy\'s `needs`; add it there with a field `window: int`')
        return self._queries

    @property
    def key_norms(self) -> Tensor:
        """fp32 [H, N]: Euclidean norms of the keys, which RoPE does not change."""
        return self.keys.float().norm(dim=-1)

    def attention(self) -> Tensor:
        """fp32 [H, R, W, N]: softmax of the window's queries over the tokens live now, causal; not what they saw then.

        A query that sees no live token has a row of zeros.
        """
        logits = torch.einsum("hrwd,hnd->hrwn", self.queries.float(), self.keys.float()) * self.scale
        if self._softcap is not None:
            logits = torch.tanh(logits / self._softcap) * self._softcap
        distance = self.query_positions[:, None] - self.positions[:, None, None, :]  # [H, 1, W, N]
        hidden = distance < 0
        if self._sliding_window is not None:
            hidden = hidden | (distance >= self._sliding_window)
        return logits.masked_fill(hidden, -torch.inf).softmax(-1).masked_fill(hidden, 0.0)


class State(MutableMapping[str, Tensor]):
    """Per-token policy state: name -> fp32 [B, G, T]. Zeros on first use and for each new token; freed with the request.

    Assign in `sync_new_tokens` only (`cache.state["mass"] += x`). Columns of dead tokens are undefined.
    """

    def __init__(self, shape: torch.Size, device: torch.device, tensors: dict[str, Tensor] | None = None, *, writable: bool = True) -> None:
        self._shape, self._device, self._writable = shape, device, writable
        self.tensors: dict[str, Tensor] = {} if tensors is None else tensors

    def __getitem__(self, name: str) -> Tensor:
        if name not in self.tensors:
            if not self._writable:
                return torch.zeros(self._shape, device=self._device)
            self.tensors[name] = torch.zeros(self._shape, device=self._device)
        return self.tensors[name]

    def __setitem__(self, name: str, value: Tensor) -> None:
        if not self._writable:
            raise PolicyError(f'cache.state["{name}"] was assigned in evict_token; state is assigned in sync_new_tokens only')
        if not isinstance(value, Tensor):
            raise PolicyError(f'cache.state["{name}"] wants a tensor that broadcasts to {tuple(self._shape)}, not {type(value).__name__}')
        if value is self.tensors.get(name):  # `state["mass"] += x` has already added in place
            return
        try:
            self.tensors[name] = value.to(device=self._device, dtype=torch.float32).expand(self._shape).clone()
        except RuntimeError as error:
            raise PolicyError(f'cache.state["{name}"] wants shape {tuple(self._shape)} ([B, G, T]), not {tuple(value.shape)}') from error

    def __delitem__(self, name: str) -> None:
        raise PolicyError("state is freed by the runtime, with the request")

    def __iter__(self) -> Iterator[str]:
        return iter(self.tensors)

    def __len__(self) -> int:
        return len(self.tensors)


@dataclass(frozen=True)
class CacheView:
    """The cache as a policy sees it, right after a step.

    live:   bool  [B, G, T], the step's new tokens included
    length: int64 [B, 1, 1], ids 0 .. length - 1 were appended, dead ones included; the newest is length - 1
    budget: int64 [B, 1, 1], tokens a group may keep on average, >= 1, fixed at submission
    seed:   int64 [B, 1, 1], of the request: the same in any batch, order or preemption
    groups: (layers, heads) with G = layers * heads, layer-major: (1, 1) at token granularity
    state:  see `State`
    """

    live: Tensor
    length: Tensor
    budget: Tensor
    seed: Tensor
    groups: tuple[int, int]
    state: State
    _score: Callable[[Callable[[LiveKV], Tensor]], Tensor] | None = field(default=None, repr=False)
    _future: Tensor | None = field(default=None, repr=False)
    _bad: Tensor | None = field(default=None, repr=False)  # bool [B], set on the device where a score was NaN

    @property
    def positions(self) -> Tensor:
        """int64 [1, 1, T] = arange(T)."""
        return torch.arange(self.live.shape[-1], device=self.live.device)[None, None]

    @property
    def future(self) -> Tensor:
        """fp32 [B, G, T]: as `NewTokens.attention`, from the full-cache run's queries at positions >= length (cheating).

        Only in teacher-forced runs and replays. Raises PolicyError unless "future" is in `needs`.
        """
        if self._future is None:
            raise PolicyError('cache.future was read but "future" is not in the policy\'s `needs`; add it there')
        return self._future

    def score(self, fn: Callable[[LiveKV], Tensor]) -> Tensor:
        """fp32 [B, G, T]: `fn` maps a LiveKV to [H, N]; it runs for every layer of each request that is due.

        Results are scattered to token ids and reduced to the group by the mean over its KV heads and layers; 0 elsewhere.
        `fn` is pure and reads no tensor's value on the host. Raises PolicyError on a wrong shape.
        """
        if self._score is None:
            raise PolicyError("cache.score needs a runtime that holds keys and values; this view has none")
        return self._score(fn)

    def evict_lowest(self, score: Tensor, *, first: int = 0, last: int | Tensor = 0, keep: Tensor | None = None) -> Tensor:
        """In each group kill the lowest live scores until `keep` (default: the budget) live tokens are left: bool [B, G, T].

        score: broadcasts to [B, G, T], compared in fp32, +-inf allowed, NaN is a PolicyError. Ties: the lower id dies first.
        first, last: ids < first and ids >= length - last die only after all others (`last` may be an int tensor [B, 1, 1]).
            The newest never dies. If the protected alone exceed `keep`, the budget wins and the lower ids go.
        keep: int64, broadcasts to [B, G, 1]. Each group keeps at least 1; a sum over G above
            G * budget is scaled down to it (what is beyond 1 each, floor).
        """
        n_groups = self.live.shape[1]
        cap = self.budget * n_groups
        keep = (self.budget if keep is None else keep).clamp(1, MOST).expand(-1, n_groups, -1)
        total = keep.sum(1, keepdim=True)
        scaled = 1 + (keep - 1) * (cap - n_groups) // (total - n_groups).clamp(min=1)
        keep = torch.where(total > cap, scaled, keep)
        score = score.float().expand(self.live.shape)
        bad = (score.isnan() & self.live).flatten(1).any(-1)  # [B]
        if self._bad is not None:
            self._bad.logical_or_(bad)
        elif bool(bad.any()):
            raise PolicyError("evict_lowest was given a NaN score for a live token")
        protected = (self.positions < first) | (self.positions >= self.length - last)
        newest = self.positions == self.length - 1
        big = torch.finfo(torch.float32).max
        # Halved, finite scores leave room for the policy's own +inf, and above it for protected tokens; the dead rank below everything.
        score = (score * 0.5).nan_to_num(nan=0.0, posinf=big * 0.75, neginf=-big * 0.75)
        score = score.masked_fill(protected, big).masked_fill(newest, torch.inf).masked_fill(~self.live, -torch.inf)
        order = score.argsort(dim=-1, stable=True)
        rank = torch.empty_like(order).scatter_(-1, order, self.positions.expand_as(order).contiguous())
        n_live = self.live.sum(-1, keepdim=True)
        n_dead = self.live.shape[-1] - n_live
        return self.live & (rank < n_dead + (n_live - keep).clamp(min=0)) & ~newest
