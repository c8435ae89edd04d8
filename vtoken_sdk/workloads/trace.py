"""Requests as a public trace has them: lengths, times and shared beginnings; the content is random ids."""

from __future__ import annotations

import random
from pathlib import Path
from typing import TYPE_CHECKING

from vtoken_sdk.runtime.config import ConfigError

from .base import Cuts, Workload, check_sizes, ordinary_ids
from .formats import TraceFormat, TraceRequest, read_trace

if TYPE_CHECKING:
    from vtoken_sdk.runtime.model_loader import LoadedModel


def trace(
    model: LoadedModel,
    *,
    requests: int,
    ctx: int,
    output_tokens: int,
    seed: int = 0,
    path: str | Path,
    length_scale: float = 1.0,
) -> Workload:
    """The first `requests` requests of the file, in the order of their times; `arrivals_s` are the trace's times, the first at 0.

    Lengths are multiplied by length_scale, then cut to ctx and output_tokens. Requests with equal hash_ids at their beginning share
    these tokens (blocks scaled with the lengths). Lines without input or output tokens (failed requests) are left out.
    Formats: see `formats`. Raises ConfigError.
    """
    check_sizes(model, requests, ctx, output_tokens)
    file = Path(path).expanduser()
    known, lines = read_trace(file)
    chosen: list[TraceRequest] = []
    empty = 0
    for request in lines:
        if request is None:
            empty += 1
        else:
            chosen.append(request)
            if len(chosen) == requests:
                break
    if len(chosen) < requests:
        raise ConfigError(
            f"requests={requests}: {file} has {len(chosen)} requests with tokens in and out; use requests={len(chosen)} or fewer"
        )
    chosen.sort(key=lambda r: r.time_s)
    cuts = Cuts(ctx, output_tokens, length_scale)
    prompts = _Prompts(ordinary_ids(model), known, seed, length_scale)
    notices = [f"{file.name}: {empty} request{'s' * (empty != 1)} without tokens in or out left out"] if empty else []
    return Workload(
        known.name,
        [prompts.make(number, request, cuts.prompt(request.input_tokens)) for number, request in enumerate(chosen)],
        output_tokens,
        source=str(file),
        outputs=[cuts.output(request.output_tokens) for request in chosen],
        notices=(*notices, *cuts.notices(requests)),
        arrivals_s=[request.time_s - chosen[0].time_s for request in chosen],
    )


class _Prompts:
    """Random ids; a block named by a hash has the same ones wherever the hash is."""

    def __init__(self, ids: list[int], known: TraceFormat, seed: int, scale: float) -> None:
        self.ids, self.seed = ids, seed
        self.block = max(1, round(known.hash_block * scale))
        self.blocks: dict[int, list[int]] = {}

    def make(self, number: int, request: TraceRequest, tokens: int) -> list[int]:
        prompt: list[int] = []
        for name in request.hash_ids[: -(-tokens // self.block)]:
            if name not in self.blocks:
                self.blocks[name] = random.Random(f"{self.seed}/block/{name}").choices(self.ids, k=self.block)
            prompt += self.blocks[name]
        own = random.Random(f"{self.seed}/{number}").choices(self.ids, k=max(0, tokens - len(prompt)))
        return (prompt + own)[:tokens]
