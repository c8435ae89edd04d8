"""What a copy of evicted tokens to the host costs, by the length of their runs: blocks of 16 slots against single slots.

    python benchmarks/offload.py [--tokens 1024] [--out FILE]

An 8B shape: 32 layers, 8 KV heads of 128, bf16, 128 KB a token. Three ways into pinned memory: a copy of its own for every run of 16 slots
in every layer, for keys and values; the same for single slots; and single slots gathered on the device, then copied at once. Dummy values.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from measure import ROOT, need_gpu, write

LAYERS, HEADS, DIM = 32, 8, 128


def seconds(act: Callable[[], None], repeat: int = 5) -> float:
    """Median, after one call to warm up."""
    took = []
    for _ in range(repeat + 1):
        torch.cuda.synchronize()
        began = time.perf_counter()
        act()
        torch.cuda.synchronize()
        took.append(time.perf_counter() - began)
    return statistics.median(took[1:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=1024)
    parser.add_argument("--slots", type=int, default=65536)
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results" / "offload.json")
    args = parser.parse_args()
    need_gpu()
    pool = torch.randn(2, LAYERS, args.slots, HEADS, DIM, device="cuda").bfloat16()
    host = torch.empty(2, LAYERS, args.tokens, HEADS, DIM, dtype=pool.dtype, pin_memory=True)
    blocks = torch.randperm(args.slots // 16)[: args.tokens // 16].tolist()
    single = torch.randperm(args.slots)[: args.tokens]
    on_device, listed = single.cuda(), single.tolist()

    def runs(starts: list[int], length: int) -> None:
        for side in range(2):
            for layer in range(LAYERS):
                source, target = pool[side, layer], host[side, layer]
                for i, start in enumerate(starts):
                    target[i * length : (i + 1) * length].copy_(source[start : start + length], non_blocking=True)

    ways: dict[str, Callable[[], None]] = {
        "runs of 16 slots, a copy each": lambda: runs([16 * block for block in blocks], 16),
        "single slots, a copy each": lambda: runs(listed, 1),
        "single slots, gathered first": lambda: host.copy_(pool[:, :, on_device], non_blocking=True),  # type: ignore[dict-item]
        "one dense copy": lambda: host.copy_(pool[:, :, : args.tokens].contiguous(), non_blocking=True),  # type: ignore[dict-item]
    }
    results = {}
    for name, act in ways.items():
        took = seconds(act)
        results[name] = {"ms": took * 1e3, "GB_s": host.nbytes / took / 1e9}
        print(name, results[name], flush=True)
    write(args.out, results, tokens=args.tokens, bytes=host.nbytes)


if __name__ == "__main__":
    main()
