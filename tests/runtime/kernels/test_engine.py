"""A whole engine by kernels gives what it gives by their plain twins: tokens, victims, books. Interpreted where there is no GPU."""

from __future__ import annotations

from typing import Any

import pytest

from tests.runtime.oracles import DEVICE, Run, assert_close, drive, prompt, tiny
from vtoken_sdk.policies.h2o import H2O
from vtoken_sdk.policies.random import Random
from vtoken_sdk.policy import EvictionPolicy
from vtoken_sdk.runtime import ConfigError, Engine, EngineConfig, EvictOptions, SamplingParams
from vtoken_sdk.runtime.model_loader import load_model

pytest.importorskip("triton", reason="Triton is for Linux")

ONE_LAYER: dict[str, Any] = {
    "num_hidden_layers": 1, "hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16,
}  # fmt: skip


def run(kernels: Any, runtime: Any, architecture: str, policy: EvictionPolicy | None) -> Run:
    evict = EvictOptions("chunk", 3)
    config = EngineConfig(
        runtime=runtime, pool_blocks=12, chunk=16, prefill_tokens=32, evict=evict, kernels=kernels, max_running=2, poison=True
    )
    engine = Engine(tiny(architecture, **ONE_LAYER).served, config, policy)
    forced = [SamplingParams(forced=tuple(prompt(9 + i, 4))) for i in range(4)]
    return drive(engine, [prompt(0, 7), prompt(1, 9), prompt(2, 11), prompt(3, 30)], forced)


@pytest.mark.parametrize(
    ("runtime", "architecture", "policy"),
    [("native", "gemma2", None), ("vtoken", "qwen3", H2O()), ("vtoken", "qwen2", Random()), ("page1", "mistral-window", H2O())],
)
def test_kernels_change_nothing(runtime: str, architecture: str, policy: EvictionPolicy | None) -> None:
    plain, fast = (run(kernels, runtime, architecture, policy) for kernels in ("torch", "triton"))
    assert fast.evictions == plain.evictions
    for one, other in zip(plain.outputs, fast.outputs, strict=True):
        assert one.token_ids == other.token_ids
        assert one.logits is not None and other.logits is not None
        assert_close(other.logits, one.logits)

    def books(run: Run) -> list[dict[str, Any]]:
        return [{k: v for k, v in r.as_row().items() if k != "time_s" and not k.endswith("_ms")} for r in run.records]

    assert books(fast) == books(plain)


def test_kernels_without_a_gpu_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    if DEVICE.type == "cuda":
        pytest.skip("there is a GPU")
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with pytest.raises(ConfigError, match="kernels=triton: the model is on the CPU"):
        Engine(load_model("tiny"), EngineConfig(kernels="triton"))
