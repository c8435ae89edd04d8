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

from .decoded import joined
from .kernel_step import KernelStep
from .kernels.kv_write import rotary_table
from .kernels.layers import add_norm, silu_mul
from .step_context import Part

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

    def forward(self, parts: Sequence[Part]) -> list[Tensor | None]:
        """All parts in one pass, each with an attention of its own: their steps are `KernelStep`s. Returns as `ModelAdapter.forward`."""
        x = F.embedding(joined([part.ids.flatten() for part in parts]), self.embedding)
        positions = joined([part.step.positions.flatten() for part in parts])
        cos, sin = rotary_table(positions, self.frequencies, self.rotary_scaling, x.dtype)
        sizes = [part.ids.numel() for part in parts]
        tables = list(zip(cos.split(sizes), sin.split(sizes), strict=True))
        residual = torch.empty_like(x)
        for i, layer in enumerate(self.layers):
            y = add_norm(x, residual, layer.before_attention, self.epsilon, add=i > 0)
            y = self._attend(i, layer.qkv(y).split(sizes), tables, parts)
            y = add_norm(layer.out(y), residual, layer.before_mlp, self.epsilon, add=True)
            x = layer.down(silu_mul(layer.gate_up(y)))
        return self._logits(x.split(sizes), residual.split(sizes), parts)

    def _attend(self, i: int, projected: Sequence[Tensor], tables: Sequence[tuple[Tensor, Tensor]], parts: Sequence[Part]) -> Tensor:
        """projected: queries, keys and values of each part, [B * n, (Hq + 2 H) * D]. Returns [tokens of all parts, Hq * D]."""
        made = []
        for part, qkv, (cos, sin) in zip(parts, projected, tables, strict=True):
            assert isinstance(part.step, KernelStep)
            norms = self.layers[i].norms
            made.append(part.step.attend_projected(i, qkv, cos, sin, norms, self.heads, self.scale, self.windows[i]))
        return joined(made)

    def _logits(self, states: Sequence[Tensor], residuals: Sequence[Tensor], parts: Sequence[Part]) -> list[Tensor | None]:
        """Of the last position of each row of the parts that sample."""
        wanted = [i for i, part in enumerate(parts) if part.samples]
        made: list[Tensor | None] = [None] * len(parts)
        if wanted:
            rows = [len(parts[i].ids) for i in wanted]
            x, residual = (joined([_last(side[i], len(parts[i].ids)) for i in wanted]) for side in (states, residuals))
            logits = self.head(add_norm(x, residual, self.norm, self.epsilon, add=True))
            for i, part in zip(wanted, logits.split(rows), strict=True):
                made[i] = part
        return made


def _last(x: Tensor, batch: int) -> Tensor:
    """[B * n, hidden] -> [B, hidden] of each row's last position, dense."""
    return x if len(x) == batch else x.view(batch, -1, x.shape[-1])[:, -1].contiguous()
