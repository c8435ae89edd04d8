"""Decode steps while the side stream copies tokens in every step, against the same steps without.

    python benchmarks/sustained_reclaim.py [--batch 16] [--ctx 8192] [--moves 1024,256] [--out FILE]

The copies are those of a plan, with its events (the copy waits for the main stream, and a few steps later the main stream for the copy),
between slots of a part of the pool that no request holds: the traffic without the eviction that would call for it. Runs alternate.
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

from vtoken_sdk.runtime import Engine, EngineConfig, SamplingParams
from vtoken_sdk.runtime.copy_stream import SideStream
from vtoken_sdk.runtime.model_loader import load_model
from vtoken_sdk.runtime.planner import Plan


def plan_of(engine: Engine, moves: int, spare: int) -> Plan:
    """Copies among the pool's last `spare` blocks, which nobody holds."""
    cache = engine.worker.cache
    slots = cache.n_slots - 1 - torch.randperm(spare * 16, device="cuda")[: 2 * moves]
    none = torch.zeros(moves, dtype=torch.int64, device="cuda")
    return Plan(none[:1], none, none, none, slots[:moves], slots[moves:], torch.tensor(moves, device="cuda"))


def run(engine: Engine, batch: int, ctx: int, steps: int, plan: Plan | None) -> list[float]:
    for _ in range(batch):
        engine.add_request([random.randrange(5, 30000) for _ in range(ctx)], SamplingParams(max_tokens=steps, ignore_eos=True))
    streams = [SideStream(engine.worker.cache) for _ in range(3)]
    times: list[float] = []
    n = 0
    for record in engine.run():
        if record.decode_tokens == batch:
            times.append(time.perf_counter())
            if plan is not None:
                stream = streams[n % 3]
                if n >= 3:
                    stream.join()
                stream.submit(plan)
                n += 1
    torch.cuda.synchronize()
    return [b - a for a, b in itertools.pairwise(times[8:])]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="llama-3.1-8b")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--ctx", type=int, default=8192)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--moves", default="1024,256")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results" / "sustained_reclaim.json")
    args = parser.parse_args()
    need_gpu()
    model = load_model(args.model, weights="dummy")
    blocks = args.batch * (-(-(args.ctx + args.steps) // 16) + 1)
    engine = Engine(model, EngineConfig(runtime="native", pool_blocks=blocks + 1024, max_running=args.batch, chunk=16384))
    run(engine, args.batch, args.ctx, 12, plan_of(engine, 64, 512))
    results: dict[str, Any] = {}
    times: dict[str, list[float]] = {}
    for _ in range(args.rounds):
        for name in ("off", *args.moves.split(",")):
            plan = None if name == "off" else plan_of(engine, int(name), 1000)
            times.setdefault(name, []).extend(run(engine, args.batch, args.ctx, args.steps, plan))
    for name, each in times.items():
        made = {"mean_ms": statistics.fmean(each) * 1e3, **{f"p{q}_ms": quantile(each, q / 100) * 1e3 for q in (50, 95, 99)}}
        results[name] = made | {"over_off": {k: v / results["off"][k] - 1 for k, v in made.items()} if name != "off" else {}}
        print(name, json.dumps(results[name]), flush=True)
    write(args.out, results, model=args.model, weights="dummy", batch=args.batch, ctx=args.ctx)


if __name__ == "__main__":
    main()
