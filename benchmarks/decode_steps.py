"""Decode step time and prefill time per shape, dummy weights: what vLLM is measured by.

    python benchmarks/decode_steps.py [--model llama-3.1-8b] [--shapes 1x1024,16x1024,...] [--policy h2o --budget 0.5] [--out FILE]

Step time is (time for 132 new tokens - time for 4) / 128, so that the prefill cancels out; the prefill's is the time for 4. Greedy, no end
token, no prefix cache, blocks of 16. With a policy, the prompt is so long that the budget keeps the context of it: equal live tokens.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import time
from pathlib import Path
from typing import Any

import torch
from measure import ROOT, need_gpu, quantile, write

from vtoken_sdk.policies.h2o import H2O
from vtoken_sdk.policies.random import Random
from vtoken_sdk.policies.streaming_llm import StreamingLLM
from vtoken_sdk.policy import EvictionPolicy
from vtoken_sdk.runtime import Engine, EngineConfig, EvictOptions, SamplingParams
from vtoken_sdk.runtime.model_loader import LoadedModel, load_model

POLICIES: dict[str, type[EvictionPolicy]] = {"h2o": H2O, "random": Random, "streaming_llm": StreamingLLM}


def run(engine: Engine, batch: int, ctx: int, new: int) -> tuple[float, list[float]]:
    """Seconds until all are done, and seconds between the records of the last steps."""
    prompts = [[random.randrange(5, 30000) for _ in range(ctx)] for _ in range(batch)]
    params = SamplingParams(max_tokens=new, ignore_eos=True)
    torch.cuda.synchronize()
    began = time.perf_counter()
    for prompt in prompts:
        engine.add_request(prompt, params)
    times = []
    for record in engine.run():
        if record.decode_tokens == batch:
            times.append(time.perf_counter())
    torch.cuda.synchronize()
    return time.perf_counter() - began, [b - a for a, b in itertools.pairwise(times)]


def measure(model: LoadedModel, batch: int, ctx: int, args: argparse.Namespace) -> dict[str, Any]:
    tokens = round(ctx / args.budget) if args.policy else ctx
    config = EngineConfig(
        runtime=args.runtime if args.policy else "native",
        pool_blocks=batch * (-(-(tokens + 140) // 16) + 1) + 64,
        max_running=batch,
        chunk=args.chunk,
        budget=args.budget,
        evict=EvictOptions("end", args.every),
        cuda_graphs=not args.eager,
    )
    engine = Engine(model, config, POLICIES[args.policy]() if args.policy else None)
    run(engine, min(batch, 2), 128, 8)
    run(engine, batch, tokens, 4 if args.prefill_only else 140)  # compiles, captures, and grows the table to its size
    short, _ = run(engine, batch, tokens, 4)
    if args.prefill_only:
        del engine
        torch.cuda.empty_cache()
        return {"prefill_s": short, "prompt": tokens}
    long, gaps = run(engine, batch, tokens, 132)
    made = {
        "step_ms": (long - short) / 128 * 1e3, "prefill_s": short, "live_tokens": ctx, "prompt": tokens,
        "median_ms": quantile(gaps, 0.5) * 1e3, "p95_ms": quantile(gaps, 0.95) * 1e3,
    }  # fmt: skip
    del engine
    torch.cuda.empty_cache()
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="llama-3.1-8b")
    parser.add_argument("--shapes", default="1x1024,16x1024,64x1024,16x8192,16x16384")
    parser.add_argument("--policy", choices=sorted(POLICIES))
    parser.add_argument("--runtime", default="vtoken")
    parser.add_argument("--budget", type=float, default=0.5)
    parser.add_argument("--every", type=int, default=16)
    parser.add_argument("--chunk", type=int, default=16384)
    parser.add_argument("--prefill-only", action="store_true", help="only the time for 4 tokens")
    parser.add_argument("--eager", action="store_true", help="without CUDA graphs")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results" / "decode_steps.json")
    args = parser.parse_args()
    need_gpu()
    model = load_model(args.model, weights="dummy")
    about = {"model": args.model, "weights": "dummy", "dtype": str(model.dtype), "policy": args.policy}
    about |= {"chunk": args.chunk}
    results = {}
    for shape in args.shapes.split(","):
        batch, ctx = map(int, shape.split("x"))
        results[shape] = measure(model, batch, ctx, args)
        print(shape, json.dumps(results[shape]), flush=True)
        write(args.out, results, budget=args.budget, every=args.every, **about)  # a run that is cut short keeps what it has


if __name__ == "__main__":
    main()
