"""Checks of what a policy may depend on and change: its view and its state, nothing else."""

from __future__ import annotations

import copy
import pickle

from vtoken_sdk.policy import EvictionPolicy

from .factory import PolicyFactory, make_policy
from .faults import CheckFailed
from .memory_cache import MemoryCache, ordinary_run
from .record import expect_same
from .requests import ordinary_requests


def check_inputs(make: PolicyFactory) -> None:
    """Changes none of its inputs."""
    changed = ordinary_run(make).changed
    if changed:
        raise CheckFailed(
            f"{changed[0]}. Others read these tensors too. Likely an operation with an underscore (masked_fill_), "
            "`x[...] =` or `x += `: use the form that makes a new tensor, or .clone() first."
        )


def check_state(make: PolicyFactory) -> None:
    """Assigns state in sync_new_tokens only."""
    stained = ordinary_run(make).stained
    if stained:
        raise CheckFailed(
            f"{stained[0]}. An answer may be asked for twice, or dropped, so what is learned there is "
            "wrong. Move it to sync_new_tokens, or work on a copy."
        )


def check_purity(make: PolicyFactory) -> None:
    """Asked twice, answers the same."""
    impure = MemoryCache(make_policy(make), ordinary_requests(), twice=True).run().impure
    if impure:
        raise CheckFailed(
            f"{impure[0]}: asked twice about the same cache, evict_token gave two answers. It must depend on `cache` alone: no clock, "
            "no counter, no generator that moves on; randomness comes from cache.seed."
        )


def check_hidden_state(make: PolicyFactory) -> None:
    """Keeps nothing on itself or its class."""
    hidden = ordinary_run(make).hidden
    if hidden:
        raise CheckFailed(
            f"{hidden[0]}. One policy serves all requests, which come, go, are preempted and change rows, so an attribute "
            'mixes them up. Keep it in cache.state["name"] (fp32 [B, G, T], zeroed and freed for you), and constants in fields.'
        )


def check_seed(make: PolicyFactory) -> None:
    """Same seed, same evictions."""
    expect_same(
        ordinary_run(make),
        MemoryCache(make_policy(make), ordinary_requests(), entropy=1).run(),
        ", after another torch.manual_seed. Draw from cache.seed (int64 [B, 1, 1], of the request) by a hash of seed and "
        "token id, as the bundled `random` does, never from torch.rand, numpy or random.",
    )


def check_new_request(make: PolicyFactory) -> None:
    """Starts clean for each request.

    The same policy serves some requests after others.
    """
    used = make_policy(make)
    MemoryCache(used, ordinary_requests()[::-1]).run()
    expect_same(
        MemoryCache(used, ordinary_requests()).run(),
        ordinary_run(make),
        ": the first had served other requests before. Something outlives a request, likely a global variable or a cache "
        "of the module. Keep per-request values in cache.state.",
    )


def check_copies(make: PolicyFactory) -> None:
    """Evicts the same as a deep copy or from a pickle."""
    policy = make_policy(make)
    for how in ("copy.deepcopy", "pickle"):
        try:
            twin: EvictionPolicy = copy.deepcopy(policy) if how == "copy.deepcopy" else pickle.loads(pickle.dumps(policy))
        except Exception as error:
            raise CheckFailed(
                f"{how} fails: {type(error).__name__}: {error}. Sweeps send policies to other processes. Keep options plain (numbers, "
                "strings, tuples), and the class at the top level of its file."
            ) from error
        copied = MemoryCache(twin, ordinary_requests()).run()
        expect_same(ordinary_run(make), copied, f": the second is a copy by {how}. Options must be fields, so that copies have them.")
