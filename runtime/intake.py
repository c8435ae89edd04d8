"""What is refused before anything changes: an engine of the wrong parts, and requests that can never run here."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import torch

from vtoken_sdk.policy import EvictionPolicy

from .config import ConfigError, EngineConfig
from .request import RequestRejected, SamplingParams

if TYPE_CHECKING:
    from .model_loader import LoadedModel


def as_token_ids(name: str, prompt: Iterable[int]) -> list[int]:
    """Raises RequestRejected for what holds no ids at all. Arrays and tensors hold ids as well."""
    try:
        return list(prompt.tolist() if hasattr(prompt, "tolist") else prompt)
    except TypeError:
        raise RequestRejected(f"{name}: prompt={prompt!r}; give a list of token ids") from None


def refuse_bad_request(name: str, prompt: list[int], params: SamplingParams, model: LoadedModel) -> None:
    """Raises RequestRejected for an empty prompt, ids outside the vocabulary, positions beyond the model's, or a missing tokenizer."""
    if not prompt:
        raise RequestRejected(f"{name}: prompt is empty; give at least one token id")
    vocabulary = model.vocab_size
    for field, ids in (("prompt", prompt), ("forced", params.forced or ()), ("stop_token_ids", params.stop_token_ids)):
        bad = next((t for t in ids if isinstance(t, bool) or not isinstance(t, int) or not 0 <= t < vocabulary), None)
        if bad is not None:
            raise RequestRejected(f"{name}: {field} has the token id {bad!r}; ids are ints from 0 to {vocabulary - 1}")
    total, limit = len(prompt) + params.max_tokens - 1, model.max_positions
    if total > limit:
        raise RequestRejected(
            f"{name}: prompt of {len(prompt)} tokens and max_tokens={params.max_tokens} need {total} positions; the model has {limit}. "
            "Shorten the prompt or lower max_tokens"
        )
    if params.stop and model.tokenizer is None:
        raise RequestRejected(f"{name}: stop={params.stop!r} needs a tokenizer, and this model has none; use stop_token_ids")


def refuse_too_big(name: str, peak: int, config: EngineConfig) -> None:
    """Raises RequestRejected if the blocks that the request needs at its peak are more than the pool has."""
    if peak > config.n_blocks:
        raise RequestRejected(
            f"{name}: needs {peak} blocks of {config.slots_per_block} tokens at its peak, and the pool has {config.n_blocks}. "
            "Raise pool_blocks, shorten the prompt, or evict while it is prefilled (a policy with evict.prefill=chunk, and a smaller chunk)"
        )


def check_types(model: object, config: object, policy: object) -> None:
    """What a user gets wrong at first, said before it fails deep inside. Raises TypeError."""
    if not hasattr(model, "hf"):
        raise TypeError(f"model={model!r}: use what load_model(...) or LoadedModel.from_transformers(...) returns")
    if not isinstance(config, EngineConfig):
        raise TypeError(f"config={config!r}: use EngineConfig(...)")
    if policy is not None and not isinstance(policy, EvictionPolicy):
        raise TypeError(f"policy={policy!r}: use an instance of a policy, such as H2O(), or vtoken_sdk.registry.load_policy('h2o')")


def sampling_of(params: object) -> SamplingParams:
    if params is None:
        return SamplingParams()
    if not isinstance(params, SamplingParams):
        raise TypeError(f"params={params!r}: use SamplingParams(...)")
    return params


def refuse_other_gpu(device: torch.device) -> None:
    """Streams and events are made on the current device."""
    if device.type == "cuda" and device.index not in (None, torch.cuda.current_device()):
        raise ConfigError(
            f"the model is on {device}, and the current device is cuda:{torch.cuda.current_device()}; "
            f"call torch.cuda.set_device({device.index}) before making the engine"
        )
