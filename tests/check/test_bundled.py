"""Every bundled policy keeps the contract, with its defaults."""

from __future__ import annotations

import warnings

from vtoken_sdk.check import parametrize_with_checks, run_check
from vtoken_sdk.check.engine import LENGTHS, NEW, TIGHT, _tokens, serve
from vtoken_sdk.check.parametrize import NamedCheck, Policy
from vtoken_sdk.policies.h2o import H2O
from vtoken_sdk.registry import GROUP, available_policies, load_policy_class

BUNDLED = [name for name, module in available_policies().items() if module == f"{GROUP}.{name}"]


@parametrize_with_checks([load_policy_class(name) for name in BUNDLED])
def test_contract(policy: Policy, check: NamedCheck) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check(policy)


def test_the_engine_of_the_check_does_preempt() -> None:
    prompts, forced = [_tokens(i, n) for i, n in enumerate(LENGTHS)], [_tokens(50 + i, NEW) for i in range(len(LENGTHS))]
    outputs = serve(H2O(), "naive", TIGHT, prompts, forced)
    assert sum(output.preemptions for output in outputs) > 0
    assert all(output.evictions for output in outputs)


def test_only_what_does_not_apply_is_skipped() -> None:
    results = {name: run_check("check_budget", load_policy_class(name)) for name in BUNDLED}
    skipped = {name: result.message for name, result in results.items() if result.status != "ok"}
    assert skipped == {"full": "its docstring says that it ignores the budget"}
