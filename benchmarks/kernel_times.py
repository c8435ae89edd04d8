"""Kernels of the runtime on a GPU: decode attention, a prefill chunk, the copies of a compaction.

    python benchmarks/kernel_times.py [--out FILE]

Llama-3.1-8B heads (32 query, 8 KV, head size 128), bf16, one layer; single slots in random order. Decode and copies are replayed in CUDA
graphs, over the same buffers: those of the larger shapes are many times the cache. Median microseconds; floors by the copy's bandwidth.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch
from measure import ROOT, graph_us, need_gpu, write
from triton.testing import do_bench

from vtoken_sdk.runtime.kernels.chunk_attention import chunk_attention, chunk_mass
from vtoken_sdk.runtime.kernels.decode_attention import NOT_BAD, DecodeScratch, decode_attention
from vtoken_sdk.runtime.kernels.moves import move_tokens

HQ, H, D, LAYERS = 32, 8, 128, 32
SCALE = D**-0.5


def bf16(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, device="cuda", dtype=torch.bfloat16)


def copy_bandwidth() -> float:
    """Bytes read and written a second, 2 GB."""
    source = torch.randint(255, (2 << 30,), dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    return 2 * len(source) / do_bench(lambda: target.copy_(source), return_mode="median") * 1e3


def decode(batch: int, ctx: int, bandwidth: float) -> dict[str, float]:
    n = batch * ctx
    keys, values, query = bf16(n, H, D), bf16(n, H, D), bf16(batch, HQ, D)
    slots = torch.randperm(n, device="cuda").int().view(batch, ctx)
    rows, n_live = torch.arange(batch, device="cuda"), torch.full((batch,), ctx, device="cuda")
    out, bad = torch.empty_like(query), torch.full((batch,), NOT_BAD, dtype=torch.int32, device="cuda")
    made = {"floor_us": 2 * keys.numel() * 2 / bandwidth * 1e6}
    for name, mass in (("us", None), ("with_mass_us", torch.zeros(batch, ctx, device="cuda"))):
        scratch = DecodeScratch(batch, H, HQ // H, D, ctx, keys.dtype, keys.device, mass=mass is not None)
        args = (query, keys, values, slots, rows, n_live, scratch, out, bad, 1, SCALE)
        made[name] = graph_us(lambda args=args, mass=mass: decode_attention(*args, mass=mass))
    return made


def chunk(n: int, live: int) -> dict[str, float]:
    """TFLOP/s that causality leaves; the mass has half the operations of attention."""
    keys, values, query = bf16(live, H, D), bf16(live, H, D), bf16(n, HQ, D)
    slots, n_live = torch.randperm(live, device="cuda").int(), torch.tensor([live], device="cuda")
    out, lse, bad = torch.empty_like(query), torch.empty(HQ, n, device="cuda"), torch.full((1,), NOT_BAD, dtype=torch.int32, device="cuda")
    tera = 4 * HQ * D * (n * live - n * n / 2) / 1e12
    attend = do_bench(lambda: chunk_attention(query, keys, values, slots, n_live, out, lse, bad, 1, SCALE), return_mode="median")
    mass = do_bench(lambda: chunk_mass(query, keys, slots, n_live, lse, live, SCALE), return_mode="median")
    return {"attend_ms": attend, "attend_tflops": tera / attend * 1e3, "mass_ms": mass, "mass_tflops": tera / 2 / mass * 1e3}


def moves(n: int, bandwidth: float) -> dict[str, float]:
    keys, values = bf16(LAYERS, 40_000, H, D), bf16(LAYERS, 40_000, H, D)
    order, count = torch.randperm(40_000, device="cuda"), torch.tensor(n, device="cuda")
    us = graph_us(lambda: move_tokens(keys, values, order[:n], order[20_000 : 20_000 + n], count), 5)
    return {"us": us, "share_of_copy": 2 * 2 * LAYERS * n * H * D * 2 / us * 1e6 / bandwidth}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results" / "kernel_times.json")
    args = parser.parse_args()
    need_gpu()
    bandwidth = copy_bandwidth()
    results: dict[str, Any] = {"copy_TBs": bandwidth / 1e12, "decode": {}, "chunk": {}, "moves": {}}
    for batch, ctx in ((1, 16384), (16, 2048), (16, 16384), (64, 4096)):
        results["decode"][f"{batch}x{ctx}"] = decode(batch, ctx, bandwidth)
    for n, live in ((16384, 16384), (2048, 10240)):
        results["chunk"][f"{n} of {live}"] = chunk(n, live)
    for n in (64, 256, 1024, 4096, 16384):
        results["moves"][str(n)] = moves(n, bandwidth)
    for part, values in results.items():
        print(part, values, flush=True)
    write(args.out, results)


if __name__ == "__main__":
    main()
