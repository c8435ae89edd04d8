"""Windows of real text, and the text that really follows each: the workload on which quality can be judged."""

from __future__ import annotations

import random
from pathlib import Path
from typing import TYPE_CHECKING

from vtoken_sdk.runtime.config import ConfigError

from .base import Workload, check_sizes, read_text, start_ids, text_ids

if TYPE_CHECKING:
    from vtoken_sdk.runtime.model_loader import LoadedModel

BUNDLED_TEXT = Path(__file__).parents[1] / "data" / "pride_and_prejudice.txt"


def text(model: LoadedModel, *, requests: int, ctx: int, output_tokens: int, seed: int = 0, path: str | Path | None = None) -> Workload:
    """Windows of ctx tokens and the output_tokens after them, spread evenly over the text; the seed shifts them all.

    path: a UTF-8 file; None is the bundled excerpt of Pride and Prejudice. A tokenizer that begins texts with a start token begins
    each window with it. Without a tokenizer (dummy weights only) bytes are the tokens. Raises ConfigError.
    """
    check_sizes(model, requests, ctx, output_tokens)
    file = BUNDLED_TEXT if path is None else Path(path).expanduser()
    content = read_text(file)
    notices: list[str] = []
    start = start_ids(model.tokenizer) if model.tokenizer is not None else []
    tokens = text_ids(model, content)
    if model.tokenizer is None:
        notices.append(f"{model.name} has no tokenizer: the bytes of {file.name} are its tokens")
    if ctx <= len(start):
        raise ConfigError(f"ctx={ctx}: a window of text begins with {len(start)} start tokens; use ctx > {len(start)}")
    window = ctx - len(start) + output_tokens
    starts = len(tokens) - window + 1
    if starts < requests:
        raise ConfigError(
            f"workload=text: {requests} different windows of {window} tokens need {window + requests - 1} tokens, "
            f"{file} has {len(tokens)}; use a smaller ctx or output_tokens, fewer requests, or workload=FILE with more text"
        )
    if requests * window > len(tokens):
        notices.append(f"the {requests} windows of {window} tokens overlap: {file.name} has {len(tokens)} tokens")
    shift = random.Random(seed).random()
    firsts = [int((request + shift) * starts / requests) for request in range(requests)]
    cut = ctx - len(start)
    return Workload(
        "text",
        [start + tokens[first : first + cut] for first in firsts],
        output_tokens,
        [tokens[first + cut : first + window] for first in firsts],
        str(file),
        tuple(notices),
    )
