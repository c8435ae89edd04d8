"""What eviction costs in quality: the same real text, teacher-forced, with eviction and with the full cache."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from vtoken_sdk.runtime import SamplingParams, look_ahead
from vtoken_sdk.runtime.config import ConfigError

if TYPE_CHECKING:
    from vtoken_sdk.runtime import Engine
    from vtoken_sdk.runtime.model_loader import LoadedModel
    from vtoken_sdk.workloads import Workload

ROWS_AT_ONCE = 64  # positions compared at once in fp64: 64 x 256k x 8 bytes is 134 MB


class QualityError(RuntimeError):
    """The engine did not give the logits of the whole text. Names the text, and what the engine said."""


@dataclass(frozen=True)
class Quality:
    """Means over all continuation tokens of all texts.

    nll: nats a token, with eviction; nll_full: with the full cache. kl: KL(full || evicted), nats a token. top1: share of positions
    where both have the same best token. judged: how many positions.
    """

    nll: float
    nll_full: float
    kl: float
    top1: float
    judged: int

    def as_row(self) -> dict[str, float | int]:
        return asdict(self)


class FullCache:
    """The truth: one dense forward of plain transformers over prompt and continuation.

    It is a second set of modules on the model's own tensors, with its own config: no memory of note, and the attention that an
    engine put into the model's config is neither used nor touched. Answers are kept, so that several policies can share them.
    """

    def __init__(self, model: LoadedModel) -> None:
        tensors = itertools.chain(model.hf.parameters(), model.hf.buffers())
        self._hf: Any = copy.deepcopy(model.hf, {id(tensor): tensor for tensor in tensors})
        # transformers' sdpa knows no soft cap
        capped = getattr(self._hf.config, "attn_logit_softcapping", None) is not None
        self._hf.set_attn_implementation("eager" if capped else "sdpa")
        self._device = model.device
        self._known: dict[tuple[tuple[int, ...], tuple[int, ...]], Tensor] = {}

    def logits(self, prompt: list[int], continuation: list[int]) -> Tensor:
        """fp32 [len(continuation), vocabulary] on the CPU; row i predicts continuation[i]."""
        key = (tuple(prompt), tuple(continuation))
        if key not in self._known:
            ids = torch.tensor([prompt + continuation[:-1]], device=self._device)
            with torch.inference_mode():
                out = self._hf(input_ids=ids, use_cache=False, logits_to_keep=len(continuation))
            self._known[key] = out.logits[0].float().cpu()
        return self._known[key]


def evaluate(
    model: LoadedModel, engine_factory: Callable[[], Engine], workload: Workload, full_cache: FullCache | None = None
) -> Quality | None:
    """Runs the workload's texts through a new engine, forced to their continuations, and compares with the full cache.

    None for dummy weights: random weights have no quality to lose. full_cache: to share its answers between calls.
    Raises ConfigError for a workload without continuations, QualityError where the engine gave up on a text.
    """
    if model.weights == "dummy":
        return None
    if workload.continuations is None:
        raise ConfigError(f"workload={workload.kind}: quality needs the text that follows each prompt; use workload=text")
    full_cache = full_cache or FullCache(model)
    engine = engine_factory()
    texts = list(zip(workload.prompts, workload.continuations, strict=True))
    params = [SamplingParams(forced=tuple(continuation), logits=True) for _, continuation in texts]
    if engine.reads_future:
        params = look_ahead(model, engine.config, workload.prompts, params)
    outputs = engine.generate(workload.prompts, params)
    parts = []
    for number, (output, (prompt, continuation)) in enumerate(zip(outputs, texts, strict=True)):
        if output.logits is None or len(output.logits) != len(continuation):
            raise QualityError(
                f"text {number}: the engine ended after {len(output.token_ids)} of {len(continuation)} tokens "
                f"({output.finish_reason}{': ' + output.error if output.error else ''})"
            )
        try:
            parts.append(compare(full_cache.logits(prompt, continuation), output.logits.cpu(), torch.tensor(continuation)))
        except ValueError as error:
            raise QualityError(f"text {number}: {error}") from error
    nll, nll_full, kl, same = torch.cat(parts, dim=1).mean(1).tolist()
    return Quality(nll, nll_full, kl, same, sum(map(len, workload.continuations)))


def compare(full: Tensor, evicted: Tensor, targets: Tensor) -> Tensor:
    """fp64 [4, n]: for each position nll and nll_full of the target, KL(full || evicted), and 1 where the best tokens agree.

    full, evicted: logits [n, vocabulary], any float dtype. targets: int64 [n]. Raises ValueError where a logit is NaN.
    """
    parts = []
    for first in range(0, len(targets), ROWS_AT_ONCE):
        rows = slice(first, first + ROWS_AT_ONCE)
        p, q = full[rows].double().log_softmax(-1), evicted[rows].double().log_softmax(-1)
        for whose, logs in (("full cache's", p), ("engine's", q)):
            bad = logs.isnan().any(-1).nonzero()
            if len(bad):
                raise ValueError(f"the {whose} logits are NaN at continuation token {first + int(bad[0])}")
        wanted = targets[rows, None]
        # A token of probability 0 in `full` adds nothing, whatever the other says.
        kl = torch.where(p == -torch.inf, 0.0, p.exp() * (p - q)).sum(-1)
        parts.append(torch.stack([-q.gather(-1, wanted)[:, 0], -p.gather(-1, wanted)[:, 0], kl, (p.argmax(-1) == q.argmax(-1)).double()]))
    return torch.cat(parts, dim=1)
