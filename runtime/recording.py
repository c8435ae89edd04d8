"""What a run shows to a policy that learns, step by step: for policies that look ahead, and for replays without a model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from .config import EngineConfig

if TYPE_CHECKING:
    from .model_loader import LoadedModel
    from .request import SamplingParams


@dataclass(frozen=True, eq=False)
class Recording:
    """One request's steps: chunks of the prompt, and decode steps.

    lengths: int64 [S], ascending: tokens appended by the end of each step. attention: fp32 [S, tokens], as `NewTokens.attention`.
    key_norms: fp32 [tokens], mean over KV heads and layers.
    """

    lengths: Tensor
    attention: Tensor
    key_norms: Tensor

    @classmethod
    def from_steps(cls, lengths: Sequence[int], attention: Sequence[Tensor], key_norms: Sequence[Tensor]) -> Recording:
        """attention: fp32 [lengths[i]] of each step; key_norms: fp32 [n] of its n new tokens."""
        by_step = torch.zeros(len(lengths), lengths[-1] if lengths else 0)
        for step, row in zip(by_step, attention, strict=True):
            step[: len(row)] = row
        return cls(torch.tensor(lengths, dtype=torch.int64), by_step, torch.cat([torch.zeros(0), *key_norms]))

    def still_to_come(self) -> Tensor:
        """fp32 [S + 1, tokens]: row i is what the steps from i on give to each token; after the last, nothing."""
        return torch.cat([self.attention.flip(0).cumsum(0).flip(0), self.attention.new_zeros(1, self.attention.shape[1])])


def look_ahead(
    model: LoadedModel, config: EngineConfig, prompts: Sequence[Sequence[int]], params: Sequence[SamplingParams]
) -> list[SamplingParams]:
    """Run these requests one by one with the full cache; each comes back forced to the tokens it gave, with its `future`.

    The steps are those that `config` gives a request under eviction, so that the record has a row for each of them.
    """
    from .engine import Engine

    made = []
    for prompt, p in zip(prompts, params, strict=True):
        blocks = -(-(len(prompt) + p.max_tokens) // config.block_size)
        alone = replace(config, runtime="native", pool_blocks=blocks, max_running=1, prefix_cache=False, poison=False)
        output = Engine(model, alone).generate([prompt], replace(p, record=True, logits=False))[0]
        if output.error is not None:
            raise RuntimeError(f"the full-cache run that the policy's future comes from failed: {output.error}")
        made.append(replace(p, forced=tuple(output.token_ids), future=output.recording))
    return made
