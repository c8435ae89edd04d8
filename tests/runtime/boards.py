"""Random boards: tables in states that a planner may meet, as tensors and as dictionaries."""

from __future__ import annotations

import random
from dataclasses import dataclass

import torch

from vtoken_sdk.runtime.block_pool import BlockPool
from vtoken_sdk.runtime.config import ReclaimOptions
from vtoken_sdk.runtime.planner import spare_blocks
from vtoken_sdk.runtime.token_table import TokenTable
from vtoken_sdk.runtime.upkeep import DEAD, FREE

from .plain import PlainTable, rebuild_map


@dataclass(frozen=True)
class Shape:
    """rows, ordinals, slots a block; share of live slots, of shared blocks, of absent ones; blocks beyond those held.

    open: a block of each row has slots for new tokens, without refill (with it, all dead slots are).
    """

    rows: int
    ordinals: int
    size: int
    live: float
    shared: float = 0.0
    absent: float = 0.0
    spare: int = 0
    open: bool = False


def random_shape(draw: random.Random, *, shared: bool, may_be_open: bool = True) -> Shape:
    return Shape(
        rows=draw.choice([1, 2, 3, 5]),
        ordinals=draw.choice([1, 2, 5, 9, 16]),
        size=draw.choice([1, 2, 8, 16]),
        live=draw.choice([0.06, 0.25, 0.5, 0.75, 0.97, 1.0]),
        shared=draw.choice([0.2, 0.5, 1.0]) if shared else 0.0,
        absent=draw.choice([0.0, 0.2]),
        spare=draw.choice([0, 1, 4, 40]),
        open=may_be_open and draw.random() < 0.5,
    )


def make_board(draw: random.Random, shape: Shape, options: ReclaimOptions) -> tuple[TokenTable, PlainTable]:
    """A table whose rows hold such blocks; a shared block has one more owner, which is not a row."""
    size, rows = shape.size, shape.rows
    n_blocks = rows * shape.ordinals + shape.spare
    pool = BlockPool(n_blocks, torch.device("cpu"))
    spare = spare_blocks(options, size)
    table = TokenTable(pool, rows, size, refill=options.refill, spare_blocks=spare)
    table.reserve(shape.ordinals * size)
    plain = PlainTable(rows, n_blocks, size, refill=options.refill)
    ids = list(range(n_blocks))
    draw.shuffle(ids)
    for r, row in enumerate(plain.rows):
        for j in range(shape.ordinals):
            if draw.random() >= shape.absent:
                row.blocks[j] = ids.pop()
                plain.pool.owners[row.blocks[j]] = 2 if draw.random() < shape.shared else 1
        places = [(j, o) for j in row.blocks for o in range(size)]
        live = [p for p in places if draw.random() < shape.live]
        # A block without a live token is given back at once, so a planner never meets one.
        live += [(j, draw.randrange(size)) for j in sorted(row.blocks.keys() - {j for j, _ in live})]
        row.length = len(places)
        for place, token in zip(live, draw.sample(range(row.length), len(live)), strict=True):
            row.held[place] = token
        last = draw.choice([j for j in row.blocks if plain.private(r, j)] or [-1]) if shape.open else -1
        written = draw.randint(1, size)  # slots of the last block that have been appended to
        for j, o in places:
            unused = j == last and o >= written
            row.held.setdefault((j, o), FREE if plain.private(r, j) and (options.refill or unused) else DEAD)
        dead = set(range(row.length)) - set(row.held.values())
        row.died_at = dict.fromkeys(dead, row.length)
        plain.list_free(r)
    plain.pool.stack = ids
    load(table, plain)
    return table, plain


def load(table: TokenTable, plain: PlainTable) -> None:
    """Bring an empty table into the state of the dictionaries."""
    pool, size = table.pool, table.block_size
    pool.stack[: len(plain.pool.stack)] = torch.tensor(plain.pool.stack, dtype=torch.int64)
    pool.top.fill_(len(plain.pool.stack))
    pool.owners[:-1] = torch.tensor(plain.pool.owners, dtype=torch.int32)
    for r, row in enumerate(plain.rows):
        table.length[r] = row.length
        ordinals, blocks = torch.tensor([*row.blocks], dtype=torch.int64), torch.tensor([*row.blocks.values()], dtype=torch.int64)
        table.blocks[r, ordinals] = blocks
        pool.home[blocks] = ordinals
        places = torch.tensor([j * size + o for j, o in row.held], dtype=torch.int64)
        table.held[r, places] = torch.tensor([*row.held.values()], dtype=torch.int32)
        live = row.live
        table.slot[r, torch.tensor([*live], dtype=torch.int64)] = torch.tensor(plain.slots(r, live.values()), dtype=torch.int32)
        died = torch.tensor([*row.died_at], dtype=torch.int64)
        table.died_at[r, died] = torch.tensor([*row.died_at.values()], dtype=torch.int32)
    rebuild_map(table, torch.arange(table.rows))
