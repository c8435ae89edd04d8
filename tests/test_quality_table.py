"""The page of the policies' quality is the table of its results."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

from vtoken_sdk.registry import available_policies

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "policy_quality_cpu.json"


def test_the_page_shows_what_was_measured() -> None:
    spec = importlib.util.spec_from_file_location("policy_quality", ROOT / "benchmarks" / "policy_quality.py")
    assert spec and spec.loader
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    known = json.loads(RESULTS.read_text())
    assert {(row["policy"], row["budget"]) for row in known["rows"]} == {(p, b) for p in available_policies() for b in (0.1, 0.25, 0.5)}
    assert script.as_markdown(known) in (ROOT / "docs" / "quality.md").read_text()
