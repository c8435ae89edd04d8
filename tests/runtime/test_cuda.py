"""The same engine on CUDA tensors: needs a GPU, and says so where there is none."""

from __future__ import annotations

import gc

import pytest
import torch

from vtoken_sdk.policies.h2o import H2O
from vtoken_sdk.policies.random import Random
from vtoken_sdk.runtime import ConfigError, Engine, EngineConfig, EvictOptions, RequestOutput, SamplingParams
from vtoken_sdk.runtime.model_loader import load_model

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

PROMPTS = [[(7 * i * i + 13 * i + k) % 500 + 5 for i in range(n)] for k, n in enumerate((300, 33, 129, 700))]


def outputs(device: str, runtime: str, policy: H2O | Random | None, **options: object) -> list[RequestOutput]:
    config = EngineConfig(runtime=runtime, pool_blocks=90, chunk=64, evict=EvictOptions("chunk", 4), **options)  # type: ignore[arg-type]
    engine = Engine(load_model("tiny", device=device), config, policy)  # type: ignore[arg-type]
    forced = tuple(range(20, 60))
    names = [engine.add_request(p, SamplingParams(forced=forced, logits=True)) for p in PROMPTS]
    while engine.has_work:
        engine.step()
        engine.check()
    assert engine.worker.pool.n_free() == engine.config.n_blocks
    return [engine.outputs[n] for n in names]


@pytest.mark.parametrize("policy", [H2O(), Random(), None], ids=["h2o", "random", "none"])
@pytest.mark.parametrize("runtime", ["native", "naive", "refill", "vtoken", "page1"])
def test_cuda_equals_cpu(runtime: str, policy: H2O | Random | None) -> None:
    if (policy is None) != (runtime == "native"):
        pytest.skip("native takes no policy, the others need one")
    cpu, gpu = outputs("cpu", runtime, policy), outputs("cuda", runtime, policy, poison=True)
    for a, b in zip(cpu, gpu, strict=True):
        assert a.finish_reason == b.finish_reason == "length"
        assert a.evictions == b.evictions
        assert a.logits is not None and b.logits is not None
        assert (a.logits - b.logits.cpu()).abs().max() < 1e-3


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")
def test_a_model_on_another_gpu_is_refused() -> None:
    model = load_model("tiny", device="cuda")
    model.hf.to("cuda:1")
    with pytest.raises(ConfigError, match=r"the model is on cuda:1, and the current device is cuda:0; call torch.cuda.set_device\(1\)"):
        Engine(model, EngineConfig(pool_blocks=16))


def test_an_engine_that_is_gone_does_not_spoil_the_graphs_of_the_next() -> None:
    """Its own graphs wait for Python's collector, which may run at any allocation, as in a capture."""
    outputs("cuda", "native", None)
    thresholds = gc.get_threshold()
    gc.set_threshold(1, 1, 1)
    try:
        later = outputs("cuda", "vtoken", Random())
    finally:
        gc.set_threshold(*thresholds)
    assert all(output.error is None for output in later)
