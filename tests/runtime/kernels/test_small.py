"""The small kernels between attention and matrix products, against plain arithmetic: on a GPU where there is one, else interpreted."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

layers = pytest.importorskip("vtoken_sdk.runtime.kernels.layers", reason="Triton is for Linux")
choices = pytest.importorskip("vtoken_sdk.runtime.kernels.choose", reason="Triton is for Linux")
writes = pytest.importorskip("vtoken_sdk.runtime.kernels.kv_write", reason="Triton is for Linux")

CUDA = torch.cuda.is_available()
DEVICE = torch.device("cuda" if CUDA else "cpu")
HALF = [torch.float32, torch.float16, *([torch.bfloat16] if CUDA else [])]  # the interpreter gets bf16 wrong (cases N07)
LIMIT = {torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}


def close(got: Tensor, want: Tensor) -> None:
    assert got.dtype == want.dtype
    limit = LIMIT[want.dtype] * max(1.0, float(want.float().abs().max()))
    assert float((got.float() - want.float()).abs().max()) < limit


def random(*shape: int, dtype: torch.dtype) -> Tensor:
    return torch.randn(*shape, device=DEVICE).to(dtype)


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("vocabulary", [5, 1000, 8192, 20_000])
def test_the_choice_is_the_first_of_the_largest(vocabulary: int, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    logits = random(6, vocabulary, dtype=dtype)
    best = torch.tensor([0, vocabulary - 1, vocabulary // 2, 1, 2, 3], device=DEVICE)
    logits[torch.arange(6, device=DEVICE), best] = 30
    logits[5, -1] = 30  # a tie: the lower one
    first_bad = torch.full((6,), choices.NOT_BAD, dtype=torch.int32, device=DEVICE)
    chosen, layer = choices.choose(logits, first_bad, 4)
    assert torch.equal(chosen, best)
    assert layer.tolist() == [-1] * 6


@pytest.mark.parametrize("wrong", [torch.nan, torch.inf, -torch.inf])
def test_rows_that_are_not_finite_are_told(wrong: float) -> None:
    logits = torch.zeros(4, 9000, device=DEVICE)
    logits[1, 8999] = wrong
    logits[2, 0] = wrong
    first_bad = torch.tensor([choices.NOT_BAD, choices.NOT_BAD, 3, 2], dtype=torch.int32, device=DEVICE)
    _, layer = choices.choose(logits, first_bad, 7)
    assert layer.tolist() == [-1, 7, 3, 2]  # the head's own fault, and layers that went wrong before it


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("width", [64, 96, 4096])
@pytest.mark.parametrize("add", [False, True])
def test_add_and_norm(width: int, dtype: torch.dtype, add: bool) -> None:
    torch.manual_seed(0)
    residual, x, weight = random(5, width, dtype=dtype), random(5, width, dtype=dtype), random(width, dtype=dtype)
    total = (residual.float() + x.float()).to(dtype) if add else x.clone()
    want = (total.float() * torch.rsqrt(total.float().square().mean(-1, keepdim=True) + 1e-5)).to(dtype) * weight
    got = layers.add_norm(x, residual, weight, 1e-5, add=add)
    close(residual, total)
    close(got, want)


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("width", [24, 512])
def test_silu_times_up(width: int, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    both = random(7, 2 * width, dtype=dtype)
    gate, up = both.chunk(2, -1)
    close(layers.silu_mul(both), F.silu(gate) * up)


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("normed", [False, True])
@pytest.mark.parametrize(("query_heads", "heads", "head_dim"), [(4, 2, 16), (6, 2, 80), (3, 1, 96)])
def test_rotary_and_write(query_heads: int, heads: int, head_dim: int, dtype: torch.dtype, normed: bool) -> None:
    torch.manual_seed(0)
    n, columns = 5, (query_heads + 2 * heads) * head_dim
    qkv, positions = random(n, columns, dtype=dtype), torch.tensor([0, 3, 100, 999, 31], device=DEVICE)
    frequencies = 10_000 ** -(torch.arange(0, head_dim, 2, device=DEVICE) / head_dim)
    cos, sin = writes.rotary_table(positions, frequencies, 1.0, dtype)
    angle = positions[:, None] * frequencies
    close(cos, angle.cos().to(dtype))
    close(sin, angle.sin().to(dtype))
    weights = (random(head_dim, dtype=dtype), random(head_dim, dtype=dtype))
    slots, pool = (
        torch.tensor([7, 0, 19, 4, 11], device=DEVICE),
        torch.full((2, 20, heads, head_dim), torch.nan, device=DEVICE, dtype=dtype),
    )
    query = torch.empty(n, query_heads, head_dim, device=DEVICE, dtype=dtype)
    writes.rope_and_write(qkv, cos, sin, slots, query, *pool, (*weights, 1e-6) if normed else None)

    def turned(x: Tensor, weight: Tensor) -> Tensor:
        if normed:
            x = (x.float() * torch.rsqrt(x.float().square().mean(-1, keepdim=True) + 1e-6)).to(dtype) * weight
        a, b = x.float().chunk(2, -1)
        c, s = cos.float()[:, None], sin.float()[:, None]
        return torch.cat((a * c - b * s, b * c + a * s), -1).to(dtype)

    q, k, v = qkv.view(n, -1, head_dim).split((query_heads, heads, heads), 1)
    close(query, turned(q, weights[0]))
    close(pool[0, slots], turned(k, weights[1]))
    assert torch.equal(pool[1, slots], v)
    untouched = torch.ones(20, dtype=torch.bool, device=DEVICE).index_fill_(0, slots, 0)
    assert bool(pool[:, untouched].isnan().all())
