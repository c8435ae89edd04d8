"""Runs a policy over recorded queries and keys, without an engine, and checks its side of the contract at every call."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial

import torch
from torch import Tensor

from vtoken_sdk.policies.full import Full
from vtoken_sdk.policy import CacheView, EvictionPolicy, LiveKV, NewTokens, State

Log = list[tuple[int, list[list[int]]]]  # (length, the dead ids of each group), one entry an eviction


@dataclass
class Request:
    """What one request's tokens look like to the model: all N that it will have, after RoPE.

    queries: [L, H, R, N, D]; keys, values: [L, H, N, D]. The first `prompt` are prefilled, the others decoded one by one. scale: of
    the logits.
    """

    queries: Tensor
    keys: Tensor
    values: Tensor
    prompt: int
    budget: int
    seed: int = 0
    scale: float = 1.0

    @classmethod
    def of_logits(cls, logits: Tensor, prompt: int, budget: int, seed: int = 0) -> Request:
        """logits: [L, H, R, N, N], query by key. One-hot keys, so that a query is its row of logits."""
        n = logits.shape[-1]
        keys = torch.eye(n).expand(*logits.shape[:2], n, n)
        return cls(logits, keys, keys, prompt, budget, seed)

    @classmethod
    def random(cls, seed: int, prompt: int, total: int, budget: int, layers: int = 2, heads: int = 2, per_head: int = 2) -> Request:
        """Independent normal queries, keys and values, fp32, of head size 8."""
        g = torch.Generator().manual_seed(seed)
        queries = torch.randn(layers, heads, per_head, total, 8, generator=g)
        keys, values = (torch.randn(layers, heads, total, 8, generator=g) for _ in range(2))
        return cls(queries, keys, values, prompt, budget, seed, scale=8**-0.5)

    def to(self, dtype: torch.dtype) -> Request:
        return replace(self, queries=self.queries.to(dtype), keys=self.keys.to(dtype), values=self.values.to(dtype))

    @property
    def total(self) -> int:
        return self.queries.shape[3]


@dataclass
class Driver:
    """Some requests at once. granularity: "token" (one group), "layer" (L) or "head" (L * H). bucket: T is a multiple of it."""

    policy: EvictionPolicy
    requests: list[Request]
    granularity: str = "token"
    chunk: int = 1_000_000
    prefill: str = "end"
    every: int = 1
    bucket: int = 1
    kept: list[Tensor] = field(default_factory=list)  # live tokens [B, G] after each call of evict_token

    def run(self) -> list[Log]:
        """The evictions of each request. Raises AssertionError where the policy breaks the contract."""
        first = self.requests[0].queries
        self.layers, self.heads = first.shape[:2]
        self.groups = {"token": (1, 1), "layer": (self.layers, 1), "head": (self.layers, self.heads)}[self.granularity]
        n_rows, n_groups = len(self.requests), self.groups[0] * self.groups[1]
        width = -(-max(r.total for r in self.requests) // self.bucket) * self.bucket
        self.live = torch.zeros(n_rows, n_groups, width, dtype=torch.bool)
        self.length = torch.zeros(n_rows, dtype=torch.long)
        self.due = torch.zeros(n_rows, dtype=torch.bool)
        states: dict[str, Tensor] = {}
        logs: list[Log] = [[] for _ in self.requests]
        while counts := self._counts():
            attention = self._attention(counts)
            for b, n in enumerate(counts):
                self.live[b, :, self.length[b] : self.length[b] + n] = True
                self.length[b] += n
            t = -(-int(self.length.max()) // self.bucket) * self.bucket
            self._learn(counts, attention[..., :t], states, t)
            self._ask(counts, states, t, logs)
        return logs

    def _counts(self) -> list[int]:
        """Tokens that each request runs in this step; empty when all are done."""
        counts = []
        for b, r in enumerate(self.requests):
            at = int(self.length[b])
            counts.append(min(self.chunk, r.prompt - at) if at < r.prompt else min(1, r.total - at))
        return counts if any(counts) else []

    def _view(self, t: int, states: dict[str, Tensor], *, writable: bool) -> CacheView:
        def column(values: list[int]) -> Tensor:
            return torch.tensor(values)[:, None, None]

        state = State(self.live[..., :t].shape, self.live.device, states, writable=writable)
        budgets, seeds = column([r.budget for r in self.requests]), column([r.seed for r in self.requests])
        live, length = self.live[..., :t].clone(), self.length[:, None, None].clone()
        future = self._future(t) if "future" in self.policy.needs else None
        return CacheView(live, length, budgets, seeds, self.groups, state, self._score, future)

    def _learn(self, counts: list[int], attention: Tensor, states: dict[str, Tensor], t: int) -> None:
        tensors = {name: value[..., :t].clone() for name, value in states.items()}
        new = NewTokens(torch.tensor(counts)[:, None, None], attention if "attention" in self.policy.needs else None)
        cache = self._view(t, tensors, writable=True)
        self.policy.sync_new_tokens(cache, new)
        for name, value in cache.state.items():
            states.setdefault(name, torch.zeros(self.live.shape))[..., :t] = value

    def _ask(self, counts: list[int], states: dict[str, Tensor], t: int, logs: list[Log]) -> None:
        for b, r in enumerate(self.requests):
            at = int(self.length[b])
            when = {True: self.prefill == "chunk", False: self.every > 0 and (at - r.prompt) % self.every == 0}[at < r.prompt]
            over = int(self.live[b].sum()) > r.budget * self.live.shape[1]
            self.due[b] = counts[b] > 0 and (when if at != r.prompt else self.prefill != "never") and over
        if not self.due.any():
            return
        tensors = {name: value[..., :t].clone() for name, value in states.items()}
        cache = self._view(t, tensors, writable=False)
        kill = self.policy.evict_token(cache)
        assert kill.shape == cache.live.shape
        assert kill.dtype == torch.bool
        again = self.policy.evict_token(self._view(t, {n: v[..., :t].clone() for n, v in states.items()}, writable=False))
        assert torch.equal(kill, again), "evict_token is not a pure function of the cache"
        assert torch.equal(cache.live, self.live[..., :t]), "the policy changed its input"
        assert all(torch.equal(v, states[n][..., :t]) for n, v in tensors.items()), "the policy changed its state in evict_token"
        for b in self.due.nonzero().flatten().tolist():
            dead = kill[b] & self.live[b, :, :t]
            assert not dead[:, int(self.length[b]) - 1].any(), "the newest token dies"
            self.live[b, :, :t] &= ~dead
            assert self.live[b].any(-1).all(), "a group is empty"
            within = int(self.live[b].sum()) <= self.requests[b].budget * len(dead)
            assert within or isinstance(self.policy, Full), "over the budget after an eviction"
            if dead.any():
                logs[b].append((int(self.length[b]), [g.nonzero().flatten().tolist() for g in dead]))
        self.kept.append(self.live.sum(-1))

    def _of_heads(self, b: int) -> Tensor:
        """bool [L, H, T]: what each head still sees of request b."""
        live = self.live[b].view(*self.groups, -1)
        return live.expand(self.layers, self.heads, -1)

    def _to_groups(self, x: Tensor) -> Tensor:
        """[L, H, T] -> [G, T]: the mean over the heads and layers of a group."""
        layers, heads = self.groups
        x = x.unflatten(0, (layers, self.layers // layers)).unflatten(2, (heads, self.heads // heads))
        return x.mean((1, 3)).flatten(0, 1)

    def _attention(self, counts: list[int]) -> Tensor:
        """fp32 [B, G, T]: the mass that this step's queries give, before its tokens are counted as live."""
        out = torch.zeros(self.live.shape)
        if "attention" not in self.policy.needs:
            return out
        for b, r in enumerate(self.requests):
            at, n = int(self.length[b]), counts[b]
            seen = self._of_heads(b)[..., : at + n].clone()
            seen[..., at:] = True
            if n:
                out[b, :, : at + n] = self._to_groups(mass(r, range(at, at + n), seen))
        return out

    def _future(self, t: int) -> Tensor:
        """fp32 [B, G, t]: as `CacheView.future`, of the run that evicts nothing."""
        out = torch.zeros(self.live.shape)
        for b, r in enumerate(self.requests):
            if (at := int(self.length[b])) < r.total:
                out[b, :, : r.total] = self._to_groups(mass(r, range(at, r.total), torch.ones(r.keys.shape[:3], dtype=torch.bool)))
        return out[..., :t]

    def _score(self, fn: object) -> Tensor:
        """As `CacheView.score` promises: layer by layer, live tokens packed, heads together where they hold equally many."""
        assert callable(fn)
        out = torch.zeros(self.live.shape[0], self.live.shape[1], -(-int(self.length.max()) // self.bucket) * self.bucket)
        window = getattr(self.policy, "window", 1)
        for b in self.due.nonzero().flatten().tolist():
            r, at = self.requests[b], int(self.length[b])
            w, heads = min(window, at), self._of_heads(b)[..., :at]
            scores = torch.zeros(self.layers, self.heads, out.shape[-1])
            for layer in range(self.layers):
                together = len(set(heads[layer].sum(-1).tolist())) == 1
                for part in [slice(None)] if together else [slice(h, h + 1) for h in range(self.heads)]:
                    live = heads[layer, part]
                    positions = torch.arange(at).expand_as(live)[live].view(len(live), -1)
                    keys, values = (x[layer, part, :at][live].view(*positions.shape, -1) for x in (r.keys, r.values))
                    queries = r.queries[layer, part, :, at - w : at]
                    kv = LiveKV(keys, values, positions, torch.arange(at - w, at), r.scale, partial(rotary, keys.shape[-1]), queries)
                    score = fn(kv)
                    assert score.shape == positions.shape
                    scores[layer, part, :at] = torch.zeros(live.shape).masked_scatter(live, score.float())
            out[b] = self._to_groups(scores)
        return out


def mass(r: Request, queries: range, seen: Tensor) -> Tensor:
    """fp32 [L, H, n]: what these queries give, summed, mean over R. seen: bool [L, H, n]; they see no later token than their own."""
    n, asked = seen.shape[-1], r.queries[..., queries.start : queries.stop, :]
    logits = torch.einsum("lhrqd,lhkd->lhrqk", asked.float(), r.keys[..., :n, :].float()) * r.scale
    causal = torch.arange(n) <= torch.tensor(queries)[:, None]
    return logits.masked_fill(~(seen[:, :, None, None] & causal), -torch.inf).softmax(-1).mean(2).sum(2)


def rotary(size: int, positions: Tensor) -> tuple[Tensor, Tensor]:
    """int64 [n] -> (cos, sin), each [n, size]: Llama's, of base 10,000."""
    angle = positions[:, None] * 10_000.0 ** (-torch.arange(0, size, 2) / size)
    return torch.cat((angle, angle), -1).cos(), torch.cat((angle, angle), -1).sin()
