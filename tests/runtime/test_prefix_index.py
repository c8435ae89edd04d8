"""The prefix index: what a key names, who owns a block, and that what is dropped is never found again."""

from __future__ import annotations

import random

import pytest
import torch

from vtoken_sdk.runtime.audit import check_owners, check_rows
from vtoken_sdk.runtime.block_pool import BlockPool
from vtoken_sdk.runtime.prefix_index import PrefixIndex, prefix_keys
from vtoken_sdk.runtime.token_table import TokenTable

CPU = torch.device("cpu")
UNIT = 4


def make(block_size: int = 2, n_blocks: int = 40, rows: int = 4, unit: int = UNIT) -> tuple[TokenTable, PrefixIndex]:
    table = TokenTable(BlockPool(n_blocks, CPU), rows, block_size, refill=True)
    table.reserve(64)
    return table, PrefixIndex(table, unit)


def fill(table: TokenTable, row: int, tokens: int) -> None:
    n = tokens - int(table.length[row])
    table.append(torch.tensor([row]), torch.tensor([n]), max(n, 1))


def check(table: TokenTable, index: PrefixIndex) -> None:
    names = {row: f"request-{row}" for row in range(table.rows) if int(table.length[row])}
    check_owners(table.pool, table, index, names)
    check_rows(table, names, None)


def test_a_key_names_the_whole_prefix() -> None:
    tokens = list(range(12))
    keys = prefix_keys(tokens, UNIT)
    assert len(keys) == 3
    assert len(set(keys)) == 3
    assert prefix_keys(tokens[:11], UNIT) == keys[:2]
    assert prefix_keys([], UNIT) == []
    for changed in range(12):
        other = prefix_keys([*tokens[:changed], 99, *tokens[changed + 1 :]], UNIT)
        assert [a == b for a, b in zip(keys, other, strict=True)] == [i < changed // UNIT for i in range(3)]
    # The same unit after another prefix is another key.
    assert prefix_keys([*tokens[4:8], *tokens[4:8]], UNIT)[0] != prefix_keys([*tokens[4:8], *tokens[4:8]], UNIT)[1]


@pytest.mark.parametrize(("block_size", "unit"), [(1, 16), (8, 16), (16, 16), (32, 32)])
def test_a_hit_shares_the_blocks_and_the_last_owner_gives_them_back(block_size: int, unit: int) -> None:
    table, index = make(block_size, n_blocks=128 // block_size, unit=unit)
    table.reserve(128)
    keys = prefix_keys(range(2 * unit), unit)
    fill(table, 0, 2 * unit + 3)
    index.enter(0, keys)
    check(table, index)
    assert index.match([*keys, b"unknown"]) == keys
    index.adopt(1, keys)
    check(table, index)
    assert table.slot[1, : 2 * unit].tolist() == table.slot[0, : 2 * unit].tolist()
    fill(table, 1, 2 * unit + 1)
    shared = 2 * unit // block_size
    rows = torch.tensor([0, 1])
    assert not bool(table.private(rows)[:, :shared].any())
    assert bool((table.held[1, : shared * block_size] == torch.arange(2 * unit)).all())
    free = table.pool.n_free()
    table.release(torch.tensor([0]))
    check(table, index)
    assert table.pool.n_free() - free == -(-3 // block_size)
    assert int(index.drop(5)) == 0
    check(table, index)
    assert index.match(keys) == []
    table.release(torch.tensor([1]))
    assert table.pool.n_free() == table.pool.n_blocks


def test_evicting_in_one_request_leaves_the_other_its_tokens() -> None:
    table, index = make()
    keys = prefix_keys(range(8), UNIT)
    fill(table, 0, 9)
    index.enter(0, keys)
    index.adopt(1, keys)
    fill(table, 1, 9)
    table.evict_token(torch.tensor([0]), torch.arange(64)[None] < 7)
    check(table, index)
    assert (table.slot[0] >= 0).nonzero().flatten().tolist() == [7, 8]
    assert (table.slot[1] >= 0).nonzero().flatten().tolist() == list(range(9))
    # Dead slots of a shared block are not given to new tokens, even where dead slots are reused.
    slots = table.append(torch.tensor([0]), torch.tensor([1]), 1)
    assert int(slots[0, 0]) not in table.slot[1].tolist()


def test_a_key_that_is_known_keeps_its_first_blocks() -> None:
    table, index = make()
    keys = prefix_keys(range(8), UNIT)
    for row in (0, 1):
        fill(table, row, 8)
        index.enter(row, keys)
    check(table, index)
    assert len(index) == 2
    index.adopt(2, keys)
    assert table.blocks[2].tolist() == table.blocks[0].tolist()
    assert bool(table.private(torch.tensor([1]))[0, :4].all())


def test_what_was_dropped_under_a_running_request_is_entered_anew() -> None:
    """Else its later units would be entered without their parents, where no prompt can find them."""
    table, index = make()
    keys = prefix_keys(range(12), UNIT)
    fill(table, 0, 8)
    index.enter(0, keys[:2])
    index.drop(1)
    assert index.match(keys) == keys[:1]
    index.drop(1)
    fill(table, 0, 12)
    index.enter(0, keys)
    check(table, index)
    assert index.match(keys) == keys


def test_the_least_recently_used_go_first_and_children_before_their_parents() -> None:
    table, index = make()
    old, new = prefix_keys(range(8), UNIT), prefix_keys(range(100, 108), UNIT)
    for row, keys in enumerate((old, new)):
        fill(table, row, 8)
        index.enter(row, keys)
    assert index.match(old[:1]) == old[:1]
    table.release(torch.tensor([0, 1]))
    assert int(index.drop(1)) == 2
    assert (index.match(old), index.match(new)) == (old[:1], new)
    assert int(index.drop(1)) == 2
    assert (index.match(old), index.match(new)) == ([], new)


def test_every_entry_can_be_found_at_any_time() -> None:
    """A tree of prompts, requests that come and go, and an index that has to give way at random."""
    draw = random.Random(0)
    tree = {(): [0, 1], (0,): [0, 1, 2], (1,): [0], (0, 0): [0, 1], (0, 1): [0]}
    for _ in range(60):
        table, index = make(rows=3)
        running: dict[int, list[bytes]] = {}
        chains: set[tuple[bytes, ...]] = set()
        for _ in range(40):
            kind = draw.choice(["start", "grow", "end", "drop"])
            idle = [row for row in range(3) if row not in running]
            if kind == "start" and idle:
                path: tuple[int, ...] = ()
                while tree.get(path) and draw.random() < 0.8:
                    path = (*path, draw.choice(tree[path]))
                keys = prefix_keys([1000 * depth + child for depth, child in enumerate(path) for _ in range(UNIT)], UNIT)
                row = idle[0]
                hit = index.match(keys[: draw.randint(0, len(keys))])  # a policy may forbid a part of the hit
                if hit:
                    index.adopt(row, hit)
                running[row] = keys
                chains.add(tuple(keys))
            elif kind == "grow" and running:
                row = draw.choice(sorted(running))
                keys = running[row]
                done = min(int(table.length[row]) // UNIT + 1, len(keys))
                fill(table, row, max(done * UNIT, int(table.length[row])))
                index.enter(row, keys[:done])
            elif kind == "end" and running:
                row = draw.choice(sorted(running))
                del running[row]
                table.release(torch.tensor([row]))
            elif kind == "drop":
                index.drop(draw.randint(1, 2))
            check(table, index)
            found = {key for chain in chains for key in index.match(chain)}
            assert len(found) == len(index)
        table.release(torch.arange(3))
        index.drop(len(index))
        assert table.pool.n_free() == table.pool.n_blocks
