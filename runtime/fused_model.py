"""The decoder of Llama's family over a transformers model's own weights, with its projections merged and its small steps fused.

transformers' modules in a CUDA graph, compiled or not, stay behind an engine with merged projections (dev/LOG.md has the figures), so
the loop over the layers is ours; weights, configuration, rotary frequencies and everything else remain the model's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .kernel_step import KernelStep
from .kernels.kv_write import rotary_table
from .kernels.layers import add_norm, silu_mul

if TYPE_CHECKING:
    from transformers import PreTrainedModel

FAMILY = ("llama", "mistral", "qwen2", "qwen3")


@dataclass(frozen=True)
class _Linear:
    weight: Tensor
    bias: Tensor | None

    def __call__(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias)


def _merged(layers: Sequence[nn.Linear]) -> _Linear:
    """One matrix for several; the modules keep views of it, so that nothing is held twice."""
    weight = torch.cat([layer.weight.detach() for layer in layers])
    biases = [layer.bias for layer in layers]
    bias = torch.cat([b.detach() for b in biases]) if all(b is not None for b in biases) else None
    at = 0
    for layer in layers:
        end = at + layer.out_features
        layer.weight.data = weight[at:end]
        if bias is not None:
            layer.bias.data = bias[at:end]
        at = end
    return _Linear(weight, bias)


@dataclass(frozen=True)
class _Layer:
    """norms: weights of the query and key norms and their epsilon, where the model has them."""

    before_attention: Tensor
    before_mlp: Tensor
    qkv: _Linear
    out: _Linear
    gate_up: _Linear
    down: _Linear
    norms: tuple[Tensor, Tensor, float] | None


class FusedModel:
    """Runs a forward pass for a `KernelStep`."""

    def __init__(self, hf: PreTrainedModel, heads: int, scale: float, windows: Sequence[int | None]) -> None:
        model: Any = hf.model
        head: Any = hf.lm_head
        self.embedding: Tensor = model.embed_tokens.weight
        self.head = _Linear(head.weight, head.bias)
        self.heads, self.scale, self.windows = heads, scale, windows
        self.norm: Tensor = model.norm.weight
        self.epsilon: float = model.norm.variance_epsilon
        self.frequencies: Tensor = model.rotary_emb.inv_freq.float()
        self.rotary_scaling = float(model.rotary_emb.attention_scaling)
        self.layers = [self._layer(layer) for layer in model.layers]

    @staticmethod
    def serves(hf: PreTrainedModel) -> bool:
        """Is this a model of the family, without a twist?"""
        config: Any = hf.config
        return config.model_type in FAMILY and config.hidden_act == "silu"

    def _layer(self, layer: Any) -> _Layer:
        attention, mlp = layer.self_attn, layer.mlp
        norms = None
        if hasattr(attention, "q_norm"):
            norms = attention.q_norm.weight, attention.k_norm.weight, float(attention.q_norm.variance_epsilon)
        return _Layer(
            layer.input_layernorm.weight,
            layer.post_attention_layernorm.weight,
            _merged([attention.q_proj, attention.k_proj, attention.v_proj]),
            _Linear(attention.o_proj.weight, attention.o_proj.bias),
            _merged([mlp.gate_proj, mlp.up_proj]),
            _Linear(mlp.down_proj.weight, mlp.down_proj.bias),
            norms,
        )

    def forward(self, ids: Tensor, step: KernelStep, *, logits: bool) -> Tensor | None:
        """ids: int64 [B, n] at step.positions. Returns [B, vocabulary] of the last position in the model's dtype, or None."""
        batch, n = ids.shape
        x = F.embedding(ids.flatten(), self.embedding)
        cos, sin = rotary_table(step.positions.flatten(), self.frequencies, self.rotary_scaling, x.dtype)
        residual = torch.empty_like(x)
        for i, layer in enumerate(self.layers):
            y = add_norm(x, residual, layer.before_attention, self.epsilon, add=i > 0)
            y = step.attend_projected(i, layer.qkv(y), cos, sin, layer.norms, self.heads, self.scale, self.windows[i])
            y = add_norm(layer.out(y), residual, layer.before_mlp, self.epsilon, add=True)
            x = layer.down(silu_mul(layer.gate_up(y)))
        if not logits:
            return None
        if n > 1:
            x, residual = x.view(batch, n, -1)[:, -1].contiguous(), residual.view(batch, n, -1)[:, -1].contiguous()
        return self.head(add_norm(x, residual, self.norm, self.epsilon, add=True))
