"""Runs a transformers model over our cache: its modules, our attention, no mask function and no cache object of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from .step_context import Part, StepContext

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from .fused_model import FusedModel

ATTENTION_NAME = "vtoken"
# Keyword arguments of the attention interface that we honor, or that change nothing at inference.
_KNOWN = {"sliding_window", "softcap", "scaling", "dropout", "position_ids", "use_cache", "is_causal"}

_FUSED: WeakKeyDictionary[PreTrainedModel, FusedModel] = WeakKeyDictionary()  # engines of one model share its merged weights


def _attention(
    module: torch.nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **kwargs: Any
) -> tuple[Tensor, None]:
    step: StepContext = kwargs.pop("vtoken_step")
    unknown = {k for k, v in kwargs.items() if k not in _KNOWN and v is not None}
    if unknown or attention_mask is not None:
        raise NotImplementedError(
            f"this model's attention uses {sorted(unknown) or 'a mask'}, which the paged runtime does not honor; use another model"
        )
    scale = kwargs.get("scaling")
    if scale is None:
        scale = query.shape[-1] ** -0.5
    layer = int(module.layer_idx)  # type: ignore[arg-type]  # an int on every decoder attention of transformers
    return step.attend(layer, query, key, value, scale, kwargs.get("softcap"), kwargs.get("sliding_window")), None


class ModelAdapter:
    """A transformers causal LM whose attention reads the slot map."""

    def __init__(self, hf: PreTrainedModel) -> None:
        from transformers import AttentionInterface

        AttentionInterface.register(ATTENTION_NAME, _attention)
        hf.set_attn_implementation(ATTENTION_NAME)
        self.hf = hf
        config = hf.config
        self.layers: int = config.num_hidden_layers
        self.query_heads: int = config.num_attention_heads
        self.kv_heads: int = config.num_key_value_heads
        self.head_dim: int = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        self.scale, self.softcap, windows = self._attention_features()
        self.windows = windows
        self.device, self.dtype = hf.device, hf.dtype
        self._fused: FusedModel | None = None

    def fuse(self) -> None:
        """Run by kernels from now on, where the model's family allows it; the others keep transformers' own modules."""
        from .fused_model import FusedModel

        if FusedModel.serves(self.hf):
            if self.hf not in _FUSED:
                _FUSED[self.hf] = FusedModel(self.hf, self.query_heads, self.scale, self.windows)
            self._fused = _FUSED[self.hf]

    def _attention_features(self) -> tuple[float, float | None, tuple[int | None, ...]]:
        """Softmax scale, soft cap, and the sliding window of each layer, read from the modules themselves."""
        attention = [layer.self_attn for layer in self.hf.model.layers]
        windows = tuple(getattr(a, "sliding_window", None) for a in attention)
        if not any(windows) and not hasattr(attention[0], "sliding_window"):
            windows = (getattr(self.hf.config, "sliding_window", None),) * len(attention)  # Mistral reads it from the config
        return float(attention[0].scaling), getattr(attention[0], "attn_logit_softcapping", None), windows

    @property
    def death_window(self) -> int | None:
        """Tokens further back than this are outside the window of every layer; None if some layer sees everything."""
        return None if None in self.windows else max(w for w in self.windows if w is not None)

    def forward(self, parts: Sequence[Part]) -> list[Tensor | None]:
        """Of each part that samples, [B, vocabulary] of the last position in the model's dtype. A fused model runs all in one pass."""
        with torch.inference_mode():
            return self._fused.forward(parts) if self._fused is not None else [self._run_modules(part) for part in parts]

    def _run_modules(self, part: Part) -> Tensor | None:
        step = part.step
        inputs = {"input_ids": part.ids, "position_ids": step.positions, "use_cache": False, "vtoken_step": step}
        made = self.hf(**inputs, logits_to_keep=1).logits[:, -1] if part.samples else self.hf.model(**inputs)
        if step.attended != self.layers:
            raise RuntimeError(
                f"{step.attended} of {self.layers} layers used the engine's attention: set_attn_implementation was called on its model. "
                "Give the engine a model of its own"
            )
        return made if part.samples else None

    def rotary(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """int64 [n] -> (cos, sin), each [n, D] fp32."""
        cos, sin = self.hf.model.rotary_emb(torch.empty(0, device=self.device), positions[None])
        return cos[0], sin[0]
