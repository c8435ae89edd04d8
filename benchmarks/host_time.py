"""What eviction costs the host: table, policy calls and planner, a decode step; and what hooks cost that evict nothing.

    python benchmarks/host_time.py [--requests 64] [--ctx 16384] [--out FILE]

The model is tiny: the host's work does not depend on its size, and here the host sets the pace, so its times hold no waiting for the
device but the one wait a step, which is not counted. Microseconds, means over the decode steps of the full batch. `nodes`: of the
decode step's CUDA graph.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import multiprocessing
import statistics
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import torch
from measure import ROOT, need_gpu, write

from vtoken_sdk.policies.full import Full
from vtoken_sdk.policies.h2o import H2O
from vtoken_sdk.policies.random import Random
from vtoken_sdk.policies.streaming_llm import StreamingLLM
from vtoken_sdk.policy import EvictionPolicy
from vtoken_sdk.runtime import Engine, EngineConfig, EvictOptions, SamplingParams, StepRecord
from vtoken_sdk.runtime.model_loader import LoadedModel, load_model

PARTS = ("policy_ms", "table_ms", "plan_ms", "copy_ms")


def steps(engine: Engine, requests: int, ctx: int, new: int) -> tuple[list[StepRecord], list[float]]:
    """Records of the steps in which all requests decode, and host seconds that launching each took."""
    import time

    for i in range(requests):
        engine.add_request([(7 * i + 13 * j) % 500 + 5 for j in range(ctx)], SamplingParams(max_tokens=new, ignore_eos=True))
    kept, took = [], []
    while engine.has_work:
        torch.cuda.synchronize()  # so that the wait for a record is none
        began = time.perf_counter()
        records = engine.step()
        spent = time.perf_counter() - began
        if records and records[-1].decode_tokens == requests:
            kept += records
            took.append(spent)
    return kept, took


def measure(
    model: LoadedModel, policy: EvictionPolicy | None, args: argparse.Namespace, *, every: int, capture: bool | None
) -> dict[str, Any]:
    blocks = args.requests * (-(-(args.ctx + 80) // 16) + 1)
    config = EngineConfig(
        runtime="vtoken" if policy else "native", pool_blocks=blocks, max_running=args.requests, chunk=2048,
        prefill_tokens=2048 * args.requests,
        evict=EvictOptions("chunk", every), capture_policy=capture,
    )  # fmt: skip
    engine = Engine(model, config, policy)
    steps(engine, args.requests, args.ctx, 20)
    kept, took = steps(engine, args.requests, args.ctx, 66)
    made = {part.replace("_ms", "_us"): statistics.fmean(getattr(r, part) for r in kept) * 1e3 for part in PARTS}
    made["table_policy_planner_us"] = made["policy_us"] + made["table_us"] + made["plan_us"]
    made["step_us"] = statistics.median(took) * 1e6
    made["evictions"] = sum(r.evicted for r in kept)
    made["plans"] = sum(r.plans for r in kept)
    return made


def nodes(model: LoadedModel, policy: EvictionPolicy | None) -> int:
    """Of the graph of a decode step of four requests."""
    keep = torch.cuda.CUDAGraph
    graphs = []

    class Kept(keep):  # type: ignore[misc, valid-type]
        def __new__(cls) -> Any:
            graph = keep(keep_graph=True)
            graphs.append(graph)
            return graph

    import vtoken_sdk.runtime.graphs as module

    module.torch.cuda.CUDAGraph = Kept  # type: ignore[misc]
    try:
        config = EngineConfig(runtime="vtoken" if policy else "native", pool_blocks=100, max_running=4, evict=EvictOptions("never", 0))
        engine = Engine(model, config, policy)
        rows = (0, 1, 2, 3)
        assert engine.worker.graphs is not None
        engine.worker.table.reserve(64)
        engine.worker.graphs.decode(rows)
    finally:
        module.torch.cuda.CUDAGraph = keep  # type: ignore[misc]
    runtime = (
        ctypes.CDLL("libcudart.so.13") if torch.version.cuda and torch.version.cuda.startswith("13") else ctypes.CDLL("libcudart.so.12")
    )
    count = ctypes.c_size_t(0)
    status = runtime.cudaGraphGetNodes(ctypes.c_void_p(graphs[0].raw_cuda_graph()), None, ctypes.byref(count))
    assert status == 0, status
    return count.value


CASES: dict[str, tuple[type[EvictionPolicy] | None, int, bool | None]] = {  # policy, every, capture_policy
    "native": (None, 16, None),
    "hooks only": (Full, 16, False),
    "hooks only, captured": (Full, 16, None),
    "h2o, every 16": (H2O, 16, False),
    "h2o, every 16, captured": (H2O, 16, None),
    "h2o, every step, captured": (H2O, 1, None),
    "random, every 16, captured": (Random, 16, None),
    "streaming_llm, every 16, captured": (StreamingLLM, 16, None),
}


def run_case(name: str, args: argparse.Namespace) -> dict[str, Any]:
    """In a process of its own: what engines leave behind slows the next one's host down."""
    model = load_model("tiny", weights="dummy")
    policy, every, capture = CASES[name]
    made = measure(model, policy() if policy else None, args, every=every, capture=capture)
    if not (policy and policy().needs):  # the step that evicts nothing
        try:
            made["nodes"] = nodes(model, policy() if policy else None)
        except (AttributeError, OSError, TypeError) as error:
            print("nodes:", type(error).__name__, error, flush=True)
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=64)
    parser.add_argument("--ctx", type=int, default=16384)
    parser.add_argument("--cases", help="names with ; between them (default: all)")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results" / "host_time.json")
    args = parser.parse_args()
    need_gpu()
    wanted = args.cases.split(";") if args.cases else list(CASES)
    if unknown := [name for name in wanted if name not in CASES]:
        parser.error(f"--cases: no {unknown[0]!r}; there are {', '.join(map(repr, CASES))}")
    results: dict[str, Any] = {}
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), max_tasks_per_child=1) as pool:
        for name in wanted:
            results[name] = pool.submit(run_case, name, args).result()
            print(name, json.dumps({k: round(v, 1) for k, v in results[name].items()}), flush=True)
            write(args.out, results, requests=args.requests, ctx=args.ctx, budget=0.5)


if __name__ == "__main__":
    main()
