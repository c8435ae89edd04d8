"""Which models the runtime serves, and why it refuses the others. Reads a config as plain data; loads nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from .config import ConfigError

ARCHITECTURES: dict[str, str] = {  # class -> the model_type that its config must have
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "mistral",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
    "Gemma2ForCausalLM": "gemma2",
}
ROTARY_TYPES = ("default", "linear", "llama3", "yarn")  # frequencies fixed at load; dynamic and longrope follow the length seen
LAYER_TYPES = ("full_attention", "sliding_attention")


class UnsupportedModel(ConfigError):
    """The model needs something that the runtime does not do. The message names it, and what is supported."""


def check_supported(name: str, config: Mapping[str, Any]) -> str:
    """The architecture's class name. config: a model's config.json as a dict.

    Raises UnsupportedModel and names every feature that is in the way.
    """
    architecture = _architecture(config)
    reasons = list(_features(config))
    if architecture not in ARCHITECTURES:
        reasons.append(f"architecture {architecture}")
    elif config.get("model_type") != ARCHITECTURES[architecture]:
        reasons.append(f"{architecture} with model_type {config.get('model_type')}")
    if reasons:
        raise UnsupportedModel(
            f"model={name}: cannot serve {'; '.join(reasons)}. "
            f"Use one of {', '.join(ARCHITECTURES)}, unquantized, with rotary type {', '.join(ROTARY_TYPES)}"
        )
    return architecture


def _architecture(config: Mapping[str, Any]) -> str:
    """The class that the config names, or the causal LM of its model_type where it names none."""
    named = config.get("architectures")
    if named:
        return str(named[0])
    by_type = {model_type: cls for cls, model_type in ARCHITECTURES.items()}
    model_type = config.get("model_type")
    return by_type.get(str(model_type), f"of model_type {model_type}")


def _features(config: Mapping[str, Any]) -> Iterator[str]:
    """Names of what the config asks for and no kernel of ours does."""
    kind = f"{config.get('model_type', '')} {' '.join(config.get('architectures') or ())}".lower()
    if config.get("is_encoder_decoder"):
        yield "an encoder-decoder model"
    if config.get("add_cross_attention") or config.get("cross_attention_layers"):
        yield "cross attention"
    if config.get("kv_lora_rank") is not None:
        yield "multi-head latent attention (MLA)"
    if "mamba" in kind or any(key.startswith(("mamba_", "ssm_", "state_size")) for key in config):
        yield "state-space layers (Mamba)"
    if "gpt_oss" in kind or "gptoss" in kind or any("attention_sink" in key and value for key, value in config.items()):
        yield "learned attention sinks"
    if config.get("use_bidirectional_attention") or config.get("is_causal") is False:
        yield "bidirectional attention"
    if config.get("attention_chunk_size"):
        yield "chunked attention (attention_chunk_size)"
    if config.get("dual_chunk_attention_config"):
        yield "dual chunk attention"
    quantization = config.get("quantization_config") or config.get("compression_config")
    if quantization:
        yield f"quantized weights ({quantization.get('quant_method', 'unknown method')})"
    layer_types = config.get("layer_types") or ()
    for other in sorted({str(t) for t in layer_types} - set(LAYER_TYPES)):
        yield f"layers of type {other}"
    if layer_types and config.get("model_type") == "mistral":
        yield "layer_types in a Mistral config (a Ministral model)"
    for rotary in _rotary(config):
        rope_type = rotary.get("rope_type", rotary.get("type", "default"))
        if rope_type not in ROTARY_TYPES:
            yield f"{rope_type} rotary embeddings"


def _rotary(config: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The rotary settings of the config, old and new spelling, one a layer type where they are nested."""
    for key in ("rope_parameters", "rope_scaling"):
        found = config.get(key)
        if isinstance(found, Mapping):
            nested = [value for value in found.values() if isinstance(value, Mapping)]
            yield from nested or [found]
