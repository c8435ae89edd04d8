"""On a machine without a GPU, and from one process to the next."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
PROGRAM = """
import importlib, pkgutil
import torch
import vtoken_sdk.runtime
for module in pkgutil.iter_modules(vtoken_sdk.runtime.__path__):
    importlib.import_module(f"vtoken_sdk.runtime.{module.name}")
assert not torch.cuda.is_initialized(), "an import touched the driver"
from vtoken_sdk.policies.random import Random
from vtoken_sdk.runtime import Engine, EngineConfig, EvictOptions, SamplingParams
from vtoken_sdk.runtime.model_loader import load_model
torch.set_num_threads(1)
model = load_model("tiny", weights="auto", dtype="auto", device="auto")
engine = Engine(model, EngineConfig(pool_blocks=20, chunk=16, evict=EvictOptions("chunk", 3)), Random())
prompts = [[(7 * i + 13 * j) % 512 for j in range(20 + i)] for i in range(4)]
outputs = engine.generate(prompts, SamplingParams(max_tokens=12, temperature=0.8))
print([(o.token_ids, [(e.length, e.ids) for e in o.evictions]) for o in outputs])
"""


def test_the_same_run_in_two_new_processes_without_a_gpu() -> None:
    """Every module of the runtime imports without touching a driver; tokens and victims repeat, whatever the hash seed."""
    said = []
    for hash_seed in ("1", "2"):
        environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(ROOT)}
        done = subprocess.run([sys.executable, "-W", "error", "-c", PROGRAM], env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        said.append(done.stdout)
    assert said[0] == said[1]
    assert said[0].count("(") > 20
