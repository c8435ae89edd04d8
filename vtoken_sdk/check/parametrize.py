"""The kit in a user's test suite."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vtoken_sdk.policy import EvictionPolicy

from .factory import PolicyFactory, factory_of, label_of, make_policy
from .faults import CheckFailed, CheckWarning
from .kit import BY_NAME, run_check

if TYPE_CHECKING:
    import pytest

Policy = EvictionPolicy | type[EvictionPolicy] | str


@dataclass(frozen=True)
class NamedCheck:
    """A check as a test calls it: `check(policy)` passes, fails or skips the test.

    made: `policy` made by one factory, for all checks, so that what most of them look at is run once.
    """

    name: str
    policy: Policy | None = None
    made: PolicyFactory | None = None

    def __call__(self, policy: Policy) -> None:
        import pytest

        __tracebackhide__ = True
        make = self.made if self.made is not None and policy is self.policy else factory_of(policy)
        result = run_check(self.name, make)
        for message in result.warnings:
            warnings.warn(message, CheckWarning, stacklevel=2)
        if result.status == "skipped":
            pytest.skip(result.message)
        if result.status == "FAILED":
            pytest.fail(result.message, pytrace=False)


def parametrize_with_checks(policies: Iterable[Policy]) -> pytest.MarkDecorator:
    """One test for each policy and check. policies: instances, whose options are kept, or classes, or names as for `vtoken-check`.

        @parametrize_with_checks([Mine(), Mine(recent=0.5), "./other.py"])
        def test_contract(policy, check):
            check(policy)

    The tests are called Mine-check_budget, Mine(recent=0.5)-check_budget, and so on.
    """
    import pytest

    if isinstance(policies, str | type | EvictionPolicy):
        raise TypeError(f"parametrize_with_checks([...]) takes a list of policies, not {policies!r} alone")
    cases = []
    for policy in policies:
        make = factory_of(policy)
        cases += [pytest.param(policy, NamedCheck(name, policy, make), id=f"{_label(make, policy)}-{name}") for name in BY_NAME]
    return pytest.mark.parametrize(("policy", "check"), cases)


def _label(make: PolicyFactory, policy: Policy) -> str:
    try:
        return label_of(make_policy(make))
    except CheckFailed:  # the tests will say so
        return policy.__name__ if isinstance(policy, type) else str(policy)
