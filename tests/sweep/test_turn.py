"""Jobs of one machine take turns on its GPUs."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from vtoken_sdk.sweep.turn import one_of, visible_gpus


@pytest.fixture(autouse=True)
def own_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))


def test_two_jobs_get_two_gpus_and_a_third_waits_for_the_first_to_be_free() -> None:
    waits, third = threading.Event(), list[str]()

    def wait_for_third() -> None:
        with one_of(["0", "1"], waits.set) as name:
            third.append(name)

    thread = threading.Thread(target=wait_for_third)
    with one_of(["0", "1"], pytest.fail) as second_to_go:
        with one_of(["0", "1"], pytest.fail) as first_to_go:
            assert {first_to_go, second_to_go} == {"0", "1"}
            thread.start()
            assert waits.wait(10)
            assert third == []
        thread.join(10)
        assert third == [first_to_go]


def test_gpus_are_named_as_the_user_restricted_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert visible_gpus() == ["0", "1"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3, GPU-8f")
    assert visible_gpus() == ["3", "GPU-8f"]
