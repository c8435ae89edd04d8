"""The page of the policies' quality is the table of its results."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from vtoken_sdk.registry import available_policies

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "policy_quality_cpu.json"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("policy_quality", ROOT / "benchmarks" / "policy_quality.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_shows_what_was_measured(script: ModuleType) -> None:
    known = json.loads(RESULTS.read_text())
    assert {(row["policy"], row["budget"]) for row in known["rows"]} == {(p, b) for p in available_policies() for b in (0.1, 0.25, 0.5)}
    assert len(known["setup"]["seeds"]) >= 3
    assert script.as_markdown(known) in (ROOT / "docs" / "quality.md").read_text()


def test_intervals_are_over_seeds_and_paired(script: ModuleType) -> None:
    """Two policies that differ by the same amount in every seed differ for certain, however much the seeds differ."""
    values = [0.0, 1.0, 2.0, 5.0]
    mean, low, high = script.over_seeds(values)
    assert (mean, 0 <= low < mean < high <= 5) == (2.0, True)
    assert script.over_seeds([v + 1 for v in values]) == pytest.approx((mean + 1, low + 1, high + 1))  # the same seeds were drawn
    assert script.over_seeds([0.5]) == (0.5, 0.5, 0.5)

    def row(policy: str, shift: float) -> dict[str, Any]:
        names = ("kl", "top1", "nll", "nll_full", "needle_nll", "needle_nll_full", "needle_accuracy", "blocks_naive")
        blocks = {f"blocks_{name}": 4 for name in ("native", "vtoken", "ideal")}
        counts = {"needles": [2, 2, 1, 2], "needles_failed_by_full": 1}
        return {"policy": policy, "budget": 0.5, **dict.fromkeys(names, values), "kl": [v + shift for v in values], **blocks, **counts}

    setup = {"model": "m", "weights": "real", "dtype": "torch.float32", "device": "cpu", "ctx": 64, "seeds": [3, 4, 5, 6], "items": 2}
    known = {"setup": setup | {"tokens": 8}, "date": "2026-11-30", "commit": "c", "rows": [row("other", 0.25), row("streaming_llm", 0)]}
    table = script.as_markdown(known)
    assert "| 0.5 | `other` | 2.250 [" in table and " | 0.250 [0.250, 0.250] | " in table
    assert "4 seeds, each with 2 texts of 64 tokens (8 tokens judged) and 2 needles; 7 needles that the full cache finds (1 more" in table
    assert "| - |" in script.as_markdown(known | {"rows": known["rows"][:1]})  # nothing to compare with


def test_the_value_of_a_seed_is_the_mean_of_its_items(script: ModuleType) -> None:
    items = object.__new__(script.Items)
    items.seeds = [7, 3]
    assert items.by_seed([1.0, 2.0, 6.0], [3, 7, 7]) == [4.0, 1.0]
