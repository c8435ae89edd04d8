"""The kit on policies broken on purpose: each is caught by the right check, and by no other."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from torch import Tensor

from vtoken_sdk.check.kit import BY_NAME, Result, promise, run_check
from vtoken_sdk.policy import CacheView, EvictionPolicy

from .zoo import ZOO
from .zoo.answers import HalfWithoutEnd, Raises
from .zoo.batching import CountsByRow
from .zoo.declarations import UndeclaredAttention, WindowOfNothing
from .zoo.purity import DrawsFromItsGenerator, MisspellsItsState, RemembersOnItself

WITHOUT_ENGINE = [name for name in BY_NAME if name != "check_engine"]


def run_all(cls: type[EvictionPolicy]) -> dict[str, Result]:
    return {name: run_check(name, cls) for name in WITHOUT_ENGINE}


@pytest.mark.parametrize("cls", ZOO, ids=lambda cls: f"{ZOO[cls].removeprefix('check_')}-{cls.__name__}")
def test_the_right_check_catches_it(cls: type[EvictionPolicy]) -> None:
    results = run_all(cls)
    assert [name for name, result in results.items() if result.status == "FAILED"] == [ZOO[cls]]
    message = results[ZOO[cls]].message
    assert len(message) > 80, "what was seen, the likely mistake and the mend take more room"
    assert "0x" not in message or cls.__name__ == "HoldsAFunction"


def test_every_check_has_something_to_catch() -> None:
    assert set(ZOO.values()) == set(WITHOUT_ENGINE)
    assert all(10 < len(promise(name)) < 50 for name in BY_NAME)


def test_a_check_that_another_explains_is_skipped_and_says_so() -> None:
    raises = run_all(Raises)
    assert raises["check_batch"] == Result("check_batch", "skipped", "cannot be told while check_answer fails")
    assert run_all(UndeclaredAttention)["check_answer"].message == "cannot be told while check_needs fails"
    draws = run_all(DrawsFromItsGenerator)
    assert draws["check_batch"].message == "cannot be told while check_hidden_state fails"
    assert draws["check_newest"].status == "ok", "what can be told is told"


def test_a_message_shows_the_users_own_line_and_the_requests() -> None:
    message = run_check("check_answer", Raises).message
    assert message.startswith("evict_token raised ValueError: my own mistake (answers.py:")
    assert 'raise ValueError("my own mistake")' in message
    message = run_check("check_budget_of_one", HalfWithoutEnd).message
    assert message.startswith("request 1 (length 2, budget 1): the answer names nobody and leaves 2 live tokens a group.")
    message = run_check("check_hidden_state", RemembersOnItself).message
    assert message.startswith("self.mass was changed in sync_new_tokens.")


def test_what_no_engine_takes_is_told_by_the_check_of_needs() -> None:
    assert run_check("check_engine", WindowOfNothing).message == "cannot be told while check_needs fails"


def test_an_engine_with_preemption_shows_what_is_kept_by_row() -> None:
    assert run_check("check_engine", CountsByRow).message == "cannot be told while check_preemption fails"


@dataclass
class TrustsTheView(EvictionPolicy):
    """Knows the kit from the engine."""

    def evict_token(self, cache: CacheView) -> Tensor:
        if type(cache) is CacheView:
            raise LookupError("this is no test")
        return cache.evict_lowest(cache.positions)


def test_what_goes_wrong_in_the_engine_alone_is_the_engines_check() -> None:
    assert all(result.status != "FAILED" for result in run_all(TrustsTheView).values())
    result = run_check("check_engine", TrustsTheView)
    assert result.status == "FAILED"
    assert "LookupError: this is no test" in result.message


@dataclass
class SaysWhoStays(EvictionPolicy):
    """A mask of the survivors, where the answer is of the victims."""

    def evict_token(self, cache: CacheView) -> Tensor:
        return cache.live & ~cache.evict_lowest(cache.positions)


def test_an_answer_the_wrong_way_round_is_told() -> None:
    assert "Likely it says who stays, where it must say who dies." in run_check("check_budget", SaysWhoStays).message


def test_a_misspelled_state_is_told_with_what_is_there() -> None:
    message = run_check("check_state", MisspellsItsState).message
    assert message.startswith(
        'cache.state["mas"] was read in evict_token, but sync_new_tokens never assigned it; it assigns mass. So it is 0'
    )


@dataclass
class DeclaresTooMuch(EvictionPolicy):
    needs = frozenset({"attention"})

    def evict_token(self, cache: CacheView) -> Tensor:
        return cache.evict_lowest(cache.positions)


@dataclass
class Thrifty(EvictionPolicy):
    def evict_token(self, cache: CacheView) -> Tensor:
        over = cache.live.sum(-1, keepdim=True) > cache.budget
        return cache.evict_lowest(cache.positions, keep=cache.budget // 2) & over


@dataclass
class Bursts(EvictionPolicy):
    """Drops half of its budget in one BURST,
    below
    the budget."""

    def evict_token(self, cache: CacheView) -> Tensor:
        return cache.evict_lowest(cache.positions, keep=cache.budget // 2)


def test_a_need_that_is_never_read_is_a_warning() -> None:
    result = run_check("check_needs", DeclaresTooMuch)
    assert result.status == "ok"
    assert result.warnings == ("declares attention in `needs` and never reads it; providing it costs time in every step. Remove it there.",)


def test_a_budget_that_is_not_used_is_a_warning_unless_documented() -> None:
    result = run_check("check_budget", Thrifty)
    assert result.status == "ok"
    assert len(result.warnings) == 1
    assert "of its budget on average" in result.warnings[0]
    assert run_check("check_budget", Bursts) == Result("check_budget", "ok")
    assert run_check("check_within_budget", Bursts).status == "ok"


def test_a_policy_that_exits_does_not_pass() -> None:
    @dataclass
    class Exits(EvictionPolicy):
        def evict_token(self, cache: CacheView) -> Tensor:
            raise SystemExit(0)

    result = run_check("check_answer", Exits)
    assert (result.status, result.message.partition(" (")[0]) == ("FAILED", "evict_token raised SystemExit: 0")
