"""Calls a policy: builds its view of the cache, keeps its state, checks its answers, and finds whose fault an error is."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from vtoken_sdk.policy import CacheView, EvictionPolicy, LiveKV, NewTokens, PolicyError, State

from .kv_cache import KVCache
from .model_adapter import ModelAdapter
from .recording import Recording
from .token_table import TokenTable
from .transfer import to_device


class PolicyRunner:
    """One policy over all rows of an engine.

    budget, seed: int64 [R + 1], set by `start`. bad: bool [R + 1], set on the device where an answer held NaN.
    state: name -> fp32 [R + 1, G, T]. G = 1: a group is the whole request.
    """

    groups = (1, 1)

    def __init__(self, policy: EvictionPolicy, model: ModelAdapter, cache: KVCache, table: TokenTable) -> None:
        self.policy, self.model, self.cache, self.table = policy, model, cache, table
        self.name = type(policy).__name__
        self.state: dict[str, Tensor] = {}
        self.budget = torch.ones_like(table.length)
        self.seed = torch.zeros_like(table.length)
        self.bad = torch.zeros_like(table.length, dtype=torch.bool)
        self.learns = type(policy).sync_new_tokens is not EvictionPolicy.sync_new_tokens
        self.reads_attention = "attention" in policy.needs
        self.window: int = getattr(policy, "window", 0) if "queries" in policy.needs else 0
        self.reads_future = "future" in policy.needs
        self._future: dict[int, tuple[Tensor, Tensor]] = {}  # by row: lengths int64 [S], what is still to come fp32 [S + 1, tokens]
        if self.window < (1 if "queries" in policy.needs else 0):
            raise PolicyError(f"window={self.window}: a policy that reads queries needs a window of at least 1", policy=self.name)
        if self.window:
            cache.keep_queries(table.rows, model.query_heads, self.window)

    # -- a request's life -----------------------------------------------------------------------------------------------

    def start(self, row: int, budget: int, seed: int, saved: dict[str, Tensor] | None, future: Recording | None = None) -> None:
        """A request takes this row; `saved` is what `save` gave when it was preempted."""
        if future is not None:
            device = self.table.device
            self._future[row] = future.lengths.to(device), future.still_to_come().to(device)
        self.budget[row], self.seed[row], self.bad[row] = budget, seed, False
        for store in self.state.values():
            store[row] = 0
        for name, value in (saved or {}).items():
            self._store(name)[row, :, : value.shape[-1]] = value

    def save(self, row: int, tokens: int) -> dict[str, Tensor]:
        """The row's state, fp32 [G, tokens] each: preemption is invisible to a policy."""
        return {name: store[row, :, :tokens].clone() for name, store in self.state.items()}

    def _store(self, name: str) -> Tensor:
        old = self.state.get(name)
        if old is None or old.shape[-1] < self.table.max_tokens:
            new = torch.zeros(self.table.rows + 1, 1, self.table.max_tokens, device=self.table.device)
            if old is not None:
                new[..., : old.shape[-1]] = old
            self.state[name] = new
        return self.state[name]

    # -- calls ----------------------------------------------------------------------------------------------------------

    def sync(self, rows: Sequence[int], count: Tensor, attention: Tensor | None, width: int) -> dict[int, PolicyError]:
        """Let the policy learn from a step. count: int64 [B]; attention: fp32 [B, width]. Returns the rows that failed."""

        def call(index: Tensor) -> None:
            view = self._view(index_rows[index], width, writable=True)
            mass = None if attention is None else attention[index][:, None]
            self.policy.sync_new_tokens(view, NewTokens(count[index][:, None, None], mass))
            length = self.table.length[index_rows[index], None, None]  # not the view's: a policy may have written there
            known = torch.arange(width, device=length.device) < length  # a new id starts from zero, whatever the policy wrote there
            for name, value in view.state.tensors.items():
                self._store(name)[index_rows[index], :, :width] = value.masked_fill(~known, 0)

        index_rows = to_device(rows, self.table.device)
        return self._blame(call, rows)

    def evict(self, rows: Sequence[int], width: int) -> tuple[Tensor, dict[int, PolicyError]]:
        """Ask who dies: bool [B, width]. Rows that failed kill nothing and are named in the second result."""
        kill = torch.zeros(len(rows), width, dtype=torch.bool, device=self.table.device)
        index_rows = to_device(rows, self.table.device)

        def call(index: Tensor) -> None:
            view = self._view(index_rows[index], width, writable=False)
            answer = self.policy.evict_token(view)
            self._check_answer(answer, view)
            newest = self.table.length[index_rows[index], None] - 1  # not the view's: a policy may have written there
            kill[index] = answer[:, 0] & (torch.arange(width, device=newest.device) != newest)
            assert view._bad is not None
            self.bad[index_rows[index]] |= view._bad

        return kill, self._blame(call, rows)

    def _check_answer(self, answer: object, view: CacheView) -> None:
        want = f"a bool tensor [B, G, T] = {list(view.live.shape)} on {view.live.device}"
        if not isinstance(answer, Tensor):
            raise PolicyError(f"evict_token returned {type(answer).__name__}; it must return {want}")
        if answer.dtype != torch.bool or answer.shape != view.live.shape or answer.device != view.live.device:
            got = f"{str(answer.dtype).removeprefix('torch.')} {list(answer.shape)} on {answer.device}"
            raise PolicyError(f"evict_token returned {got}; it must return {want}")

    def _blame(self, call: Callable[[Tensor], None], rows: Sequence[int]) -> dict[int, PolicyError]:
        """Run `call` over all rows; if it raises, over each row alone, so that only the guilty fail."""
        everyone = torch.arange(len(rows), device=self.table.device)
        try:
            call(everyone)
        except Exception as error:
            if len(rows) == 1:
                return {rows[0]: self._as_policy_error(error)}
        else:
            return {}
        failed: dict[int, PolicyError] = {}
        for i, row in enumerate(rows):
            try:
                call(everyone[i : i + 1])
            except Exception as error:
                failed[row] = self._as_policy_error(error)
        return failed

    def _as_policy_error(self, error: Exception) -> PolicyError:
        if isinstance(error, PolicyError):
            return error
        frames = traceback.extract_tb(error.__traceback__)
        own = [f for f in frames if "/vtoken_sdk/policy.py" not in f.filename and not f.filename.endswith("runtime/policy_runner.py")]
        where = f" ({own[-1].filename}:{own[-1].lineno}: {own[-1].line})" if own else ""
        made = PolicyError(f"{type(error).__name__}: {error}{where}")
        made.__cause__ = error
        return made

    # -- the view -------------------------------------------------------------------------------------------------------

    def _view(self, rows: Tensor, width: int, *, writable: bool) -> CacheView:
        live = (self.table.slot[rows, :width] >= 0)[:, None]
        tensors = {name: self._store(name)[rows, :, :width] for name in self.state}

        def column(x: Tensor) -> Tensor:
            return x[rows][:, None, None]

        def score(fn: Callable[[LiveKV], Tensor]) -> Tensor:
            return torch.stack([self._score_row(row, fn, width) for row in rows.tolist()])

        return CacheView(
            live=live,
            length=column(self.table.length),
            budget=column(self.budget),
            seed=column(self.seed),
            groups=self.groups,
            state=State(live.shape, live.device, tensors, writable=writable),
            _score=score,
            _future=self._future_of(rows, width) if self.reads_future else None,
            _bad=torch.zeros(len(rows), dtype=torch.bool, device=live.device),
        )

    def _future_of(self, rows: Tensor, width: int) -> Tensor:
        """fp32 [B, 1, width]: what the queries at positions >= length will give to each token."""
        made = torch.zeros(len(rows), 1, width, device=self.table.device)
        for out, row in zip(made[:, 0], rows.tolist(), strict=True):
            lengths, coming = self._future[row]
            n = min(width, coming.shape[1])
            step = torch.searchsorted(lengths, self.table.length[row], right=True)
            out[:n] = coming[step, :n]
        return made

    def _score_row(self, row: int, fn: Callable[[LiveKV], Tensor], width: int) -> Tensor:
        """fp32 [G, width]. Reads the row's live count on the host: keys and values are handed over packed."""
        cache, model = self.cache, self.model
        slot = self.table.slot[row, :width]
        ids = (slot >= 0).nonzero().flatten()  # [N]
        slots, heads = slot[ids].long(), model.kv_heads
        total, length = torch.zeros(len(ids), device=slot.device), int(self.table.length[row]) if self.window else 0
        for layer in range(model.layers):
            queries, query_positions = None, torch.arange(0, device=slot.device)
            if self.window:
                queries, query_positions = cache.last_queries(layer, row, length)
                queries = queries.unflatten(0, (heads, -1))  # [H, R, W, D]
            kv = LiveKV(
                keys=cache.keys[layer][slots].transpose(0, 1),
                values=cache.values[layer][slots].transpose(0, 1),
                positions=ids.expand(heads, -1),
                query_positions=query_positions,
                scale=model.scale,
                rotary=model.rotary,
                _queries=queries,
                _softcap=model.softcap,
                _sliding_window=model.windows[layer],
            )
            answer = fn(kv)
            if not isinstance(answer, Tensor) or answer.shape != (heads, len(ids)):
                got = list(answer.shape) if isinstance(answer, Tensor) else type(answer).__name__
                raise PolicyError(f"cache.score's function returned {got}; it must return [H, N] = {[heads, len(ids)]}")
            total += answer.float().sum(0)
        return torch.zeros(1, width, device=slot.device).index_copy_(1, ids, (total / (model.layers * heads))[None])
