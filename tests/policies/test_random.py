"""Random is uniform, by the request's own seed."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor

from vtoken_sdk.policies.random import Random, mix
from vtoken_sdk.policy import CacheView, State


def view(live: Tensor, length: Tensor, budget: int, seeds: Tensor, groups: tuple[int, int] = (1, 1)) -> CacheView:
    """live: bool [B, G, T]; length, seeds: int64 [B]."""
    budgets = torch.full_like(length, budget)[:, None, None]
    return CacheView(live, length[:, None, None], budgets, seeds[:, None, None], groups, State(live.shape, live.device, writable=False))


def chi_square(counts: Tensor, n: int, p: float) -> float:
    """Of how often each of k candidates was drawn in n draws of k * p of them; about k - 1 degrees of freedom."""
    k = len(counts)
    return float(((counts - n * p) ** 2).sum() / (n * p * (1 - p)) * (k - 1) / k)


SEEDS = {"consecutive": torch.arange(4000), "wide": torch.arange(4000) * 2**32, "negative": -1 - torch.arange(4000)}


@pytest.mark.parametrize("fresh", [True, False])
@pytest.mark.parametrize("seeds", SEEDS)
def test_every_candidate_is_equally_likely(seeds: str, *, fresh: bool) -> None:
    live = torch.ones(4000, 1, 12, dtype=torch.bool)
    dead = Random(sinks=1, recent=2, fresh=fresh).evict_token(view(live, torch.full((4000,), 12), 6, SEEDS[seeds]))[:, 0]
    assert (dead.sum(1) == 6).all()
    assert not dead[:, [0, 10, 11]].any()
    assert chi_square(dead[:, 1:10].sum(0), 4000, 6 / 9) < 27  # 8 degrees of freedom: p < 0.001 above
    pairs = torch.tensor([int((dead[:, a] & dead[:, b]).sum()) for a, b in itertools.combinations(range(1, 10), 2)])
    p = 6 / 9 * 5 / 8
    assert ((pairs - 4000 * p).abs() < 4.5 * (4000 * p * (1 - p)) ** 0.5).all(), "two tokens' fates are tied"


def test_fresh_draws_do_not_repeat_over_steps() -> None:
    lengths = torch.arange(12, 2012)
    live = torch.zeros(2000, 1, 2011, dtype=torch.bool)
    live[:, :, :11] = True
    live[torch.arange(2000), 0, lengths - 1] = True
    seeds = torch.full((2000,), 5)
    dead = Random().evict_token(view(live, lengths, 6, seeds))[:, 0, :11]
    assert chi_square(dead.sum(0), 2000, 6 / 11) < 30  # 10 degrees of freedom
    once = Random(fresh=False).evict_token(view(live, lengths, 6, seeds))[:, 0, :11]
    assert (once == once[0]).all(), "a lot is drawn once"


def survivors(policy: Random) -> Tensor:
    """How often each of 40 tokens is left when they came one by one to 3,000 requests of budget 8, the newest aside."""
    live = torch.zeros(3000, 1, 40, dtype=torch.bool)
    for n in range(1, 41):
        live[..., n - 1] = True
        live &= ~policy.evict_token(view(live, torch.full((3000,), n), 8, torch.arange(3000)))
    assert (live.sum(-1) == 8).all()
    return live[:, 0, :39].sum(0)


def test_one_lot_a_token_keeps_a_uniform_sample_of_all_seen() -> None:
    """The newest always stays, whatever its lot; so the last few are a little more frequent, and are left out."""
    left = survivors(Random(fresh=False))[:32].double()
    assert chi_square(left, 3000, float(left.mean()) / 3000) < 62  # 31 degrees of freedom


def test_fresh_draws_thin_out_the_old() -> None:
    left = survivors(Random(fresh=True))
    assert left[:8].sum() * 5 < left[-8:].sum()


def test_the_request_decides_and_nothing_else() -> None:
    live = torch.ones(3, 1, 64, dtype=torch.bool)
    seeds = torch.tensor([7, 8, 7])
    dead = Random().evict_token(view(live, torch.full((3,), 64), 32, seeds))
    assert torch.equal(dead[0], dead[2])
    assert not torch.equal(dead[0], dead[1])
    wider = torch.nn.functional.pad(live[:1], (0, 64))
    alone = Random().evict_token(view(wider, torch.tensor([64]), 32, seeds[:1]))
    assert torch.equal(alone[0, :, :64], dead[0])
    heads = Random().evict_token(view(live[:1].expand(1, 4, 64), torch.tensor([64]), 32, seeds[:1], (2, 2)))[0]
    assert len({tuple(row.tolist()) for row in heads}) == 4, "groups draw apart"


def test_draws_are_distinct_in_fp32() -> None:
    """Ties die in order of age, so a coarse score would be a bias. 24 bits: about 8 pairs among 16,384 tokens."""
    x = mix(mix(torch.tensor(12345)) ^ torch.arange(16_384))
    assert len(set(x.tolist())) == 16_384
    assert len(set((x >> 8).float().tolist())) > 16_384 - 30
    assert torch.equal((x >> 8).float().long(), x >> 8)
