"""A KV cache in memory that runs a policy as an engine would: the driver of the checks, and of nothing else."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor

from vtoken_sdk.policy import EvictionPolicy, LiveKV

from .caller import Around, PolicyCaller
from .factory import PolicyFactory, make_policy
from .outside import kept_draws
from .packed import packed
from .record import Answer, Record
from .requests import HEADS, LAYERS, Request, ordinary_requests
from .watched import WatchedCache, WatchedState, WatchedTokens

When = Callable[[int, int], bool]  # of a step and a request


def never(step: int, request: int) -> bool:
    return False


@dataclass
class MemoryCache:
    """A few requests of a tiny model: their attention, keys, values and queries are known beforehand, and dead tokens are masked.

    A step appends a chunk of prompt or one token to each request, lets the policy learn, asks it if that is due, and applies the
    answer, as the docstrings of `vtoken_sdk.policy` tell it. There are no slots and no blocks; nothing is shared with the engine.

    width: T of every call; None takes the length of the longest request in the call. per_head: a group for each layer and KV head,
    not one for all. chunk, prefill, every: how prompts are cut, and when the policy is asked, as the options of a run.
    idle: requests that run nothing in a step, though they are in the call (once they have a token). away: requests that are not in
    the call at all, as when preempted; they come back in the last row. garbage: what state holds for dead tokens; None leaves it.
    device: of all that the policy sees; on "meta", which has shapes and no values, the oldest die whatever is answered.
    twice: ask evict_token again and compare. around, entropy: see PolicyCaller.
    """

    policy: EvictionPolicy
    requests: Sequence[Request]
    width: int | None = None
    per_head: bool = False
    chunk: int = 128
    prefill: str = "end"
    every: int = 2
    idle: When = never
    away: When = never
    garbage: float | None = None
    device: str = "cpu"
    twice: bool = False
    around: Around = nullcontext
    entropy: int = 0

    def run(self) -> Record:
        """All requests to their end. Raises CheckFailed if the policy raises, or if what it answers is no answer."""
        self.groups = (LAYERS, HEADS) if self.per_head else (1, 1)
        self.n_groups = self.groups[0] * self.groups[1]
        self.live = [torch.zeros(self.n_groups, r.total, dtype=torch.bool) for r in self.requests]
        self.length = [0] * len(self.requests)
        self.state: list[dict[str, Tensor]] = [{} for _ in self.requests]
        self.record = Record([[] for _ in self.requests])
        self.caller = PolicyCaller(self.policy, self.record, self.around, self.entropy)
        with kept_draws():
            self._run()
        return self.record

    def _run(self) -> None:
        rows: list[int] = []  # which request is in which row
        step = 0
        while unfinished := [i for i, r in enumerate(self.requests) if self.length[i] < r.total]:
            here = {i for i in unfinished if not self.away(step, i)}
            rows = [i for i in rows if i in here]
            rows += sorted(here - set(rows))
            counts = [0 if self.length[i] and self.idle(step, i) else self._next_count(i) for i in rows]
            if any(counts):
                self._step(rows, counts)
            step += 1

    def _next_count(self, i: int) -> int:
        request, at = self.requests[i], self.length[i]
        return min(self.chunk, request.prompt - at) if at < request.prompt else 1

    def _step(self, rows: list[int], counts: list[int]) -> None:
        width = self.width or max(self.length[i] + n for i, n in zip(rows, counts, strict=True))
        mass = torch.zeros(len(rows), self.n_groups, width)
        for row, (i, n) in enumerate(zip(rows, counts, strict=True)):
            at = self.length[i]
            if n and "attention" in self.policy.needs:
                mass[row, :, : at + n] = self._to_groups(self.requests[i].attention(at, n, self._of_heads(i)))
            self.live[i][:, at : at + n] = True
            self.length[i] += n
        self._learn(rows, counts, mass, width)
        due = torch.tensor([bool(n) and self._is_due(i) for i, n in zip(rows, counts, strict=True)])
        if due.any():
            self._ask(rows, due, width)

    def _is_due(self, i: int) -> bool:
        request, at = self.requests[i], self.length[i]
        if int(self.live[i].sum()) <= request.budget * self.n_groups:
            return False
        if at < request.prompt:
            return self.prefill == "chunk"
        return self.prefill != "never" if at == request.prompt else self.every > 0 and (at - request.prompt) % self.every == 0

    def _learn(self, rows: list[int], counts: list[int], mass: Tensor, width: int) -> None:
        cache = self._view(rows, range(len(rows)), width, writable=True)
        attention = self.caller.hand("new.attention", mass.to(self.device)) if "attention" in self.policy.needs else None
        count = self.caller.hand("new.count", self._column(counts).to(self.device))
        self.caller.learn(cache, WatchedTokens(count, attention, self.record.reads))
        for name, value in cache.state.items():
            for row, i in enumerate(rows):
                n = self.length[i]
                kept = self.state[i].setdefault(name, torch.zeros(self.live[i].shape))
                if not value.is_meta:
                    kept[:, :n] = value[row, :, :n]  # beyond n nothing is kept: a new token starts from zero
                    if bool(kept[self.live[i]].isnan().any()):
                        self.record.nan.append(f'cache.state["{name}"], in a request of length {n}')

    def _ask(self, rows: list[int], due: Tensor, width: int) -> None:
        length = self._column([self.length[i] for i in rows])
        budget = self._column([self.requests[i].budget for i in rows])
        live = self._stack([self.live[i] for i in rows], width)
        asked = []
        for _ in range(1 + self.twice):
            cache = self._view(rows, due.nonzero().flatten().tolist(), width, writable=False)
            asked.append(self.caller.ask(cache))
        if self.device == "meta":
            asked = [live & (torch.arange(width) < length - budget)]
        answer = Answer(tuple(rows), asked[0], live, due, length, budget)
        self.record.answers.append(answer)
        different = (asked[0] != asked[-1]).flatten(1).any(1)
        self.record.impure += [answer.told(row) for row in different.nonzero().flatten().tolist()]
        dead = answer.asked & live & due[:, None, None] & ~answer.newest
        for row, i in enumerate(rows):
            if dead[row].any():
                n = self.length[i]
                self.live[i][:, :n] &= ~dead[row, :, :n]
                self.record.deaths[i].append((self.length[i], [group.nonzero().flatten().tolist() for group in dead[row]]))

    def _view(self, rows: list[int], scored: Sequence[int], width: int, *, writable: bool) -> WatchedCache:
        """scored: the rows for which cache.score runs; it is 0 in the others."""
        lengths = [self.length[i] for i in rows]
        live = self._stack([self.live[i] for i in rows], width)
        names = dict.fromkeys(name for i in rows for name in self.state[i])
        states = {n: self._stack([self.state[i].get(n, torch.zeros(self.live[i].shape)) for i in rows], width) for n in names}
        if self.garbage is not None:
            dead = ~live & (torch.arange(width) < self._column(lengths))
            states = {name: value.masked_fill(dead, self.garbage) for name, value in states.items()}
        future = None
        if "future" in self.policy.needs:
            future = self._stack([self._to_groups(self.requests[i].future(self.length[i])) for i in rows], width)
        scored_ids = {row: self._live_ids(rows[row]) for row in scored}  # read here, where no mode forbids it
        shown = {
            "live": live,
            "length": self._column(lengths),
            "budget": self._column([self.requests[i].budget for i in rows]),
            "seed": self._column([self.requests[i].seed for i in rows]),
        }
        return WatchedCache(
            **{name: self.caller.hand(f"cache.{name}", value.to(self.device)) for name, value in shown.items()},
            groups=self.groups,
            state=WatchedState(live.shape, torch.device(self.device), {n: v.to(self.device) for n, v in states.items()}, writable=writable),
            _score=lambda fn: self._score(fn, rows, scored_ids, width),
            _future=None if future is None else self.caller.hand("cache.future", future.to(self.device)),
            _bad=torch.zeros(len(rows), dtype=torch.bool, device=self.device),
            _reads=self.record.reads,
        )

    def _score(self, fn: Callable[[LiveKV], Tensor], rows: list[int], ids: dict[int, list[list[list[int]]]], width: int) -> Tensor:
        """fp32 [B, G, T], 0 in rows that are not in `ids`."""
        window = getattr(self.policy, "window", 1) if "queries" in self.policy.needs else None
        out = torch.zeros(len(rows), LAYERS, HEADS, width, device=self.device)
        for row, live in ids.items():
            for part in packed(row, self.requests[rows[row]], live, self.length[rows[row]], window):
                kv = part.kv(torch.device(self.device), self.record.reads, self.caller.hand)
                answer = self.caller.checked_score(fn(kv), kv)
                out[row, part.layer, part.heads].scatter_(-1, kv.positions, answer.float())
        made = out.flatten(1, 2) if self.per_head else out.mean((1, 2))[:, None]
        self.caller.scores.append(made)
        return made.clone()

    def _live_ids(self, i: int) -> list[list[list[int]]]:
        """Of each layer and KV head of a request."""
        groups = [group.nonzero().flatten().tolist() for group in self.live[i]]
        if self.per_head:
            return [groups[layer * HEADS : (layer + 1) * HEADS] for layer in range(LAYERS)]
        return [groups * HEADS] * LAYERS

    def _of_heads(self, i: int) -> Tensor:
        """bool [L, H, N]: what each KV head still holds of a request."""
        return self.live[i].view(*self.groups, -1).expand(LAYERS, HEADS, -1)

    def _to_groups(self, x: Tensor) -> Tensor:
        """[L, H, n] -> [G, n]: the mean over the KV heads and layers of each group."""
        return x.flatten(0, 1) if self.per_head else x.mean((0, 1))[None]

    @staticmethod
    def _column(values: list[int]) -> Tensor:
        return torch.tensor(values)[:, None, None]

    @staticmethod
    def _stack(tensors: Sequence[Tensor], width: int) -> Tensor:
        """[G, N] of each row, N as it may be -> [B, G, width], 0 beyond."""
        out = tensors[0].new_zeros(len(tensors), tensors[0].shape[0], width)
        for row, tensor in zip(out, tensors, strict=True):
            n = min(width, tensor.shape[-1])
            row[:, :n] = tensor[:, :n]
        return out


@functools.lru_cache(maxsize=8)  # most checks look at the same run
def ordinary_run(make: PolicyFactory, width: int | None = None) -> Record:
    """A fresh policy over the ordinary requests. Raises CheckFailed as `run` does."""
    return MemoryCache(make_policy(make), ordinary_requests(), width).run()
