"""What the Token Table and the planner cost, apart from each other, without a model's forward passes.

    python benchmarks/planner_cost.py [--rows 64] [--tokens 16384] [--budget 0.5] [--device cpu] [--threads 1] [--out FILE]

Every row holds a prompt from which a random share was evicted; then, again and again as an engine does every 16 steps, 16 tokens are
appended, 16 die, and a plan is made and published. Median milliseconds of each operation over all rows at once, and the same as a
multiple of one pass over the table (a copy of `held`), which compares machines. Written as JSON with what is needed to judge it.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from measure import ROOT, provenance
from torch import Tensor

from vtoken_sdk.runtime import Engine, EngineConfig, ReclaimOptions
from vtoken_sdk.runtime.config import Packing
from vtoken_sdk.runtime.model_loader import load_model
from vtoken_sdk.runtime.planner import plan
from vtoken_sdk.runtime.worker import Worker

SIZE, EVERY = 16, 16


class Stopwatch:
    """ms: all measurements of each operation, after the device has finished it."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.ms: defaultdict[str, list[float]] = defaultdict(list)

    def time(self, name: str, act: Callable[[], Any]) -> Any:
        self._synchronize()
        began = time.perf_counter()
        result = act()
        self._synchronize()
        self.ms[name].append((time.perf_counter() - began) * 1e3)
        return result

    def _synchronize(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


def make_worker(args: argparse.Namespace, packing: Packing) -> Worker:
    """The device state of an engine with room for these rows, and a model that is never run."""
    blocks_a_row = (args.tokens + (args.repeat + 1) * EVERY) // SIZE + 2
    config = EngineConfig(
        block_size=SIZE,
        pool_blocks=args.rows * blocks_a_row,
        max_running=args.rows,
        reclaim=ReclaimOptions(packing=packing),
    )
    worker = Engine(load_model("tiny", device=args.device), config).worker
    worker.table.reserve(args.tokens + (args.repeat + 1) * EVERY)
    return worker


def victims(live: Tensor, n: int) -> Tensor:
    """n random live tokens of each row, not its newest: bool, as live [B, T]."""
    lots = torch.rand(live.shape, device=live.device).masked_fill_(~live, 2.0)
    newest = (live * torch.arange(live.shape[1], device=live.device)).argmax(1, keepdim=True)
    lots.scatter_(1, newest, 2.0)
    return torch.zeros_like(live).scatter_(1, lots.topk(n, dim=1, largest=False).indices, True)


def measure(args: argparse.Namespace, packing: Packing) -> tuple[dict[str, list[float]], dict[str, float]]:
    """Milliseconds of each operation, and mean moves and freed blocks of a plan in the steady state."""
    worker = make_worker(args, packing)
    table, device, watch = worker.table, worker.pool.device, Stopwatch(worker.pool.device)
    options = worker.config.reclaim
    rows = torch.arange(args.rows, device=device)
    for row in range(args.rows):
        table.append(rows[row : row + 1], torch.tensor([args.tokens], device=device), args.tokens)
    kill = victims(table.slot[rows] >= 0, args.tokens - int(args.budget * args.tokens))
    watch.time("evict_token at the prompt's end", lambda: table.evict_token(rows, kill))
    while True:  # to the steady state; a plan is capped
        made = plan(table, rows, options)
        _, freed = table.apply_moves(made.rows, made.source, made.target, made.token, made.count)
        if int(freed) == 0:
            break
    ones = torch.ones_like(rows)
    moved = freed_blocks = 0
    for _ in range(args.repeat):
        for _ in range(EVERY):
            watch.time("append", lambda: table.append(rows, ones, 1))
        dying = victims(table.slot[rows] >= 0, EVERY)
        watch.time("evict_token", lambda dying=dying: table.evict_token(rows, dying))
        made = watch.time(f"plan {packing}", lambda: plan(table, rows, options))
        moves = (made.rows, made.source, made.target, made.token, made.count)
        counted, freed = watch.time("apply_moves", lambda moves=moves: table.apply_moves(*moves))
        moved, freed_blocks = moved + int(counted), freed_blocks + int(freed)
        watch.time("record", worker.record)
        watch.time("one pass", lambda: table.held.clone())
    table_check(worker, args.rows)
    return watch.ms, {"moves_a_plan": moved / args.repeat, "freed_blocks_a_plan": freed_blocks / args.repeat}


def table_check(worker: Worker, rows: int) -> None:
    """What was measured was right."""
    live = (worker.table.slot[:rows] >= 0).sum(1)
    assert torch.equal(live, worker.table.n_live[:rows])
    worker.pool.check()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=1 << 14)
    parser.add_argument("--budget", type=float, default=0.5)
    parser.add_argument("--repeat", type=int, default=10)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results" / "planner_cost.json")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    taken: dict[str, list[float]] = {}
    plans: dict[str, dict[str, float]] = {}
    with torch.inference_mode():
        for packing in ("fresh", "fill"):  # the last one's figures stand for what both measure
            ms, plans[packing] = measure(args, packing)
            taken |= ms
    one_pass = statistics.median(taken.pop("one pass"))
    result = {
        **provenance(torch.device(args.device)),
        "rows": args.rows,
        "tokens": args.tokens,
        "budget": args.budget,
        "block_size": SIZE,
        "one_pass_ms": one_pass,
        "operations": {
            name: {"median_ms": statistics.median(ms), "passes": statistics.median(ms) / one_pass, "n": len(ms)}
            for name, ms in taken.items()
        },
        "plans": plans,
    }
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
