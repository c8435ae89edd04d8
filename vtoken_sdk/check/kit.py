"""The conformance kit: all checks in the order in which their failures explain each other, and how one is run."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from . import answers, batching, declarations, engine, purity, tensors
from .factory import PolicyFactory
from .faults import CheckFailed, CheckSkipped, CheckWarning

Status = Literal["ok", "FAILED", "skipped"]
UNTOLD = "cannot be told while"  # begins the message of a check that another's failure explains

CHECKS: tuple[Callable[[PolicyFactory], None], ...] = (
    declarations.check_options,
    declarations.check_needs,
    answers.check_answer,
    answers.check_only_live,
    answers.check_newest,
    answers.check_protected,
    answers.check_budget,
    answers.check_budget_of_one,
    answers.check_within_budget,
    answers.check_nan,
    purity.check_inputs,
    purity.check_state,
    purity.check_hidden_state,
    purity.check_seed,
    purity.check_purity,
    purity.check_new_request,
    purity.check_copies,
    batching.check_batch,
    batching.check_padding,
    batching.check_preemption,
    batching.check_idle_rows,
    batching.check_dead_columns,
    answers.check_head_groups,
    tensors.check_bf16,
    tensors.check_device,
    tensors.check_host_reads,
    engine.check_engine,
)
BY_NAME = {check.__name__: check for check in CHECKS}

# A fault of the right side shows in the check on the left as well, so that while that one fails this one says nothing new.
_STRAY = ("check_hidden_state", "check_seed", "check_purity")  # answers that depend on more than the view
FOLLOWS: dict[str, tuple[str, ...]] = {
    "check_budget": ("check_only_live",),
    "check_budget_of_one": ("check_budget", "check_only_live"),
    "check_head_groups": ("check_budget", "check_newest", "check_only_live"),
    "check_seed": ("check_hidden_state",),
    "check_purity": ("check_hidden_state",),
    "check_new_request": _STRAY,
    "check_copies": _STRAY,
    "check_batch": (*_STRAY, "check_new_request"),
    "check_padding": (*_STRAY, "check_new_request", "check_batch"),
    "check_preemption": (*_STRAY, "check_new_request", "check_batch"),
    "check_idle_rows": (*_STRAY, "check_new_request", "check_batch", "check_preemption"),
    "check_dead_columns": (*_STRAY, "check_new_request"),
    "check_bf16": (*_STRAY, "check_inputs"),
    "check_engine": (
        *("check_needs", "check_answer", "check_nan", "check_inputs", "check_state"),
        *(*_STRAY, "check_new_request", "check_batch", "check_preemption", "check_idle_rows"),
    ),
}


@dataclass(frozen=True)
class Result:
    """How a check ended. message: of the failure or the reason to skip. warnings: what an author should know beside it."""

    name: str
    status: Status
    message: str = ""
    warnings: tuple[str, ...] = ()


def promise(name: str) -> str:
    """What a check holds a policy to, in a few words."""
    return (inspect.getdoc(BY_NAME[name]) or "").partition("\n")[0]


def run_check(name: str, make: PolicyFactory) -> Result:
    """Run one check. If it fails, and so does another check that explains it, it counts as skipped in favor of that one."""
    status: Status = "ok"
    message = ""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            BY_NAME[name](make)
        except CheckSkipped as reason:
            status, message = "skipped", str(reason)
        except CheckFailed as failure:
            status, message = "FAILED", str(failure)
            causes = [c for c in (failure.cause, *FOLLOWS.get(name, ())) if c not in (None, name)]
            if cause := next((c for c in causes if c is not None and _fails(c, make)), None):
                status, message = "skipped", f"{UNTOLD} {cause} fails"
    return Result(name, status, message, tuple(dict.fromkeys(str(w.message) for w in caught if w.category is CheckWarning)))


def run_checks(make: PolicyFactory) -> Iterator[Result]:
    """Every check in turn."""
    for name in BY_NAME:
        yield run_check(name, make)


def _fails(name: str, make: PolicyFactory) -> bool:
    try:
        BY_NAME[name](make)
    except CheckFailed:
        return True
    except CheckSkipped:
        pass
    return False
