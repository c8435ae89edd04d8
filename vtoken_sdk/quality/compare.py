"""What two predictions of the same tokens have in common: likelihood, divergence, agreement."""

from __future__ import annotations

import torch
from torch import Tensor

ROWS_AT_ONCE = 64  # positions compared at once in fp64: 64 x 256k x 8 bytes is 134 MB


class QualityError(RuntimeError):
    """The engine did not give the logits of the whole text. Names the item, and what the engine said."""


def compare(full: Tensor, evicted: Tensor, targets: Tensor) -> Tensor:
    """fp64 [4, n]: for each position nll and nll_full of the target, KL(full || evicted), and 1 where the best tokens agree.

    full, evicted: logits [n, vocabulary], any float dtype. targets: int64 [n]. Raises ValueError where a logit is NaN.
    """
    parts = []
    for first in range(0, len(targets), ROWS_AT_ONCE):
        rows = slice(first, first + ROWS_AT_ONCE)
        p, q = full[rows].double().log_softmax(-1), evicted[rows].double().log_softmax(-1)
        _refuse_nan("full cache's", p, first)
        _refuse_nan("engine's", q, first)
        wanted = targets[rows, None]
        # A token of probability 0 in `full` adds nothing, whatever the other says.
        kl = torch.where(p == -torch.inf, 0.0, p.exp() * (p - q)).sum(-1)
        parts.append(torch.stack([-q.gather(-1, wanted)[:, 0], -p.gather(-1, wanted)[:, 0], kl, (p.argmax(-1) == q.argmax(-1)).double()]))
    return torch.cat(parts, dim=1)


def nll_and_best(logits: Tensor, targets: Tensor, whose: str = "engine's") -> tuple[Tensor, Tensor]:
    """fp64 [n] nats of each target, int64 [n] the best token. logits: [n, vocabulary]; targets: int64 [n]. Raises ValueError on NaN."""
    nll, best = [], []
    for first in range(0, len(targets), ROWS_AT_ONCE):
        rows = slice(first, first + ROWS_AT_ONCE)
        logs = logits[rows].double().log_softmax(-1)
        _refuse_nan(whose, logs, first)
        nll.append(-logs.gather(-1, targets[rows, None])[:, 0])
        best.append(logs.argmax(-1))
    return torch.cat(nll), torch.cat(best)


def _refuse_nan(whose: str, logs: Tensor, first: int) -> None:
    bad = logs.isnan().any(-1).nonzero()
    if len(bad):
        raise ValueError(f"the {whose} logits are NaN at continuation token {first + int(bad[0])}")
