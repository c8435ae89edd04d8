"""What an engine is given to do: prompts, and for quality the text that really follows them. The same seed gives the same tokens.

`synthetic` draws random token ids, request i the same ones however many follow it. `text` cuts windows from real text, another one
for each request.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

from vtoken_sdk.runtime.config import ConfigError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from vtoken_sdk.runtime.model_loader import LoadedModel

Lengths = Literal["fixed", "uniform", "lognormal"]

BUNDLED_TEXT = Path(__file__).parent / "data" / "pride_and_prejudice.txt"
UNIFORM_LOW = 1 / 8  # share of ctx
LOGNORMAL_MEDIAN = 1 / 4  # share of ctx
LOGNORMAL_SIGMA = 0.9  # between those of public chat (0.84) and code (0.98) traces, by their median and 95th percentile


@dataclass(frozen=True)
class Workload:
    """Requests to serve.

    prompts: token ids, one list a request. output_tokens: to generate, for each. continuations: the `output_tokens` ids that follow
    each prompt in its text; None where there is no truth. source: the text's file. notices: what a user should hear of.
    """

    kind: Literal["synthetic", "text"]
    prompts: list[list[int]]
    output_tokens: int
    continuations: list[list[int]] | None = None
    source: str | None = None
    notices: tuple[str, ...] = ()

    @property
    def prompt_tokens(self) -> int:
        """Over all requests."""
        return sum(map(len, self.prompts))


def build_workload(
    workload: str, model: LoadedModel, *, requests: int, ctx: int, output_tokens: int, seed: int = 0, lengths: Lengths = "fixed"
) -> Workload:
    """workload: "synthetic", "text", or the path of a text file. The rest as in `synthetic` and `text`. Raises ConfigError."""
    if workload == "synthetic":
        return synthetic(model, requests=requests, ctx=ctx, output_tokens=output_tokens, seed=seed, lengths=lengths)
    if lengths != "fixed":
        raise ConfigError(f"lengths={lengths}: windows of text all have ctx tokens; use lengths=fixed, or workload=synthetic")
    path = None if workload == "text" else Path(workload).expanduser()
    if path is not None and not path.exists():
        raise ConfigError(f"workload={workload}: use synthetic, text, or the path of a text file; there is no such file")
    return text(model, requests=requests, ctx=ctx, output_tokens=output_tokens, seed=seed, path=path)


def synthetic(model: LoadedModel, *, requests: int, ctx: int, output_tokens: int, seed: int = 0, lengths: Lengths = "fixed") -> Workload:
    """Ids drawn evenly from the vocabulary, special ids left out.

    lengths: "fixed" is ctx tokens; "uniform" from ctx / 8 to ctx; "lognormal" has its median at ctx / 4, longer prompts cut to ctx.
    Raises ConfigError.
    """
    _check_sizes(model, requests, ctx, output_tokens)
    if lengths not in get_args(Lengths):
        raise ConfigError(f"lengths={lengths!r}: use one of {', '.join(get_args(Lengths))}")
    ids = _ordinary_ids(model)
    prompts = []
    for request in range(requests):
        rng = random.Random(f"{seed}/{request}")
        prompts.append(rng.choices(ids, k=_length(lengths, ctx, rng)))
    return Workload("synthetic", prompts, output_tokens)


def text(model: LoadedModel, *, requests: int, ctx: int, output_tokens: int, seed: int = 0, path: str | Path | None = None) -> Workload:
    """Windows of ctx tokens and the output_tokens after them, spread evenly over the text; the seed shifts them all.

    path: a UTF-8 file; None is the bundled excerpt of Pride and Prejudice. A tokenizer that begins texts with a start token begins
    each window with it. Without a tokenizer (dummy weights only) bytes are the tokens. Raises ConfigError.
    """
    _check_sizes(model, requests, ctx, output_tokens)
    file = BUNDLED_TEXT if path is None else Path(path).expanduser()
    content = _read(file)
    notices: list[str] = []
    start: list[int] = []
    if model.tokenizer is not None:
        start = _start_ids(model.tokenizer)
        tokens = list(model.tokenizer(content, add_special_tokens=False, verbose=False)["input_ids"])
    elif model.weights == "real":
        raise ConfigError(f"workload=text: {model.name} has real weights and no tokenizer; put its tokenizer.json beside them")
    else:
        tokens = [byte % model.vocab_size for byte in content.encode()]
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


def _check_sizes(model: LoadedModel, requests: int, ctx: int, output_tokens: int) -> None:
    for key, value in (("requests", requests), ("ctx", ctx), ("output_tokens", output_tokens)):
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ConfigError(f"{key}={value!r}: use a whole number >= 1")
    room = model.max_positions - output_tokens + 1  # the last token is never run
    if ctx > room:
        mend = f"use ctx <= {room}" if room > 0 else f"use output_tokens <= {model.max_positions}"
        raise ConfigError(f"ctx={ctx}, output_tokens={output_tokens}: {model.name} has {model.max_positions} positions for both; {mend}")


def _length(lengths: Lengths, ctx: int, rng: random.Random) -> int:
    if lengths == "uniform":
        return rng.randint(max(1, int(ctx * UNIFORM_LOW)), ctx)
    if lengths == "lognormal":
        drawn = rng.lognormvariate(math.log(ctx * LOGNORMAL_MEDIAN), LOGNORMAL_SIGMA)
        return max(1, min(ctx, round(drawn)))
    return ctx


def _ordinary_ids(model: LoadedModel) -> list[int]:
    """The vocabulary without start, end, padding and added tokens, and without the ids that no tokenizer knows."""
    config, tokenizer = model.hf.config, model.tokenizer
    special = {*model.eos_token_ids, config.bos_token_id, config.pad_token_id}
    size = model.vocab_size
    if tokenizer is not None:
        special.update(tokenizer.all_special_ids, tokenizer.get_added_vocab().values())
        size = min(size, len(tokenizer))
    ids = [token for token in range(size) if token not in special]
    if not ids:
        raise ConfigError(f"workload=synthetic: every id of {model.name}'s vocabulary is special; use workload=text")
    return ids


def _start_ids(tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """What the tokenizer puts before every text: a start token, or nothing."""
    bare = tokenizer("a", add_special_tokens=False)["input_ids"]
    full = list(tokenizer("a")["input_ids"])
    return full[: full.index(bare[0])]


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(f"workload={file}: not UTF-8 text ({error.reason} at byte {error.start}); convert it first") from error
    except OSError as error:
        raise ConfigError(f"workload={file}: cannot be read ({error.strerror}); give a text file") from error
