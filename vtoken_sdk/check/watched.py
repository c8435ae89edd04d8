"""The policy interface with a record of what was read, and an error that says which rule was broken where."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NoReturn

from torch import Tensor

from vtoken_sdk.policy import CacheView, LiveKV, NewTokens, State

from .faults import CheckFailed

FIELD = " and a field `window: int = 32` beside it (how many of the last queries are read)"
READS = {
    "attention": ("new.attention", ""),
    "queries": ("kv.queries or kv.attention()", FIELD),
    "future": ("cache.future", " (reported as cheating: only runs whose text is known beforehand have it)"),
}


def _undeclared(need: str) -> NoReturn:
    what, more = READS[need]
    raise CheckFailed(
        f'{what} was read, but "{need}" is not in `needs`, so a runtime does not provide it. '
        f'Write `needs = frozenset({{"{need}"}})` in the class{more}.',
        cause="check_needs",
    )


@dataclass(frozen=True)
class WatchedTokens(NewTokens):
    _reads: set[str] = field(default_factory=set, repr=False)

    @property
    def attention(self) -> Tensor:
        self._reads.add("attention")
        if self._attention is None:
            _undeclared("attention")
        return self._attention


@dataclass(frozen=True)
class WatchedKV(LiveKV):
    _reads: set[str] = field(default_factory=set, repr=False)

    @property
    def queries(self) -> Tensor:
        self._reads.add("queries")
        if self._queries is None:
            _undeclared("queries")
        return self._queries


@dataclass(frozen=True)
class WatchedCache(CacheView):
    _reads: set[str] = field(default_factory=set, repr=False)

    @property
    def future(self) -> Tensor:
        self._reads.add("future")
        if self._future is None:
            _undeclared("future")
        return self._future

    def score(self, fn: Callable[[LiveKV], Tensor]) -> Tensor:
        self._reads.add("score")
        return super().score(fn)


class WatchedState(State):
    def __getitem__(self, name: str) -> Tensor:
        if name not in self.tensors and not self._writable:
            known = f"; it assigns {', '.join(self.tensors)}" if self.tensors else ""
            raise CheckFailed(
                f'cache.state["{name}"] was read in evict_token, but sync_new_tokens never assigned it{known}. So it is 0 for every token. '
                "Likely this name, or that of the method, is misspelled.",
                cause="check_state",
            )
        return super().__getitem__(name)

    def __setitem__(self, name: str, value: Tensor) -> None:
        if not self._writable:
            raise CheckFailed(
                f'cache.state["{name}"] was assigned in evict_token. State is learned in sync_new_tokens, which is called once a step; '
                "move the assignment there, or use a local variable.",
                cause="check_state",
            )
        super().__setitem__(name, value)
