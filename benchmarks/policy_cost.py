"""What each bundled policy's own code costs a call: `vtoken-check NAME --bench` for all of them, kept as JSON.

    python benchmarks/policy_cost.py [--device cpu] [--threads 1] [--tokens 16384] [--out FILE]

No model runs: `sync_new_tokens` learns from one new token of each of 64 requests, `evict_token` halves requests whose tokens are all live.
A policy that calls cache.score is asked about 4 requests of 4,096 tokens in 2 layers, because its cost grows with both. About three minutes
on one core. docs/make_pages.py puts the figures on the policies' pages.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from measure import ROOT, provenance

from vtoken_sdk.check import factory_of
from vtoken_sdk.check.bench import KEYS, PLAIN, Cost, bench
from vtoken_sdk.registry import GROUP, available_policies

BUNDLED = [name for name, module in available_policies().items() if module == f"{GROUP}.{name}"]


def row(cost: Cost) -> dict[str, Any]:
    shape = cost.shape
    sizes = {"requests": shape.requests, "tokens": shape.tokens, "layers": shape.layers, "kv_heads": shape.heads, "head_size": shape.size}
    return {"method": cost.method, "ms": round(cost.ms, 3), "calls": cost.calls, **sizes}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--tokens", type=int, default=PLAIN.tokens, help="of each request, where no keys are read")
    parser.add_argument("--out", type=Path, default=None, help="default: benchmarks/results/policy_cost_DEVICE.json")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    device = torch.device(args.device)
    plain = replace(PLAIN, tokens=args.tokens)
    policies: dict[str, list[dict[str, Any]]] = {}
    with torch.inference_mode():
        for name in BUNDLED:
            policies[name] = [row(cost) for cost in bench(factory_of(name), device, plain, KEYS)]
            print(name, *(f"{call['method']} {call['ms']:,.2f} ms" for call in policies[name]), sep="  ", flush=True)
    out = args.out or ROOT / "benchmarks" / "results" / f"policy_cost_{args.device}.json"
    out.write_text(json.dumps({**provenance(device), "policies": policies}, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
