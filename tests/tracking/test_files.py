"""Files are written whole or not at all."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from vtoken_sdk.tracking.files import JobFolder, plain, read_json, write_json, write_whole


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("old")
    code = (
        "import resource, sys; from pathlib import Path; from vtoken_sdk.tracking.files import write_whole\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
        "write_whole(Path(sys.argv[1]), 'x' * 100_000)\n"
    )
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path / "a.json")], env=env, capture_output=True, text=True, check=False)
    assert "File too large" in done.stderr
    assert [p.name for p in tmp_path.iterdir()] == ["a.json"]
    assert (tmp_path / "a.json").read_text() == "old"


def test_any_number_becomes_json(tmp_path: Path) -> None:
    value = {
        "nan": math.nan,
        "inf": [np.float32("inf"), -math.inf],
        "np": np.int64(3),
        "t": torch.tensor([1.5, math.nan]),
        "p": Path("x"),
        "b": True,
    }
    write_json(tmp_path / "a.json", value)
    assert read_json(tmp_path / "a.json") == {"nan": None, "inf": [None, None], "np": 3, "t": [1.5, None], "p": "x", "b": True}
    assert plain(torch.tensor(2)) == 2


@pytest.mark.parametrize("content", [None, "", "{", "[1]", '{"status": '])
def test_a_broken_or_missing_file_is_no_result(tmp_path: Path, content: str | None) -> None:
    folder = JobFolder(tmp_path)
    folder.say("done")
    if content is not None:
        (tmp_path / "result.json").write_text(content)
    assert not folder.done
    write_whole(tmp_path / "result.json", json.dumps({"row": {}}))
    assert folder.done


def test_a_failure_is_told_even_where_nothing_can_be_written(tmp_path: Path) -> None:
    JobFolder(tmp_path / "missing").fail("reason", "trace")
    folder = JobFolder(tmp_path)
    folder.fail("reason", "trace\nof many lines")
    assert folder.status == {"status": "failed", "error": "reason"}
    assert (tmp_path / "error.txt").read_text() == "trace\nof many lines\n"
