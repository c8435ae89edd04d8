"""FlashAttention-3's paged decode, as vLLM ships it, beside `kernel_times.py`: python benchmarks/peer_fa3.py OUT.json

Llama-3.1-8B heads (32 query, 8 KV, head size 128), bf16, one layer, blocks in random order, by page size. TB/s counts keys and values once.
The JSON's entries go to `fa3` of results/peers_h200.json.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch
from measure import need_gpu
from triton.testing import do_bench

HQ, H, D = 32, 8, 128


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    args = parser.parse_args()
    need_gpu()
    from vllm.vllm_flash_attn import flash_attn_varlen_func

    results: dict[str, dict[str, float]] = {}
    for batch, ctx in ((1, 16384), (16, 2048), (16, 16384), (32, 8192), (64, 4096)):
        for page in (1, 16, 64):
            n = batch * ctx // page
            k = torch.randn(n, page, H, D, device="cuda", dtype=torch.bfloat16)
            v = torch.randn_like(k)
            query = torch.randn(batch, HQ, D, device="cuda", dtype=torch.bfloat16)
            options = {
                "max_seqlen_q": 1,
                "cu_seqlens_q": torch.arange(batch + 1, device="cuda", dtype=torch.int32),
                "max_seqlen_k": ctx,
                "seqused_k": torch.full((batch,), ctx, device="cuda", dtype=torch.int32),
                "block_table": torch.randperm(n, device="cuda").int().view(batch, -1).contiguous(),
                "causal": True,
                "fa_version": 3,
            }

            def act(query: torch.Tensor = query, k: torch.Tensor = k, v: torch.Tensor = v, options: dict[str, object] = options) -> None:
                flash_attn_varlen_func(query, k, v, **options)

            ms = do_bench(act, warmup=50, rep=200, return_mode="median")
            name = f"{batch}x{ctx}_page{page}"
            results[name] = {"us": ms * 1e3, "TBs": 4 * batch * ctx * H * D / ms / 1e9}
            print(name, results[name], flush=True)
    args.out.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
