"""vLLM beside the runtime, in process, with dummy weights: decode steps, prompts, or throughput at a fixed number of blocks.

    VLLM_USE_FLASHINFER_SAMPLER=0 python benchmarks/peer_vllm.py llama-3.1-8b OUT.json [--shapes 1x1024,16x1024]
    VLLM_USE_FLASHINFER_SAMPLER=0 python benchmarks/peer_vllm.py mistral-7b OUT.json --blocks 5427 --concurrency 16 [--output 256]

Where vLLM is installed (the figures: 0.23.0). A decode step is (time for 132 new tokens - time for 4) / 128, so that the prompt
cancels out; `prefill_s` is the time for 4. No prefix cache, blocks of 16, greedy, no end token. The JSON's entries go to `decode` and
`pools` of results/peers_h200.json.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")

import torch

LLAMA = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 128256, "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-5, "rope_theta": 500000.0, "tie_word_embeddings": False, "torch_dtype": "bfloat16", "hidden_act": "silu",
    "bos_token_id": 128000, "eos_token_id": 128001, "attention_bias": False, "mlp_bias": False,
}  # fmt: skip
MISTRAL = LLAMA | {
    "architectures": ["MistralForCausalLM"], "model_type": "mistral", "vocab_size": 32768, "max_position_embeddings": 32768,
    "rope_theta": 1e6, "sliding_window": None, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
CONFIGS: dict[str, dict[str, Any]] = {"llama-3.1-8b": LLAMA, "mistral-7b": MISTRAL}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", choices=sorted(CONFIGS))
    parser.add_argument("out", type=Path)
    parser.add_argument("--blocks", type=int, help="throughput in a pool of so many blocks")
    parser.add_argument("--concurrency", default="16", help="requests there, one run each")
    parser.add_argument("--input", type=int, default=16384)
    parser.add_argument("--output", type=int, default=256)
    parser.add_argument("--shapes", default="1x1024,16x1024,64x1024,16x8192,16x16384")
    args = parser.parse_args()
    from vllm import LLM, SamplingParams

    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(CONFIGS[args.model]), encoding="utf-8")
        options = {"num_gpu_blocks_override": args.blocks} if args.blocks else {}
        llm = LLM(
            model=folder, load_format="dummy", skip_tokenizer_init=True, max_model_len=20480, gpu_memory_utilization=0.8,
            enable_prefix_caching=False, max_num_seqs=256, block_size=16, **options,
        )  # fmt: skip

    def run(batch: int, ctx: int, new: int) -> float:
        prompts = [{"prompt_token_ids": [random.randrange(5, 30000) for _ in range(ctx)]} for _ in range(batch)]
        params = SamplingParams(max_tokens=new, ignore_eos=True, temperature=0.0, detokenize=False)
        torch.cuda.synchronize()
        start = time.perf_counter()
        llm.generate(prompts, params, use_tqdm=False)
        torch.cuda.synchronize()
        return time.perf_counter() - start

    results: dict[str, dict[str, float]] = {}
    run(2, 128, 8)
    if args.blocks:
        for n in map(int, args.concurrency.split(",")):
            seconds = run(n, args.input, args.output)
            name = f"blocks{args.blocks}_C{n}_out{args.output}"
            results[name] = {"seconds": seconds, "output_tok_s": n * args.output / seconds}
            print(name, results[name], flush=True)
    else:
        for shape in args.shapes.split(","):
            batch, ctx = map(int, shape.split("x"))
            short, long = run(batch, ctx, 4), run(batch, ctx, 132)
            results[shape] = {"step_ms": (long - short) / 128 * 1e3, "prefill_s": short}
            print(shape, results[shape], flush=True)
    args.out.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
