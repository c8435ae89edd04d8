"""Checks of what evict_token answers: form, budget, and who is spared."""

from __future__ import annotations

import warnings

import torch

from .factory import PolicyFactory, make_policy
from .faults import CheckFailed, CheckSkipped, CheckWarning
from .memory_cache import MemoryCache, ordinary_run
from .record import Record
from .requests import make_request, ordinary_requests

LONGEST = 600  # tokens that a promise of sinks and recent tokens is tried with


def check_answer(make: PolicyFactory) -> None:
    """Answers any request, with a bool [B, G, T].

    From one token to 300, all rows at once; whatever the policy raises shows here.
    """
    ordinary_run(make)


def check_only_live(make: PolicyFactory) -> None:
    """Names live tokens only."""
    for answer in ordinary_run(make).answers:
        beyond = answer.asked & ~answer.live
        if beyond.any():
            row = int(beyond.flatten(1).any(1).nonzero()[0])
            raise CheckFailed(
                f"{answer.told(row)}: the answer names {int(beyond[row].sum())} tokens that are dead or do not exist. A runtime ignores "
                "them, but counts made from them (how many must go) are wrong. End with `& cache.live`, and count with cache.live.sum(-1)."
            )


def check_newest(make: PolicyFactory) -> None:
    """Never asks for the newest token."""
    for answer in ordinary_run(make).answers:
        wishes = (answer.asked & answer.newest).flatten(1).any(1) & answer.due
        if wishes.any():
            raise CheckFailed(
                f"{answer.told(int(wishes.nonzero()[0]))}: the answer names the newest token. It is refused, and the request stays over "
                "its budget. Likely its score is the lowest because nothing has attended to it yet: evict_lowest spares it; a choice of "
                "your own must leave out the id cache.length - 1."
            )


def check_budget(make: PolicyFactory) -> None:
    """Leaves no more tokens than the budget."""
    _check_budget(make, ordinary_run(make))


def check_budget_of_one(make: PolicyFactory) -> None:
    """Works with a budget of one token."""
    requests = [make_request(i, prompt, 7, 1) for i, prompt in enumerate((1, 2, 16, 40))]
    _check_budget(make, MemoryCache(make_policy(make), requests).run())


def check_head_groups(make: PolicyFactory) -> None:
    """Works with a group for each KV head.

    As later releases will ask: [B, G, T] with G = layers x heads, and the budget holds on average.
    """
    record = MemoryCache(make_policy(make), ordinary_requests(), per_head=True).run()
    for answer in record.answers:
        if bool(((answer.asked & answer.newest).flatten(1).any(1) & answer.due).any()):
            raise CheckFailed("a group loses its newest token. Treat the groups (axis 1) alike: no [:, 0], no sum over them.")
    _check_budget(make, record)


def check_within_budget(make: PolicyFactory) -> None:
    """Asks for nothing within the budget.

    Unless the docstring of the class tells of a burst: a runtime drops such answers.
    """
    for answer in ordinary_run(make).answers:
        within = answer.live.sum((1, 2)) <= answer.budget.flatten() * answer.live.shape[1]
        early = (answer.asked & answer.live & ~answer.newest).flatten(1).any(1) & within
        if early.any() and not _documented(make, "burst", "below the budget"):
            raise CheckFailed(
                f"{answer.told(int(early.nonzero()[0]))}: the answer names tokens though the request is within its budget. A runtime drops "
                "such an answer, so the policy is not what it says. Count from the live tokens, as evict_lowest does; if it keeps less on "
                'purpose, say "burst" or "below the budget" in the class\'s docstring.'
            )


def check_protected(make: PolicyFactory) -> None:
    """Keeps the `sinks` and `recent` that it promises.

    Tried where the budget has room for both. `recent` is a number of tokens, or as a float a share of the budget.
    """
    policy = make_policy(make)
    sinks, recent = getattr(policy, "sinks", 0), getattr(policy, "recent", 0)
    if not any(hasattr(policy, name) for name in ("sinks", "recent")):
        raise CheckSkipped("it has no field `sinks` or `recent`")
    if any(isinstance(x, bool) or not isinstance(x, int | float) for x in (sinks, recent)) or isinstance(sinks, float):
        raise CheckSkipped("its `sinks` and `recent` are no numbers of tokens")
    if isinstance(recent, float) and not 0 <= recent <= 1:
        raise CheckSkipped("its `recent` is no share of the budget")
    budget = sinks + (recent if isinstance(recent, int) else 0) + 24
    if budget > LONGEST:
        raise CheckSkipped(f"sinks={sinks}, recent={recent} want a budget above {LONGEST}; try it with smaller ones")
    last = recent if isinstance(recent, int) else int(recent * budget)
    if sinks + last > budget:
        raise CheckSkipped(f"sinks={sinks} and recent={recent} are more than a budget of {budget}")
    record = MemoryCache(policy, [make_request(i, budget + 40, 9, budget) for i in range(2)]).run()
    for answer in record.answers:
        ids = torch.arange(answer.live.shape[-1])
        for name, promised in (("sinks", ids < sinks), ("recent", ids >= answer.length - last)):
            lost = answer.asked & answer.live & promised & answer.due[:, None, None]
            if lost.any():
                row, _, token = lost.nonzero()[0].tolist()
                raise CheckFailed(
                    f"{answer.told(row)}: token {token} goes, though {name}={getattr(policy, name)} and the budget has room. "
                    f"Give evict_lowest {'first' if name == 'sinks' else 'last'}=self.{name}, or call the field something else."
                )


def check_nan(make: PolicyFactory) -> None:
    """Makes no NaN.

    Not even of one token, of a token repeated, or where a window is longer than the request.
    """
    equal = [make_request(9, 40, 6, 10, repeated=True), make_request(10, 5, 6, 2, repeated=True)]
    for record in (ordinary_run(make), MemoryCache(make_policy(make), equal).run()):
        if record.nan:
            of = "" if record is ordinary_run(make) else ", of one token repeated"
            raise CheckFailed(
                f"NaN in {record.nan[0]}{of}. Likely 0 / 0, a softmax over nothing, or a standard deviation of one value: "
                "clamp the divisor (.clamp(min=1e-6)) and hide with a large negative number instead of -inf."
            )


def _check_budget(make: PolicyFactory, record: Record) -> None:
    groups = record.answers[0].live.shape[1] if record.answers else 1
    shares = []
    for answer in record.answers:
        left, limit = answer.left.sum(-1), answer.budget.flatten() * groups
        for row in answer.due.nonzero().flatten().tolist():
            if int(left[row]) > int(limit[row]):
                if _documented(make, "ignores the budget"):
                    raise CheckSkipped("its docstring says that it ignores the budget")
                named = int((answer.asked & answer.live)[row].sum())
                what = "nobody" if not bool(answer.asked[row].any()) else f"{named} tokens"
                likely = (
                    "the number to kill is taken from `length`, which counts the dead too, or protection has no end: the budget comes first"
                )
                if named == int(limit[row]):
                    likely = "it says who stays, where it must say who dies"
                raise CheckFailed(
                    f"{answer.told(row)}: the answer names {what} and leaves {int(left[row]) / groups:g} live tokens a group. "
                    f"Likely {likely}. evict_lowest sees to all of that; a choice of your own starts from "
                    "cache.live.sum(-1, keepdim=True) - cache.budget."
                )
            shares.append(float(left[row] / limit[row]))
    if shares and sum(shares) / len(shares) < 0.8 and not _documented(make, "burst", "below the budget"):
        warnings.warn(
            f"keeps {sum(shares) / len(shares):.0%} of its budget on average: comparisons at equal budget are then unfair to it. If that "
            'is meant, say "burst" or "below the budget" in the class\'s docstring.',
            CheckWarning,
            stacklevel=2,
        )


def _documented(make: PolicyFactory, *phrases: str) -> bool:
    """Does the docstring of the class say so, line breaks and case aside?"""
    text = " ".join((type(make_policy(make)).__doc__ or "").lower().split())
    return any(phrase in text for phrase in phrases)
