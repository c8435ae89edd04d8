"""Compiles every kernel for a GPU that need not be there: `python compile_all.py 90`. Run by test_compile.py, in a process of its own.

Triton decides when it is imported whether to interpret, and the interpreter forgives what the compiler refuses: a variable whose type
changes in a loop, more shared memory than a multiprocessor has. Prints a JSON object: kernel -> shared bytes of each variant.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import torch
import triton
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction

from vtoken_sdk.runtime.block_pool import BlockPool
from vtoken_sdk.runtime.kernels import choose, chunk_attention, decode_attention, kv_write, layers, moves, slot_map, step_end
from vtoken_sdk.runtime.token_table import TokenTable

CAPABILITY = int(sys.argv[1])
MADE: dict[str, list[int]] = {}


class NoDriver:
    """Of a GPU that is not there."""

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", CAPABILITY, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0


def compile_only(launch: Any) -> Any:
    def run(self: Any, *args: Any, **options: Any) -> Any:
        kernel = launch(self, *args, **{**options, "warmup": True})
        MADE.setdefault(self.fn.__name__, []).append(kernel.metadata.shared)
        return kernel

    return run


def bf16(*shape: int) -> Tensor:
    return torch.empty(shape, dtype=torch.bfloat16)


def of_int(*shape: int, dtype: torch.dtype = torch.int64) -> Tensor:
    return torch.zeros(shape, dtype=dtype)


def attention(head_dim: int, heads: int, group: int, softcap: float | None, window: int | None, *, replay: bool = False) -> None:
    """A chunk and a decode step, with mass."""
    query, pool, slots = bf16(256, heads * group, head_dim), bf16(512, heads, head_dim), of_int(512, dtype=torch.int32)
    ids, died_at = slots if window is not None else None, slots if replay else None
    lse, bad, n_live = torch.empty(heads * group, 256), of_int(1, dtype=torch.int32), of_int(17)
    chunk_attention.chunk_attention(query, pool, pool, slots, n_live, query, lse, bad, 3, 0.1, softcap, window, 0, ids, died_at)
    chunk_attention.chunk_mass(query, pool, slots, n_live, lse, 512, 0.1, softcap, window, 0, ids, died_at)
    if replay:
        return
    many = [(64, None)] if head_dim == 128 else []  # more rows than the other launch has room for
    for batch, mass in ((16, None), (16, torch.zeros(16, 512)), *many):
        query, first = bf16(batch, heads * group, head_dim), of_int(batch) if window is not None else None
        scratch = decode_attention.DecodeScratch(batch, heads, group, head_dim, 512, pool.dtype, pool.device, mass=mass is not None)
        slot_maps = of_int(batch + 1, 512, dtype=torch.int32)
        decode_attention.decode_attention(
            query, pool, pool, slot_maps, of_int(batch), n_live, scratch, query, bad, 3, 0.1, softcap, first, mass
        )  # fmt: skip


def rest() -> None:
    table = TokenTable(BlockPool(64, torch.device("cpu"), kernels=True), 4, 16, refill=True, spare_blocks=1)
    table.reserve(1024)
    rows, counts = of_int(4), of_int(4)
    slot_map.append_one(table, rows, counts)
    slot_map.settle_tokens(table, rows, torch.zeros(4, 512, dtype=torch.bool))
    slot_map.settle_tokens(table, rows, None)
    slot_map.settle_blocks(table, rows, 8)
    slot_map.settle_blocks(table, rows, 8, drop_leaving=True)
    slot_map.drop(table.pool, rows)
    slot_map.push_freed(table.pool)
    slot_map.mass_by_token(table, rows, counts, torch.zeros(4, 512), 512, 32)
    pool = bf16(2, 512, 8, 128)
    moves.move_tokens(pool, pool, of_int(16), of_int(16), of_int(1)[0])
    kv_write.write_kv(bf16(4, 8, 1, 128), bf16(4, 8, 1, 128), pool[0], pool[0], of_int(4, 1))
    cos, sin = kv_write.rotary_table(of_int(4), torch.zeros(64), 1.0, torch.bfloat16)
    for norms in (None, (bf16(128), bf16(128), 1e-6)):
        kv_write.rope_and_write(bf16(4, 48 * 128), cos, sin, of_int(4), bf16(4, 32, 128), pool[0], pool[0], norms)
    layers.add_norm(bf16(4, 4096), bf16(4, 4096), bf16(4096), 1e-6, add=True)
    layers.silu_mul(bf16(4, 28672))
    choose.choose(bf16(4, 32768), of_int(4, dtype=torch.int32), 32)
    said = of_int(4, 3)
    step_end.finish(rows, counts, rows, rows, said[:, 0], said[:, 1:], of_int(5), torch.zeros(5, dtype=torch.bool), of_int(5, 4))
    step_end.record(
        of_int(5, 4), torch.zeros(5, dtype=torch.bool), table.n_live, table.blocks, of_int(3), table.pool.top, of_int(5, 7), 64, 64
    )


def main() -> None:
    driver.set_active(NoDriver())
    JITFunction.run = compile_only(JITFunction.run)
    for module in (chunk_attention, decode_attention):
        vars(module)["capability"] = lambda device: divmod(CAPABILITY, 10)
    attention(128, 8, 4, None, None)
    attention(256, 4, 2, 50.0, 64)
    if CAPABILITY == 90:  # the others have the same kernels with less memory for the two above
        attention(80, 2, 3, None, None, replay=True)
        rest()
    print(json.dumps({"triton": triton.__version__, "shared": MADE}))


if __name__ == "__main__":
    main()
