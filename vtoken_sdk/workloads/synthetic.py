"""Random token ids, in lengths of a chosen shape."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from vtoken_sdk.runtime.config import ConfigError

from .base import Cuts, Workload, check_sizes, ordinary_ids
from .lengths import LENGTHS, draw_lengths

if TYPE_CHECKING:
    from vtoken_sdk.runtime.model_loader import LoadedModel


def synthetic(
    model: LoadedModel,
    *,
    requests: int,
    ctx: int,
    output_tokens: int,
    seed: int = 0,
    lengths: str = "fixed",
    length_scale: float = 1.0,
) -> Workload:
    """Ids drawn evenly from the vocabulary, special ids left out; request i the same ones however many follow it.

    lengths: "fixed" is ctx tokens; "uniform" from ctx / 8 to ctx; "lognormal" has its median at ctx / 4, longer prompts cut to ctx; all
    these generate output_tokens. Others are distributions in tokens, in and out (see `lengths`), times length_scale, cut to ctx and
    output_tokens. Raises ConfigError.
    """
    check_sizes(model, requests, ctx, output_tokens)
    if lengths not in LENGTHS:
        raise ConfigError(f"lengths={lengths!r}: use one of {', '.join(LENGTHS)}")
    ids = ordinary_ids(model)
    cuts = Cuts(ctx, output_tokens, length_scale)
    prompts, outputs = [], []
    for request in range(requests):
        rng = random.Random(f"{seed}/{request}")
        tokens_in, tokens_out = draw_lengths(lengths, ctx, output_tokens, rng)
        prompts.append(rng.choices(ids, k=cuts.prompt(tokens_in)))
        outputs.append(cuts.output(tokens_out))
    same = set(outputs) == {output_tokens}
    return Workload("synthetic", prompts, output_tokens, notices=tuple(cuts.notices(requests)), outputs=None if same else outputs)
