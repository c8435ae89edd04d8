"""Models from their shapes alone: the default `tiny` model, published shapes, and random weights for any config."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from .config import ConfigError

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel

SEED = 0
DUMMY_RANGE = 1e-3  # uniform in +-1e-3: what vLLM's dummy load format fills weights with

# At this width, these weights make greedy decoding wander instead of repeating itself, and give a query some 30 to 90 tokens
# that matter among 1,000: evictions then change what comes out.
TINY_NOISE = 0.3
TINY: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 1,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "vocab_size": 512,
    "max_position_embeddings": 1 << 21,
    "initializer_range": 0.4,
    "tie_word_embeddings": False,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
LLAMA_3_1_8B: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-5,
    "rope_parameters": {
        "rope_type": "llama3",
        "rope_theta": 500000.0,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    },
    "tie_word_embeddings": False,
    "dtype": "bfloat16",
    "bos_token_id": 128000,
    "eos_token_id": 128001,
}
MISTRAL_7B: dict[str, Any] = {
    "architectures": ["MistralForCausalLM"],
    "model_type": "mistral",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 32768,
    "max_position_embeddings": 32768,
    "rms_norm_eps": 1e-5,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
    "sliding_window": None,
    "tie_word_embeddings": False,
    "dtype": "bfloat16",
    "bos_token_id": 1,
    "eos_token_id": 2,
}
SHAPES: dict[str, dict[str, Any]] = {"tiny": TINY, "llama-3.1-8b": LLAMA_3_1_8B, "mistral-7b": MISTRAL_7B}


def tiny_model(config: PreTrainedConfig, dtype: torch.dtype, device: torch.device) -> PreTrainedModel:
    """transformers' own initialization plus noise on the one-dimensional parameters. The same weights on every device."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        model = _build(config, torch.float32)
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.dim() == 1:
                    parameter.add_(torch.randn(parameter.shape), alpha=TINY_NOISE)
        if dtype != torch.float32:  # not model.to(dtype), which rounds the rotary frequencies as well
            weights, model = model.state_dict(), _build(config, dtype)
            model.load_state_dict(weights)
    return to_device(model, device)


def dummy_model(name: str, config: PreTrainedConfig, dtype: torch.dtype, device: torch.device) -> PreTrainedModel:
    """Every parameter uniform in +-1e-3, for runs where only speed and memory matter. Raises ConfigError where memory is short."""
    if device.type == "cpu":
        _check_memory(name, config, dtype)
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []), device:
        model = _build(config, dtype)
    generator = torch.Generator(device).manual_seed(SEED)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.uniform_(-DUMMY_RANGE, DUMMY_RANGE, generator=generator)
    return model


def to_device(model: PreTrainedModel, device: torch.device) -> PreTrainedModel:
    return torch.nn.Module.to(model, device)  # transformers' own `to` hides its signature


def _build(config: PreTrainedConfig, dtype: torch.dtype) -> PreTrainedModel:
    from transformers import AutoModelForCausalLM

    untyped: Any = AutoModelForCausalLM
    model: PreTrainedModel = untyped.from_config(config, dtype=dtype)
    return model


def _check_memory(name: str, config: PreTrainedConfig, dtype: torch.dtype) -> None:
    """Linux grants memory that it does not have and kills the process later, so count first."""
    with torch.device("meta"):
        needed = sum(p.numel() for p in _build(config, dtype).parameters()) * dtype.itemsize
    available = _available_memory()
    if available is not None and needed > available:
        raise ConfigError(
            f"model={name}: its weights take {needed / 1e9:.1f} GB in {str(dtype).removeprefix('torch.')} and "
            f"{available / 1e9:.1f} GB are free; use device=cuda, a smaller dtype or a smaller model"
        )


def _available_memory() -> int | None:
    """Bytes that can be allocated without swapping; None where the system does not say."""
    try:
        with open("/proc/meminfo", encoding="ascii") as lines:
            return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))
    except (OSError, StopIteration):
        return None
