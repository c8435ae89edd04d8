"""parametrize_with_checks: which tests it makes, and how they end."""

from __future__ import annotations

import pytest

from vtoken_sdk.check import CHECKS, CheckWarning, parametrize_with_checks
from vtoken_sdk.check.parametrize import NamedCheck
from vtoken_sdk.policies.h2o import H2O
from vtoken_sdk.policies.streaming_llm import StreamingLLM
from vtoken_sdk.registry import RegistryError

from .test_zoo import DeclaresTooMuch
from .zoo.answers import NeverEvicts
from .zoo.declarations import NoDefault


def test_a_test_for_each_policy_and_check_with_a_name_to_read() -> None:
    mark = parametrize_with_checks([H2O(), H2O(recent=0.2), StreamingLLM, "random"])
    names, cases = mark.args
    assert names == ("policy", "check")
    ids = [case.id for case in cases]
    assert len(ids) == len(set(ids)) == 4 * len(CHECKS)
    for label in ("H2O", "H2O(recent=0.2)", "StreamingLLM", "Random"):
        assert f"{label}-check_budget" in ids


def test_options_of_an_instance_are_kept() -> None:
    with pytest.raises(pytest.fail.Exception, match=r"recent=0\.5"):
        NamedCheck("check_protected")(Forgetful(recent=0.5))
    NamedCheck("check_protected")(Forgetful(recent=0.0))


class Forgetful(H2O):
    def evict_token(self, cache):  # type: ignore[no-untyped-def]  # as a user writes it
        return cache.evict_lowest(cache.state["mass"])


def test_a_check_passes_skips_fails_and_warns() -> None:
    NamedCheck("check_budget")(H2O())
    with pytest.raises(pytest.skip.Exception, match="reads no keys"):
        NamedCheck("check_bf16")(H2O())
    with pytest.raises(pytest.fail.Exception, match=r"^request 2 \(length 17, budget 6\): the answer names nobody"):
        NamedCheck("check_budget")(NeverEvicts)
    with pytest.warns(CheckWarning, match="declares attention"):
        NamedCheck("check_needs")(DeclaresTooMuch)


def test_what_is_no_policy_is_refused_when_tests_are_collected() -> None:
    with pytest.raises(TypeError, match=r"3 is no policy"):
        parametrize_with_checks([3])  # type: ignore[list-item]  # the mistake under test
    with pytest.raises(TypeError, match="takes a list of policies"):
        parametrize_with_checks("h2o")
    with pytest.raises(RegistryError, match="Did you mean h2o"):
        parametrize_with_checks(["h20"])


def test_a_class_that_cannot_be_made_fails_in_its_tests_not_at_collection() -> None:
    mark = parametrize_with_checks([NoDefault])
    assert mark.args[1][0].id == "NoDefault-check_options"
    with pytest.raises(pytest.fail.Exception, match="missing 1 required positional argument: 'size'"):
        NamedCheck("check_options")(NoDefault)
