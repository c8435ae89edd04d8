"""The pool: every block is free once, or has its owners; it never reads a value on the host."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import torch

from vtoken_sdk.runtime.block_pool import BlockPool

from .no_sync import NoHostReads
from .plain import PlainPool

CPU = torch.device("cpu")


def test_random_lives_equal_a_stack_and_a_count() -> None:
    draw = random.Random(0)
    for n_blocks in (1, 2, 7, 40):
        pool, plain = BlockPool(n_blocks, CPU), PlainPool(n_blocks)
        for _ in range(150):
            held = [b for b in range(n_blocks) for _ in range(plain.owners[b])]
            kind = draw.choice(["pop", "pop", "free", "share"])
            if kind == "pop":
                counts = [draw.randint(0, 3) for _ in range(draw.randint(1, 4))]
                if sum(counts) > len(plain.stack):
                    continue
                with NoHostReads():
                    ids = pool.pop(torch.tensor(counts), 3)
                for row, count in zip(ids.tolist(), counts, strict=True):
                    assert row == [plain.pop() for _ in range(count)] + [pool.trash] * (3 - count)
            elif kind == "share" and held:
                chosen = sorted(set(draw.sample(held, draw.randint(1, len(held)))))
                with NoHostReads():
                    pool.share(torch.tensor([*chosen, pool.trash]))
                for block in chosen:
                    plain.owners[block] += 1
            elif held:
                chosen = draw.sample(held, draw.randint(1, len(held)))
                padded = chosen + [pool.trash] * draw.randint(0, 3)
                draw.shuffle(padded)
                with NoHostReads():
                    freed = pool.free(torch.tensor(padded))
                assert int(freed) == plain.free(chosen)
            pool.check()
            assert pool.stack[: pool.n_free()].tolist() == plain.stack
            assert pool.owners[:-1].tolist() == plain.owners


def test_nobody_is_given_a_block_twice() -> None:
    pool = BlockPool(6, CPU)
    ids = pool.pop(torch.tensor([2, 0, 3]), 3)
    taken = ids[ids != pool.trash].tolist()
    assert sorted(taken) == [0, 1, 2, 3, 4]
    assert pool.n_free() == 1


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda pool: pool.pop(torch.tensor([7]), 7), "-4 free of 5"),
        (lambda pool: pool.free(torch.tensor([1, 1])), r"\[1\] were freed more often than held"),
        (lambda pool: pool.stack.__setitem__(0, pool.stack[1].clone()), r"\[3\] are free twice"),
        (lambda pool: pool.owners.__setitem__(4, 1), r"\[4\] have \[1\] owners"),
        (lambda pool: pool.owners.__setitem__(1, 0), r"\[1\] have \[0\] owners"),
        (lambda pool: pool.top.add_(1), "were freed|are free twice|free stack"),
    ],
)
def test_the_audit_names_the_blocks(spoil: Callable[[BlockPool], object], said: str) -> None:
    pool = BlockPool(5, CPU)
    pool.pop(torch.tensor([2]), 2)
    pool.check()
    spoil(pool)
    with pytest.raises(AssertionError, match=said):
        pool.check()
