"""Values and keys of options, without torch."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
import yaml

from vtoken_sdk.nearest import nearest
from vtoken_sdk.sweep.axes import axes_of
from vtoken_sdk.sweep.settings import KEYS, check_keys, flatten, nest, shipped_text
from vtoken_sdk.sweep.values import UsageError

from .conftest import ROOT


@pytest.mark.parametrize(
    ("raw", "parsed"), [("16k", 16384), (12288, 12288), ("1m", 1048576), ("1M", 1048576), ("1.5k", 1536), ("512", 512)]
)
def test_sizes_take_suffixes(raw: object, parsed: int) -> None:
    assert axes_of({"ctx": raw}) == {"ctx": [parsed]}


@pytest.mark.parametrize(
    ("raw", "parsed"), [(0.5, 0.5), ("0.5", 0.5), (1.0, 1.0), ("1.0", 1.0), (1, 1), ("1", 1), ("2k", 2048), (512, 512)]
)
def test_a_budget_is_a_ratio_or_tokens_by_the_way_it_is_written(raw: object, parsed: float) -> None:
    (value,) = axes_of({"budget": raw})["budget"]
    assert (value, type(value)) == (parsed, type(parsed))


def test_one_token_and_the_whole_prompt_are_two_budgets() -> None:
    assert axes_of({"budget": "1,1.0,1"}) == {"budget": [1, 1.0]}


@pytest.mark.parametrize(
    ("key", "raw"),
    [
        *(("budget", v) for v in ("sixty", 0, -1, 0.0, 1.5, float("nan"), True, None, "0.3k", [])),
        *(("ctx", v) for v in (0, -5, "16q", 16.5, "nan", True)),
        *(("block_size", v) for v in (16.0, "16.0", 0)),
        *(("reclaim.refill", v) for v in (1, "yes")),
        *(("runtime", v) for v in ("vtokn", None)),
        ("threshold", "half"),
        ("wandb.mode", "of"),
        ("wandb.timeout", float("inf")),
        ("wandb.timeout", -1),
        ("policy", ""),
        ("seed", -1),
    ],
)
def test_a_bad_value_is_refused_by_its_key(key: str, raw: object) -> None:
    with pytest.raises(UsageError, match=f"^{key}"):
        axes_of({key: raw})


@pytest.mark.parametrize(
    ("word", "found"), [("bugdet", "budget"), ("prefill", "evict.prefill"), ("evict.evry", "evict.every"), ("blok_size", "block_size")]
)
def test_the_nearest_key_is_offered(word: str, found: str) -> None:
    assert nearest(word, KEYS) == found
    with pytest.raises(UsageError, match=re.escape(f"unknown key {word}; did you mean {found}?")):
        check_keys([word])


def test_a_group_is_no_key() -> None:
    with pytest.raises(UsageError, match=r"set evict\.prefill or evict\.every"):
        check_keys(["evict"])


def test_yaml_booleans_mean_on_and_off() -> None:
    assert axes_of({"quality.mode": True}) == {"quality.mode": ["on"]}
    assert axes_of({"quality.mode": False}) == {"quality.mode": ["off"]}


def test_nesting_is_undone_by_flattening() -> None:
    flat = {"evict.every": 4, "evict.prefill": "end", "ctx": 3}
    assert flatten(nest(flat)) == flat


def test_the_shipped_file_has_every_key_with_a_comment() -> None:
    shipped = yaml.safe_load(shipped_text())
    assert shipped.pop("option") == {}
    assert set(flatten(shipped)) == set(KEYS)
    for line in shipped_text().splitlines():
        if line and not line.startswith("#"):
            key = line.partition(":")[0].strip()
            assert "#" in line or isinstance(shipped[key], dict), f"{key} has no comment"


def test_help_lists_policies_and_keys_without_torch() -> None:
    code = "import sys; sys.argv = ['vtoken-sweep', '--help']; from vtoken_sdk import cli; cli.main(); sys.exit('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for word in ("h2o", "streaming_llm", "evict:", "a ratio of the prompt"):
        assert word in done.stdout
