"""Every kernel compiles for the GPUs it is written for, and fits them, where there is none."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="Triton is for Linux")

import vtoken_sdk.runtime.kernels as kernels

SHARED = {89: 99 << 10, 90: 227 << 10}  # bytes that one program may have; Ampere has more than Ada


@pytest.mark.slow
@pytest.mark.parametrize("capability", [89, 90])
def test_every_kernel_compiles_and_fits(capability: int, tmp_path: Path) -> None:
    env = {**os.environ, "TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path)}
    script = Path(__file__).with_name("compile_all.py")
    done = subprocess.run([sys.executable, str(script), str(capability)], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    shared: dict[str, list[int]] = json.loads(done.stdout.splitlines()[-1])["shared"]
    assert max(max(each) for each in shared.values()) <= SHARED[capability], shared
    helpers = {"_hidden", "_join", "_weights", "_tanh", "_rotated"}  # called by kernels
    assert capability != 90 or set(shared) == jitted() - helpers


def jitted() -> set[str]:
    """The functions under runtime/kernels that Triton compiles."""
    found = set()
    for path in Path(kernels.__file__).parent.glob("*.py"):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.FunctionDef) and any("triton.jit" in ast.unparse(d) for d in node.decorator_list):
                found.add(node.name)
    return found
