"""The vToken paper's experiments with the shapes of its models, each a run of vtoken-sweep: random weights, one GPU.

    python benchmarks/paper_experiments.py [--only memory:mistral-7b,capacity:llama-3.1-8b,...] [--work DIR] [--out DIR]

Needs the package's own dependencies (hydra, say). `chunks` is `throughput` with shorter chunks of a prompt for h2o: attention mass makes
them slower, and the tokens beside them. Writes experiment_NAME_MODEL_h200.json into --out: the command, the findings with the paper's
figures, and a few columns of every job. Loads are smaller than the experiments' own, to fit a few minutes.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from measure import ROOT, write

POOLS = {"mistral-7b": 5427, "llama-3.1-8b": 11519}
CAPACITY = {"mistral-7b": ((5, 6), (10, 11)), "llama-3.1-8b": ((11, 12), (22, 23))}  # requests tried: native, vtoken
LOADS = {"mistral-7b": ("requests=20", "request_rate=1,inf"), "llama-3.1-8b": ("requests=26", "request_rate=1,inf")}
COLUMNS = (
    "job", "status", "runtime", "policy", "budget", "seed", "requests", "request_rate", "concurrency_peak", "preemptions", "cut_short",
    "blocks_held", "blocks_ideal", "utilization", "waste", "kept", "output_tok_s", "ttft_ms_p50", "itl_ms_p50", "itl_ms_p95", "plan_ms",
    "copy_ms", "policy_ms", "table_ms", "bytes_moved", "victims_sha256", "seconds",
)  # fmt: skip


def options(experiment: str, model: str) -> list[str]:
    """What the experiment's own options leave open, or what is smaller here."""
    if experiment == "memory":
        return ["policy=h2o,streaming_llm,random", "budget=0.5", "runtime=native,naive,vtoken", "output_tokens=128"]
    if experiment == "capacity":
        native, vtoken = CAPACITY[model]
        tried = [f"runtime=native requests={n}" for n in native] + [f"runtime=vtoken requests={n}" for n in vtoken]
        return ["evict.prefill=chunk", "runtime=native", "requests=1", f"vary={tried}"]
    if experiment in ("throughput", "chunks"):
        same = ["evict.prefill=chunk", "output_tokens=256", "num_warmups=2", *LOADS[model]]
        if experiment == "throughput":
            return [*same, "policy=streaming_llm,h2o", "runtime=native,vtoken"]
        tried = ["runtime=native", "runtime=vtoken policy=streaming_llm", "runtime=vtoken policy=h2o chunk=1536"]
        return [*same, "runtime=native", f"vary={tried}"]
    return ["seed=0,1", "num_warmups=2"]  # overhead


def run(experiment: str, model: str, folder: Path) -> list[str]:
    named = "throughput" if experiment == "chunks" else experiment
    words = [f"experiment={named}", f"model={model}", "weights=dummy", f"pool_blocks={POOLS[model]}", "tracker=jsonl"]
    words += options(experiment, model)
    program = [sys.executable, "-c", "from vtoken_sdk.cli import main; main()"]
    done = subprocess.run([*program, *words, f"dir={folder}"], stdin=subprocess.DEVNULL, check=False)
    if done.returncode and not (folder / "experiment.json").exists():
        raise SystemExit(f"vtoken-sweep ended with {done.returncode}")
    return words


def main() -> None:
    every = [f"{experiment}:{model}" for model in POOLS for experiment in ("memory", "capacity", "throughput", "chunks", "overhead")]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(every))
    parser.add_argument("--work", type=Path, default=Path("outputs") / "paper_experiments")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results")
    args = parser.parse_args()
    for name in args.only.split(","):
        experiment, _, model = name.partition(":")
        folder = args.work.resolve() / f"{experiment}_{model}"
        began = time.perf_counter()
        words = run(experiment, model, folder)
        told: dict[str, Any] = json.loads((folder / "experiment.json").read_text(encoding="utf-8"))
        rows = [{k: row[k] for k in COLUMNS if k in row} for row in pq.read_table(folder / "results.parquet").to_pylist()]
        path = args.out / f"experiment_{experiment}_{model}_h200.json"
        write(path, told["findings"], command=f"vtoken-sweep {' '.join(words)}", weights="dummy", caveats=told["caveats"], jobs=rows)
        print(f"{name}: {time.perf_counter() - began:.0f} s", flush=True)


if __name__ == "__main__":
    main()
