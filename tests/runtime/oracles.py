"""Truth for engine tests that shares no code with the engine: transformers' own eager attention over a dense, masked sequence.

The models are tiny and random, but made so that faults show: wide weights, and noise on every bias and norm. With the default
initialization a dropped bias, or a wrong position, changes nothing.
"""

from __future__ import annotations

import functools
import os
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.models.gemma2 import Gemma2Config, Gemma2ForCausalLM
from transformers.models.llama import LlamaConfig, LlamaForCausalLM
from transformers.models.mistral import MistralConfig, MistralForCausalLM
from transformers.models.qwen2 import Qwen2Config, Qwen2ForCausalLM
from transformers.models.qwen3 import Qwen3Config, Qwen3ForCausalLM

from vtoken_sdk.policy import EvictionPolicy
from vtoken_sdk.runtime import Engine, EngineConfig, Eviction, RequestOutput, SamplingParams, StepRecord
from vtoken_sdk.runtime.model_loader import LoadedModel

# The engine's side of every test that uses this module: VTOKEN_TEST_DEVICE=cuda puts it on a GPU, kernels and graphs included.
DEVICE = torch.device(os.environ.get("VTOKEN_TEST_DEVICE", "cpu"))

VOCABULARY = 1000
TOLERANCE = 1e-3  # fp32: two right ways differ by about 3e-5, faults by 0.1 to 10
WINDOW = 24  # of the sliding-window models: shorter than most prompts

SHAPE: dict[str, Any] = {
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 4096,
    "initializer_range": 0.1,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
    "attn_implementation": "eager",
}
_ARCHITECTURES: dict[str, tuple[type[PreTrainedConfig], type[PreTrainedModel], dict[str, Any]]] = {
    "llama": (LlamaConfig, LlamaForCausalLM, {}),
    "mistral": (MistralConfig, MistralForCausalLM, {"sliding_window": None}),
    "mistral-window": (MistralConfig, MistralForCausalLM, {"sliding_window": WINDOW}),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM, {}),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM, {}),
    "gemma2": (
        Gemma2Config,
        Gemma2ForCausalLM,
        # Caps that the scores and logits of these weights reach, and a scale that is not 1 / sqrt(head_dim).
        {
            "sliding_window": WINDOW,
            "attn_logit_softcapping": 4.0,
            "final_logit_softcapping": 8.0,
            "query_pre_attn_scalar": 16,
            "tie_word_embeddings": False,
        },
    ),
}
ARCHITECTURES = tuple(_ARCHITECTURES)


@dataclass(frozen=True)
class Tiny:
    """The same random weights twice: `served` by engines, `oracle` with transformers' eager attention."""

    served: LoadedModel
    oracle: PreTrainedModel


def build(architecture: str, dtype: torch.dtype = torch.float32, **changes: Any) -> PreTrainedModel:
    """A random model: seed 0, and normal noise of 0.3 on every one-dimensional parameter."""
    config, cls, own = _ARCHITECTURES[architecture]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = cls(config(**{**SHAPE, **own, **changes})).eval()
    noise = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn(parameter.shape, generator=noise) * 0.3)
    return model.requires_grad_(False).to(dtype)


SMALL: dict[str, Any] = {
    "num_hidden_layers": 2,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
}


def small(architecture: str = "llama") -> Tiny:
    """A quicker model, for tests that run many engines."""
    return tiny(architecture, **SMALL)


@functools.cache
def tiny(architecture: str = "llama", dtype: torch.dtype = torch.float32, **changes: Any) -> Tiny:
    """A pair of models, made once a process."""
    served = torch.nn.Module.to(build(architecture, dtype, **changes), DEVICE)
    return Tiny(LoadedModel.from_transformers(served), build(architecture, dtype, **changes))


def prompt(seed: int, n: int, vocabulary: int = VOCABULARY) -> list[int]:
    """n different-looking token ids. A prompt of one repeated token hides all faults of attention."""
    draw = random.Random(seed)
    return [draw.randrange(vocabulary) for _ in range(n)]


# -- dense forward passes ---------------------------------------------------------------------------------------------------


def dense_logits(model: PreTrainedModel, ids: Sequence[int], tokens: Sequence[int]) -> Tensor:
    """fp32 [n, V]: transformers' logits at the positions that `tokens` were sampled from, teacher-forced, by its own masks."""
    with torch.inference_mode():
        out = model(torch.tensor([[*ids, *tokens[:-1]]]), use_cache=False)
    return out.logits[0, len(ids) - 1 :].float()


def masked_logits(model: PreTrainedModel, ids: Sequence[int], tokens: Sequence[int], evictions: Iterable[Eviction]) -> Tensor:
    """As `dense_logits`, where queries at positions >= an eviction's length do not see its tokens. The window is part of the mask."""
    sequence = [*ids, *tokens[:-1]]
    n = len(sequence)
    distance = torch.arange(n)[:, None] - torch.arange(n)
    hidden = distance < 0
    for eviction in evictions:
        hidden[eviction.length :, list(eviction.ids)] = True
    window = getattr(model.config, "sliding_window", None)
    lowest = torch.finfo(model.dtype).min

    def additive(hide: Tensor) -> Tensor:
        return torch.zeros(n, n, dtype=model.dtype).masked_fill(hide, lowest)[None, None]

    near = hidden if window is None else hidden | (distance >= window)
    kinds = getattr(model.config, "layer_types", None)
    mask: Any = additive(near) if kinds is None else {"full_attention": additive(hidden), "sliding_attention": additive(near)}
    with torch.inference_mode():
        out = model(torch.tensor([sequence]), attention_mask=mask, position_ids=torch.arange(n)[None], use_cache=False)
    return out.logits[0, len(ids) - 1 :].float()


def greedy(model: PreTrainedModel, ids: Sequence[int], n: int) -> list[int]:
    """transformers' own greedy decoding, cache and all."""
    out = model.generate(
        torch.tensor([list(ids)]),
        attention_mask=torch.ones(1, len(ids), dtype=torch.int64),
        max_new_tokens=n,
        min_new_tokens=n,
        do_sample=False,
        eos_token_id=None,
        pad_token_id=0,
    )
    return list(map(int, out[0, len(ids) :]))


def assert_same_choice(tokens: Sequence[int], logits: Tensor, expected: Sequence[int], tolerance: float = TOLERANCE) -> None:
    """Two greedy runs may part only where the two best logits [n, V] are closer than the tolerance."""
    for i, (token, want) in enumerate(zip(tokens, expected, strict=True)):
        if token != want:
            gap = float(logits[i].max() - logits[i, want])
            assert gap < tolerance, f"token {i}: {token} where {want} was expected, {gap:.2g} apart"
            return


def assert_close(got: Tensor, want: Tensor, tolerance: float = TOLERANCE) -> None:
    """Logits, [n, V] each."""
    got, want = got.cpu(), want.cpu()
    assert got.shape == want.shape
    off = (got - want).abs().amax(1)
    assert bool(off.isfinite().all()), f"not finite at steps {(~off.isfinite()).nonzero().flatten().tolist()[:8]}"
    assert float(off.max()) < tolerance, f"logits are off by {float(off.max()):.2g}, first at step {int((off >= tolerance).nonzero()[0])}"


# -- driving an engine ------------------------------------------------------------------------------------------------------


@dataclass
class Run:
    """An engine that has run some requests to their end, every step audited."""

    engine: Engine
    prompts: list[list[int]]
    outputs: list[RequestOutput]
    records: list[StepRecord] = field(default_factory=list)

    @property
    def evictions(self) -> list[list[Eviction]]:
        return [output.evictions for output in self.outputs]

    def assert_masked(self, oracle: PreTrainedModel, tolerance: float = TOLERANCE) -> None:
        """Each request's logits are those of the dense forward from which its evicted tokens are hidden."""
        for ids, output in zip(self.prompts, self.outputs, strict=True):
            assert output.error is None and output.logits is not None, output
            want = masked_logits(oracle, ids, output.token_ids, output.evictions)
            assert_close(output.logits, want, tolerance)

    def live_at(self, length: int, request: int = 0) -> list[int]:
        """Token ids that the query at position `length` of a request could see, itself aside, by the eviction log."""
        dead = {t for eviction in self.evictions[request] if eviction.length <= length for t in eviction.ids}
        return [t for t in range(length) if t not in dead]

    def assert_whole(self) -> None:
        """Nothing is left in the engine but cached prefixes."""
        worker = self.engine.worker
        index = worker.index
        cached = len(index) * index.blocks_per_entry if index is not None else 0
        assert worker.pool.n_free() + cached == worker.pool.n_blocks
        assert not self.engine.has_work


def make_engine(
    model: LoadedModel, config: EngineConfig, policy: EvictionPolicy | None = None, progress: Callable[[int], int] | None = None
) -> Engine:
    """progress: how many of the tokens left to copy are copied at each operation of the main stream; None leaves them to the end."""
    engine = Engine(model, config, None if config.runtime == "native" else policy)
    if progress is not None and engine.worker.reclaimer is not None:
        stream: Any = engine.worker.reclaimer.stream
        stream.progress = progress
    return engine


def step_audited(engine: Engine) -> list[StepRecord]:
    records = engine.step()
    engine.check()
    return records


def step_until(engine: Engine, happened: Callable[[Engine], bool]) -> None:
    """Step, with check(), until something is so; the run must not end before."""
    while not happened(engine):
        assert engine.has_work, "the run ended, and it never happened"
        step_audited(engine)


def drive(
    engine: Engine, prompts: Sequence[Sequence[int]], params: SamplingParams | Sequence[SamplingParams], *, logits: bool = True
) -> Run:
    """Run these prompts to their end, with check() after every step. Each gets a seed of its own, the same in every run."""
    each = [params] * len(prompts) if isinstance(params, SamplingParams) else list(params)
    names = []
    for i, (ids, p) in enumerate(zip(prompts, each, strict=True)):
        names.append(engine.add_request(ids, replace(p, logits=logits, seed=100 + i if p.seed is None else p.seed)))
    records = []
    while engine.has_work:
        records += step_audited(engine)
        assert engine.steps < 3_000, "no end in sight"
    for name in names:
        if (kept := engine.outputs[name].logits) is not None:
            engine.outputs[name].logits = kept.cpu()
    run = Run(engine, [list(p) for p in prompts], [engine.outputs[name] for name in names], records)
    run.assert_whole()
    return run


def copy_some(seed: int) -> Callable[[int], int]:
    """A copy stream that makes progress at random."""
    draw = random.Random(seed)
    return lambda left: draw.randint(0, left)
