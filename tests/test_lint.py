"""The linters pass, each run as a developer runs it: from the root, with the options in pyproject.toml."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from .source_copy import ROOT, copy_sources


def lint(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """Run a tool of this environment in `folder`."""
    tool = Path(sys.executable).parent / command[0]
    plain = {**os.environ, "NO_COLOR": "1", "TERM": "dumb"}
    return subprocess.run([tool, *command[1:]], cwd=folder, env=plain, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("command", ["ruff check", "ruff format --check", "mypy", "lint-imports --no-logo"])
def test_linter_passes(command: str) -> None:
    done = lint(ROOT, *command.split())
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("module", "text", "contract"),
    [
        ("runtime/fault.py", "import vtoken_sdk.sweep", "Imports point one way"),
        ("runtime/fault.py", "import vtoken_sdk.policies.h2o", "Imports point one way"),
        ("policies/fault.py", "import vtoken_sdk.runtime", "Imports point one way"),
        ("vtoken_sdk/sweep/fault.py", "import vtoken_sdk.cli", "Imports point one way"),
        ("vtoken_sdk/unplaced.py", "import math", "Imports point one way"),
        ("runtime/fault.py", "import wandb", "The runtime and the policies know no configuration, tracking or report library"),
        ("policies/fault.py", "import policies.h2o", "Folders of the top level are imported through vtoken_sdk"),
    ],
)
def test_import_contract_catches(module: str, text: str, contract: str, tmp_path: Path) -> None:
    spoiled = copy_sources(tmp_path / "copy")
    (spoiled / module).write_text(text + "\n")
    done = lint(spoiled, "lint-imports", "--no-logo", "--no-cache")
    assert done.returncode == 1
    assert f"{contract} BROKEN" in done.stdout


@pytest.mark.parametrize("name", ["policies", "runtime", "conf", "templates"])
def test_ruff_refuses_the_bare_name(name: str, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(f"import {name}.x\n\nprint({name})\n")
    done = lint(tmp_path, "ruff", "check", "--no-cache", "--config", str(ROOT / "pyproject.toml"), "mine.py")
    assert "TID251" in done.stdout
