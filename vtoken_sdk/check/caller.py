"""Calls a policy and writes down what it did beside answering."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

import torch
from torch import Tensor

from vtoken_sdk.policy import EvictionPolicy, LiveKV

from .faults import CheckFailed, own_line
from .outside import fingerprint, seed_draws
from .record import Record
from .watched import WatchedCache, WatchedTokens

Around = Callable[[], AbstractContextManager[object]]


class PolicyCaller:
    """around: entered for each call. entropy: seeds the process-wide generators before each call."""

    def __init__(self, policy: EvictionPolicy, record: Record, around: Around, entropy: int) -> None:
        self.policy, self.record, self.around, self.entropy = policy, record, around, entropy
        self.cls = type(policy)
        self.before = fingerprint(policy)
        self.handed: list[tuple[str, Tensor, Tensor]] = []  # name, the tensor that the policy got, a copy
        self.scores: list[Tensor] = []  # what cache.score gave it

    def hand(self, name: str, tensor: Tensor) -> Tensor:
        """To be compared after the next call."""
        if not tensor.is_meta:
            self.handed.append((name, tensor, tensor.clone()))
        return tensor

    def learn(self, cache: WatchedCache, new: WatchedTokens) -> None:
        self._call("sync_new_tokens", cache, lambda: self.policy.sync_new_tokens(cache, new))

    def ask(self, cache: WatchedCache) -> Tensor:
        """The answer, bool [B, G, T]. Raises CheckFailed if it is anything else."""
        for name, value in cache.state.items():
            self.hand(f'cache.state["{name}"]', value)
        answer = self._call("evict_token", cache, lambda: self.policy.evict_token(cache))
        want = f"a bool tensor [B, G, T] = {list(cache.live.shape)} on {cache.live.device}, as cache.evict_lowest does"
        if not isinstance(answer, Tensor):
            raise CheckFailed(f"evict_token returned {type(answer).__name__}; return {want}.", cause="check_answer")
        if answer.dtype != torch.bool or answer.shape != cache.live.shape or answer.device != cache.live.device:
            got = f"{str(answer.dtype).removeprefix('torch.')} {list(answer.shape)} on {answer.device}"
            raise CheckFailed(f"evict_token returned {got}; return {want}.", cause="check_answer")
        return answer.clone()

    @staticmethod
    def checked_score(answer: object, kv: LiveKV) -> Tensor:
        """What the function given to cache.score returned, [H, N]. Raises CheckFailed if it is anything else."""
        want = list(kv.positions.shape)
        if isinstance(answer, Tensor) and list(answer.shape) == want:
            return answer
        got = list(answer.shape) if isinstance(answer, Tensor) else type(answer).__name__
        raise CheckFailed(
            f"the function given to cache.score returned {got}; return one score for each KV head and live token, [H, N] = {want}.",
            cause="check_answer",
        )

    def _call(self, name: str, cache: WatchedCache, act: Callable[[], object]) -> object:
        try:
            seed_draws(self.entropy)
            with self.around():
                result = act()
        except CheckFailed as error:
            raise CheckFailed(f"{error}{own_line(error, self.cls)}", cause=error.cause) from error
        except (Exception, SystemExit) as error:  # an exit would pass for success
            lengths = cache.length.flatten().tolist() if not cache.length.is_meta else []
            raise CheckFailed(
                f"{name} raised {type(error).__name__}: {error}{own_line(error, self.cls)}. "
                f"Called with {len(cache.live)} requests of lengths {lengths}; it must serve any length from 1 on.",
                cause="check_answer",
            ) from error
        self._look(name, cache)
        return result

    def _look(self, name: str, cache: WatchedCache) -> None:
        record, after = self.record, fingerprint(self.policy)
        keys = sorted(key for key in after.keys() | self.before.keys() if after.get(key) != self.before.get(key))
        record.hidden += [f"{key} was changed in {name}" for key in keys]
        self.before = after
        changed = [what for what, tensor, copy in self.handed if not torch.equal(tensor, copy)]
        self.handed.clear()
        record.changed += [f"{what} was changed in place in {name}" for what in changed if not what.startswith("cache.state")]
        record.stained += [f"{what} was changed in place in {name}" for what in changed if what.startswith("cache.state")]
        bad = cache._bad
        if bad is not None and not bad.is_meta:
            for scores in self.scores:
                bad |= scores.isnan().flatten(1).any(1)
            if bool(bad.any()):
                record.nan.append(f"a score, in requests of lengths {cache.length.flatten()[bad].tolist()}")
        self.scores.clear()
