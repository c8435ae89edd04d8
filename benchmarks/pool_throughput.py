"""Concurrency and tokens a second in a pool of fixed size: prompts of 16,384 tokens, all there from the start.

    python benchmarks/pool_throughput.py [--model mistral-7b] [--blocks 5427] [--output 256] [--requests 16]
        [--cases native,vtoken:random,vtoken:streaming_llm,vtoken:h2o] [--budgets 0.5] [--every 16] [--out FILE]

A case is a runtime, and after a colon a policy. Dummy weights, greedy, no end token, no prefix cache, evictions between prefill chunks
of 2,048. `concurrency`: the most requests that ran at once; `capacity`: the most that were decoding at once while no request was
preempted. itl_ms: between a request's tokens, over all of them. Graphs are captured before the clock starts, and two requests run.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import statistics
import time
from pathlib import Path
from typing import Any

import torch
from measure import ROOT, need_gpu, quantile, write

from vtoken_sdk.policies.h2o import H2O
from vtoken_sdk.policies.random import Random
from vtoken_sdk.policies.streaming_llm import StreamingLLM
from vtoken_sdk.policy import EvictionPolicy
from vtoken_sdk.runtime import Engine, EngineConfig, EvictOptions, SamplingParams, StepRecord
from vtoken_sdk.runtime.model_loader import LoadedModel, load_model

POLICIES: dict[str, type[EvictionPolicy]] = {"h2o": H2O, "random": Random, "streaming_llm": StreamingLLM}


def run(engine: Engine, requests: int, tokens: int, output: int) -> tuple[float, list[StepRecord], list[list[float]]]:
    """Seconds, the steps' records, and when each request's tokens came."""
    draw = random.Random(0)
    names = [
        engine.add_request([draw.randrange(5, 30000) for _ in range(tokens)], SamplingParams(max_tokens=output, ignore_eos=True))
        for _ in range(requests)
    ]
    torch.cuda.synchronize()
    began = time.perf_counter()
    records = list(engine.run())
    torch.cuda.synchronize()
    return time.perf_counter() - began, records, [engine.outputs[name].token_times_s for name in names]


def measure(model: LoadedModel, case: str, budget: float, args: argparse.Namespace) -> dict[str, Any]:
    runtime, _, policy = case.partition(":")
    config = EngineConfig(
        runtime=runtime, pool_blocks=args.blocks, max_running=args.max_running, chunk=args.chunk, budget=budget,
        evict=EvictOptions("chunk", args.every),
    )  # type: ignore[arg-type]  # fmt: skip
    engine = Engine(model, config, POLICIES[policy]() if policy else None)
    batch = min(args.requests, args.max_running)
    engine.warm_up(args.input + args.output, batch)
    run(engine, 2 + args.chunk // args.input, args.input, 20)  # one more than share a step: compiles a chunk beside what decodes
    engine.concurrency_peak = 0
    seconds, records, times = run(engine, args.requests, args.input, args.output)
    gaps = [b - a for each in times for a, b in itertools.pairwise(each)]
    busy = [r for r in records if r.slots_held]
    made = {
        "concurrency": engine.concurrency_peak,
        "capacity": max(r.running for r in records if not r.prefill_tokens),
        "preempted": sum(r.preempted for r in records),
        "seconds": seconds,
        "output_tok_s": args.requests * args.output / seconds,
        "itl_ms_p50": quantile(gaps, 0.5) * 1e3,
        "itl_ms_p95": quantile(gaps, 0.95) * 1e3,
        "blocks_held": statistics.fmean(r.slots_held for r in busy) / 16,
        "waste": statistics.fmean(r.waste or 0.0 for r in busy),
        "live_tokens": statistics.fmean(r.live_tokens for r in busy),
        "bytes_moved": sum(r.bytes_moved for r in records),
        "stalls": engine.worker.reclaimer.stalls if engine.worker.reclaimer is not None else None,
    }
    del engine
    torch.cuda.empty_cache()
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="mistral-7b")
    parser.add_argument("--blocks", type=int, default=5427)
    parser.add_argument("--input", type=int, default=16384)
    parser.add_argument("--output", type=int, default=256)
    parser.add_argument("--requests", type=int, default=16)
    parser.add_argument("--max-running", type=int, default=64)
    parser.add_argument("--chunk", type=int, default=2048)
    parser.add_argument("--cases", default="native,vtoken:random,vtoken:streaming_llm,vtoken:h2o")
    parser.add_argument("--budgets", default="0.5")
    parser.add_argument("--every", type=int, default=16)
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results" / "pool_throughput.json")
    args = parser.parse_args()
    need_gpu()
    model = load_model(args.model, weights="dummy")
    results: dict[str, Any] = {}
    about = {k: v for k, v in vars(args).items() if k not in ("out", "cases", "budgets")}
    for budget in map(float, args.budgets.split(",")):
        for case in args.cases.split(","):
            if case == "native" and case in results:
                continue
            name = case if case == "native" else f"{case} {budget}"
            results[name] = measure(model, case, budget, args)
            print(name, json.dumps({k: round(v, 4) if isinstance(v, float) else v for k, v in results[name].items()}), flush=True)
            write(args.out, results, weights="dummy", dtype=str(model.dtype), **about)


if __name__ == "__main__":
    main()
