"""Conversations in ShareGPT's format: the first turn is a prompt, the length of its answer what is generated."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vtoken_sdk.runtime.config import ConfigError

from .base import Workload, check_sizes, read_text, start_ids, text_ids

if TYPE_CHECKING:
    from vtoken_sdk.runtime.model_loader import LoadedModel

LEAST = 4  # tokens in, and out: what vllm's sampler leaves out


def sharegpt(model: LoadedModel, *, requests: int, ctx: int, output_tokens: int, seed: int = 0, path: str | Path) -> Workload:
    """The first two turns of conversations chosen by the seed, as `vllm bench serve --dataset-name sharegpt` takes them.

    Left out: fewer than two turns; prompts or answers under 4 tokens, or prompts over ctx. Answers are cut to output_tokens (vllm: 1,024
    and 2,048 in all). path: a JSON list of {"conversations": [{"from": ..., "value": ...}, ...]}. Raises ConfigError.
    """
    check_sizes(model, requests, ctx, output_tokens)
    file = Path(path).expanduser()
    pairs = first_turns(file)
    random.Random(seed).shuffle(pairs)
    start = start_ids(model.tokenizer) if model.tokenizer is not None else []
    prompts: list[list[int]] = []
    outputs: list[int] = []
    left_out = cut = 0
    for question, answer in pairs:
        if len(prompts) == requests:
            break
        prompt, reply = start + text_ids(model, question), len(text_ids(model, answer))
        if len(prompt) < LEAST or reply < LEAST or len(prompt) > ctx:
            left_out += 1
            continue
        cut += reply > output_tokens
        prompts.append(prompt)
        outputs.append(min(reply, output_tokens))
    if len(prompts) < requests:
        raise ConfigError(
            f"requests={requests}: {file} has {len(prompts)} conversations with {LEAST} to {ctx} tokens in; "
            "use fewer requests or a larger ctx"
        )
    notices = []
    if model.tokenizer is None:
        notices.append(f"{model.name} has no tokenizer: the bytes of {file.name} are its tokens")
    if left_out:
        notices.append(f"{left_out} conversations of {file.name} were left out: under {LEAST} tokens, or prompts over ctx={ctx}")
    if cut:
        notices.append(f"{cut} of {requests} outputs are longer than output_tokens={output_tokens} and were cut to it")
    return Workload("sharegpt", prompts, output_tokens, source=str(file), notices=tuple(notices), outputs=outputs)


def first_turns(file: Path) -> list[tuple[str, str]]:
    """(prompt, answer) of each conversation that has both. Raises ConfigError, which names the entry."""
    try:
        entries = json.loads(read_text(file))
    except json.JSONDecodeError as error:
        raise ConfigError(f"workload={file}, line {error.lineno}: not JSON ({error.msg}); it wants a list of conversations") from error
    if not isinstance(entries, list):
        raise ConfigError(f"workload={file}: ShareGPT's format is a JSON list of conversations, this is {type(entries).__name__}")
    return [pair for number, entry in enumerate(entries, 1) if (pair := _pair(file, number, entry)) is not None]


def _pair(file: Path, number: int, entry: Any) -> tuple[str, str] | None:
    where = f"workload={file}, entry {number}"
    turns = entry.get("conversations") if isinstance(entry, dict) else None
    if not isinstance(turns, list):
        raise ConfigError(f'{where}: conversations is missing; each entry wants "conversations": [{{"from": ..., "value": ...}}, ...]')
    if len(turns) < 2:
        return None
    for place, turn in enumerate(turns[:2]):
        if not isinstance(turn, dict) or not isinstance(turn.get("value"), str):
            raise ConfigError(f'{where}: conversations[{place}].value is not text; each turn wants "value": "..."')
    return _whole(turns[0]["value"]), _whole(turns[1]["value"])


def _whole(text: str) -> str:
    """Without halves of characters, which JSON can hold and no tokenizer takes: a sign for what is unknown stands for each."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
