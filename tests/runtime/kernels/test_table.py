"""The table's kernels against its plain operations, through random lives of rows; and the copies of a compaction."""

from __future__ import annotations

import copy
from typing import Literal

import pytest
import torch

from vtoken_sdk.runtime.block_pool import BlockPool
from vtoken_sdk.runtime.config import ReclaimOptions
from vtoken_sdk.runtime.planner import plan, spare_blocks
from vtoken_sdk.runtime.token_table import TokenTable

moves = pytest.importorskip("vtoken_sdk.runtime.kernels.moves", reason="Triton is for Linux")

CUDA = torch.cuda.is_available()
DEVICE = torch.device("cuda" if CUDA else "cpu")


def make(size: int, *, refill: bool, kernels: bool) -> TokenTable:
    table = TokenTable(BlockPool(4000 // size, DEVICE, kernels=kernels), 4, size, refill=refill)
    table.reserve(300)
    return table


def assert_same(plain: TokenTable, fast: TokenTable) -> None:
    """All that is read of either; what lies beyond a map's free slots, or in the trash row, is not."""
    for name in ("slot", "died_at", "blocks", "held", "leaving", "length", "n_live", "n_free"):
        assert torch.equal(getattr(plain, name)[:-1], getattr(fast, name)[:-1]), name
    for row in range(plain.rows):
        n = int(plain.n_live[row] + plain.n_free[row])
        assert torch.equal(plain.map[row, :n], fast.map[row, :n])
    top = int(plain.pool.top)
    assert top == int(fast.pool.top)
    assert torch.equal(plain.pool.stack[:top], fast.pool.stack[:top])
    assert torch.equal(plain.pool.owners[:-1], fast.pool.owners[:-1])


@pytest.mark.parametrize("refill", [False, True])
@pytest.mark.parametrize("size", [1, 8, 16, 32, 64] if CUDA else [1, 16])
def test_kernels_do_what_the_plain_operations_do(size: int, refill: bool) -> None:
    torch.manual_seed(size)
    tables = [make(size, refill=refill, kernels=kernels) for kernels in (False, True)]
    plain, fast = tables
    everyone = torch.arange(4, device=DEVICE)
    for table in tables:
        table.append(everyone, torch.tensor([37, 5, 100, 64], device=DEVICE), 100)
    for i in range(16 if CUDA else 8):
        rows = torch.randperm(5, device=DEVICE)[:3]  # 4 is the trash row, which pads a batch
        counts = ((torch.rand(3, device=DEVICE) < 0.8) & (rows != 4)).long()
        slots = [table.append(rows, counts, 1) for table in tables]
        assert torch.equal(*slots)
        assert_same(plain, fast)
        rows = torch.randperm(4, device=DEVICE)[:2]
        kill = torch.rand(2, 256, device=DEVICE) < (0.9 if i % 6 == 0 else 0.1)
        (died, freed), (fast_died, fast_freed) = (table.evict_token(rows, kill) for table in tables)
        assert (int(died), int(freed)) == (int(fast_died), int(fast_freed))
        assert_same(plain, fast)
        if i % 5 == 4:
            row = everyone[i % 4 : i % 4 + 1]
            assert int(plain.release(row)) == int(fast.release(row))
            for table in tables:
                table.append(row, torch.tensor([50], device=DEVICE), 50)
            assert_same(plain, fast)


@pytest.mark.parametrize("packing", ["fill", "fresh"])
@pytest.mark.parametrize(("size", "refill"), [(1, False), (8, True), (16, False)])
def test_plans_are_the_same_by_kernels(size: int, refill: bool, packing: Literal["fill", "fresh"]) -> None:
    """With blocks that two rows share, deaths while tokens are on the move, and plans that are canceled."""
    torch.manual_seed(0)
    options = ReclaimOptions(packing=packing, margin=0, move_cap=48, slack=3)
    tables = [
        TokenTable(BlockPool(400 // size, DEVICE, kernels=kernels), 4, size, refill=refill, spare_blocks=spare_blocks(options, size))
        for kernels in (False, True)
    ]
    everyone = torch.arange(4, device=DEVICE)
    for table in tables:
        table.reserve(120)
        table.append(everyone[:1], torch.tensor([64], device=DEVICE), 64)
        table.adopt(everyone[1:2], table.blocks[0, : 32 // size].clone())
        table.append(everyone[1:], torch.tensor([20, 50, 33], device=DEVICE), 50)
    assert_same(*tables)

    def kill_some(share: float) -> None:
        kill = torch.rand(4, tables[0].max_tokens, device=DEVICE) < share
        kill[everyone, tables[0].length[:4] - 1] = False
        said = [tuple(map(int, table.evict_token(everyone, kill))) for table in tables]
        assert said[0] == said[1]
        assert_same(*tables)

    moved = 0
    for i in range(4):
        kill_some(0.3)
        rows = torch.tensor([0, 1, 3, 4] if i % 2 else [2, 1, 0], device=DEVICE)
        plans = [plan(table, rows, options) for table in tables]
        n = int(plans[0].count)
        for name in ("source", "target", "token", "source_slot", "target_slot"):
            assert torch.equal(getattr(plans[0], name)[:n], getattr(plans[1], name)[:n]), name
        assert_same(*tables)
        counts = (torch.rand(4, device=DEVICE) < 0.8).long()
        assert torch.equal(*(table.append(everyone, counts, 1) for table in tables))
        kill_some(0.15)
        if i == 2:
            freed = [int(table.cancel_moves(made.rows)) for table, made in zip(tables, plans, strict=True)]
            assert freed[0] == freed[1]
        else:
            done = [
                tuple(map(int, table.apply_moves(made.rows, made.source, made.target, made.token, made.count)))
                for table, made in zip(tables, plans, strict=True)
            ]
            assert done[0] == done[1]
            moved += done[0][0]
        assert_same(*tables)
    assert moved or size == 1


def test_one_table_is_not_the_other() -> None:
    """The comparison above sees a single slot that differs."""
    plain = make(16, refill=False, kernels=False)
    plain.append(torch.tensor([0], device=DEVICE), torch.tensor([20], device=DEVICE), 20)
    other = copy.deepcopy(plain)
    other.map[0, 3] += 1
    with pytest.raises(AssertionError):
        assert_same(plain, other)


@pytest.mark.parametrize("count", [0, 1, 29, 40])
@pytest.mark.parametrize(("heads", "head_dim"), [(2, 24), (8, 128)])
def test_moves_touch_their_targets_and_nothing_else(count: int, heads: int, head_dim: int) -> None:
    torch.manual_seed(0)
    keys, values = torch.randn(2, 3, 100, heads, head_dim, device=DEVICE)
    order = torch.randperm(99, device=DEVICE)
    source, target = order[:40], order[40:80]
    want = keys.clone(), values.clone()
    for pool in want:
        pool[:, target[:count]] = pool[:, source[:count]]
    moves.move_tokens(keys, values, source, target, torch.tensor(count, device=DEVICE))
    assert torch.equal(keys, want[0])
    assert torch.equal(values, want[1])
