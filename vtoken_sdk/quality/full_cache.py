"""The truth that eviction is held against: the same model with every token in its cache."""

from __future__ import annotations

import copy
import hashlib
import itertools
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import transformers
from torch import Tensor

from vtoken_sdk.runtime import Engine, EngineConfig, SamplingParams

from .compare import QualityError, nll_and_best
from .shelf import MemoryShelf, Shelf

if TYPE_CHECKING:
    from vtoken_sdk.runtime.model_loader import LoadedModel

BLOCK = 16
CHUNK = 2048  # prompt tokens a step where an answer is written


@dataclass(frozen=True)
class Truth:
    """nll: fp64 [n], nats of each judged token. best: int64 [n], the first choices. logits: fp32 [n, vocabulary] where asked for."""

    nll: Tensor
    best: Tensor
    logits: Tensor | None


class FullCache:
    """One dense forward of plain transformers over prompt and forced tokens; for free answers, the engine without eviction.

    The forward is a second set of modules on the model's own tensors, with its own config: no memory of note, and the attention that an
    engine put into the model's config is neither used nor touched. Answers are kept on `shelf`, under keys that name the model's hash,
    dtype, device, versions and threads: what is found there is what would be computed here.
    """

    def __init__(self, model: LoadedModel, shelf: Shelf | None = None) -> None:
        tensors = itertools.chain(model.hf.parameters(), model.hf.buffers())
        self._hf: Any = copy.deepcopy(model.hf, {id(tensor): tensor for tensor in tensors})
        # transformers' sdpa knows no soft cap
        capped = getattr(self._hf.config, "attn_logit_softcapping", None) is not None
        self._hf.set_attn_implementation("eager" if capped else "sdpa")
        self._model, self._shelf = model, shelf if shelf is not None else MemoryShelf()
        where = torch.cuda.get_device_name(model.device) if model.device.type == "cuda" else f"cpu, {torch.get_num_threads()} threads"
        source = model.source
        of_model = (source.location, source.revision, source.sha256, str(model.dtype))
        self._facts = (*of_model, where, torch.__version__, transformers.__version__)

    def logits(self, prompt: Sequence[int], continuation: Sequence[int]) -> Tensor:
        """fp32 [len(continuation), vocabulary] on the CPU; row i predicts continuation[i]."""
        logits = self.truth(prompt, continuation, keep_logits=True).logits
        assert logits is not None
        return logits

    def truth(self, prompt: Sequence[int], forced: Sequence[int], answer: int = 0, *, keep_logits: bool = False) -> Truth:
        """Of forced[answer:]. Raises QualityError where a logit is NaN."""
        key = self._key("truth", list(prompt), list(forced), answer, keep_logits)
        known = self._shelf.get(key)
        if known is None:
            logits = self._forward(prompt, forced, len(forced) - answer)
            try:
                nll, best = nll_and_best(logits, torch.tensor(forced[answer:]), "full cache's")
            except ValueError as error:
                raise QualityError(str(error)) from error
            known = {"nll": nll, "best": best} | ({"logits": logits} if keep_logits else {})
            self._shelf.put(key, known)
        return Truth(known["nll"], known["best"], known.get("logits"))

    def _forward(self, prompt: Sequence[int], forced: Sequence[int], last: int) -> Tensor:
        ids = torch.tensor([[*prompt, *forced[:-1]]], device=self._model.device)
        with torch.inference_mode():
            out = self._hf(input_ids=ids, use_cache=False, logits_to_keep=last)
        return torch.Tensor(out.logits[0].float().cpu())

    def write(self, prompt: Sequence[int], max_tokens: int) -> list[int]:
        """Ids of the greedy answer, its end token included. Raises QualityError where the engine gave up."""
        key = self._key("write", list(prompt), max_tokens)
        known = self._shelf.get(key)
        if known is None:
            config = EngineConfig(runtime="native", pool_blocks=-(-(len(prompt) + max_tokens) // BLOCK), max_running=1, chunk=CHUNK)
            (output,) = Engine(self._model, config).generate([prompt], SamplingParams(max_tokens=max_tokens))
            if output.error is not None:
                raise QualityError(f"the full cache's answer failed: {output.error}")
            known = {"ids": torch.tensor(output.token_ids)}
            self._shelf.put(key, known)
        return [int(token) for token in known["ids"]]

    def _key(self, *what: object) -> str:
        return hashlib.sha256(json.dumps([self._facts, what]).encode()).hexdigest()[:32]
