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
from .transfer import Sender


class PolicyRunner:
    """One policy over all rows of an engine.

    budget, seed: int64 [R + 1], set by `start`. bad: bool [R + 1], set on the device where an answer held NaN.
    state: name -> fp32 [R + 1, G, T]. G = 1: a group is the whole request. `learn` and `answer` may be captured in a graph.
    """

    groups = (1, 1)

    def __init__(self, policy: EvictionPolicy, model: ModelAdapter, cache: KVCache, table: TokenTable, send: Sender) -> None:
        self.policy, self.model, self.cache, self.table = policy, model, cache, table
        self.name = type(policy).__name__
        self.state: dict[str, Tensor] = {}
        self._numbers = torch.zeros(2, len(table.length), dtype=torch.int64, device=table.device)
        self.budget, self.seed = self._numbers
        self.budget.fill_(1)
        self.bad = torch.zeros_like(table.length, dtype=torch.bool)
        self._send = send
        self._ids = torch.arange(0, device=table.device)
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
        for numbers, number in ((self.budget, budget), (self.seed, seed), (self.bad, False)):
            numbers[row].fill_(number)
        for store in self.state.values():
            store[row].zero_()
        for name, value in (saved or {}).items():
            self._store(name)[row, :, : value.shape[-1]] = value

    def forget(self, rows: Sequence[int]) -> None:
        """These rows were given back."""
        for row in rows:
            self._future.pop(row, None)

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
        index = self._send(tuple(rows))

        def call(part: slice) -> None:
            self.learn(index[part], count[part], None if attention is None else attention[part], width, rows[part])

        return self._blame(call, rows)

    def evict(self, rows: Sequence[int], width: int) -> tuple[Tensor, dict[int, PolicyError]]:
        """Ask who dies: bool [B, width]. Rows that failed kill nothing and are named in the second result."""
        kill = torch.zeros(len(rows), width, dtype=torch.bool, device=self.table.device)
        index = self._send(tuple(rows))

        def call(part: slice) -> None:
            kill[part] = self.answer(index[part], width, rows[part])

        return kill, self._blame(call, rows)

    def learn(self, rows: Tensor, count: Tensor, attention: Tensor | None, width: int, on_host: Sequence[int] | None = None) -> None:
        """As `sync`, for rows int64 [B], which the host need not know; raises what the policy raises."""
        view = self._view(rows, width, on_host, writable=True)
        own = count.clone()  # a policy may write there; the runtime's is read by others
        self.policy.sync_new_tokens(view, NewTokens(own[:, None, None], None if attention is None else attention[:, None]))
        length = self.table.length[rows, None, None]  # not the view's: a policy may have written there
        known = self._positions(width) < length  # a new id starts from zero, whatever the policy wrote there
        for name, value in view.state.tensors.items():
            self._store(name)[rows, :, :width] = torch.where(known, value, 0.0)

    def answer(self, rows: Tensor, width: int, on_host: Sequence[int] | None = None) -> Tensor:
        """As `evict`, for rows int64 [B], which the host need not know; raises what the policy raises."""
        view = self._view(rows, width, on_host, writable=False)
        answer = self.policy.evict_token(view)
        self._check_answer(answer, view)
        newest = self.table.length[rows, None] - 1  # not the view's: a policy may have written there
        assert view._bad is not None
        self.bad[rows] |= view._bad
        return answer[:, 0] & (self._positions(width) != newest)

    def due(self, rows: Tensor, ran: Tensor) -> Tensor:
        """Of rows int64 [B] that ran (bool [B]), those over their budget whose answer was sound: bool [B]."""
        return ran & (self.table.n_live[rows] > self.budget[rows]) & ~self.bad[rows]

    def _check_answer(self, answer: object, view: CacheView) -> None:
        want = f"a bool tensor [B, G, T] = {list(view.live.shape)} on {view.live.device}"
        if not isinstance(answer, Tensor):
            raise PolicyError(f"evict_token returned {type(answer).__name__}; it must return {want}")
        if answer.dtype != torch.bool or answer.shape != view.live.shape or answer.device != view.live.device:
            got = f"{str(answer.dtype).removeprefix('torch.')} {list(answer.shape)} on {answer.device}"
            raise PolicyError(f"evict_token returned {got}; it must return {want}")

    def _blame(self, call: Callable[[slice], None], rows: Sequence[int]) -> dict[int, PolicyError]:
        """Run `call` over all rows; if it raises, over each row alone, so that only the guilty fail."""
        try:
            call(slice(None))
        except Exception as error:
            if len(rows) == 1:
                return {rows[0]: self._as_policy_error(error)}
        else:
            return {}
        failed: dict[int, PolicyError] = {}
        for i, row in enumerate(rows):
            try:
                call(slice(i, i + 1))
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

    def _positions(self, width: int) -> Tensor:
        """int64 [width]."""
        if len(self._ids) < width:
            self._ids = torch.arange(self.table.max_tokens, device=self.table.device)
        return self._ids[:width]

    def _view(self, rows: Tensor, width: int, on_host: Sequence[int] | None, *, writable: bool) -> CacheView:
        live = (self.table.slot[rows, :width] >= 0)[:, None]
        tensors = {name: self._store(name)[rows, :, :width] for name in self.state}
        budget, seed = self._numbers[:, rows, None, None]

        def known_rows(what: str) -> Sequence[int]:
            if on_host is None:
                raise PolicyError(
                    f"{what} looks up requests on the host, which no graph holds; use capture_policy=False, or no `capturable`"
                )
            return on_host

        def score(fn: Callable[[LiveKV], Tensor]) -> Tensor:
            known = known_rows("cache.score")
            counts = torch.stack((self.table.n_live[rows], self.table.length[rows]), 1).tolist()  # the one wait for all of them
            return torch.stack([self._score_row(row, n, length, fn, width) for row, (n, length) in zip(known, counts, strict=True)])

        return CacheView(
            live=live,
            length=self.table.length[rows, None, None],
            budget=budget,
            seed=seed,
            groups=self.groups,
            state=State(live.shape, live.device, tensors, writable=writable),
            _score=score,
            _future=self._future_of(rows, known_rows("cache.future"), width) if self.reads_future else None,
            _bad=torch.zeros(len(rows), dtype=torch.bool, device=live.device),
        )

    def _future_of(self, rows: Tensor, on_host: Sequence[int], width: int) -> Tensor:
        """fp32 [B, 1, width]: what the queries at positions >= length will give to each token."""
        made = torch.zeros(len(rows), 1, width, device=self.table.device)
        for out, row in zip(made[:, 0], on_host, strict=True):
            lengths, coming = self._future[row]
            n = min(width, coming.shape[1])
            step = torch.searchsorted(lengths, self.table.length[row], right=True)
            out[:n] = coming.index_select(0, step[None])[0, :n]  # an index of its own would be read on the host
        return made

    def _score_row(self, row: int, n: int, length: int, fn: Callable[[LiveKV], Tensor], width: int) -> Tensor:
        """fp32 [G, width]. n: live tokens; length: appended ones. Keys and values are handed over packed."""
        cache, model = self.cache, self.model
        slots = self.table.map[row, :n].long()
        ids = self.table.tokens_at(row, slots).long()  # [N], ascending
        heads, total = model.kv_heads, torch.zeros(n, device=slots.device)
        for layer in range(model.layers):
            queries, query_positions = None, torch.arange(0, device=slots.device)
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
            if not isinstance(answer, Tensor) or answer.shape != (heads, n):
                got = list(answer.shape) if isinstance(answer, Tensor) else type(answer).__name__
                raise PolicyError(f"cache.score's function returned {got}; it must return [H, N] = {[heads, n]}")
            total += answer.float().sum(0)
        return torch.zeros(1, width, device=slots.device).index_copy_(1, ids, (total / (model.layers * heads))[None])
