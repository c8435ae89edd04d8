"""A workload, and the checks that all of them share."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from vtoken_sdk.runtime.config import ConfigError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from vtoken_sdk.runtime.model_loader import LoadedModel


@dataclass(frozen=True)
class Workload:
    """Requests to serve.

    prompts: token ids, one list a request. output_tokens: to generate, for each; where requests differ, the most, and `outputs` has one
    number a request. arrivals_s: seconds from the start at which each request arrives, ascending; None: all at once. continuations: the
    `output_tokens` ids that follow each prompt in its text; None where there is no truth. source: the file that it came from.
    notices: what a user should hear of.
    """

    kind: str
    prompts: list[list[int]]
    output_tokens: int
    continuations: list[list[int]] | None = None
    source: str | None = None
    notices: tuple[str, ...] = ()
    outputs: list[int] | None = None
    arrivals_s: list[float] | None = None

    @property
    def prompt_tokens(self) -> int:
        """Over all requests."""
        return sum(map(len, self.prompts))

    @property
    def output_lengths(self) -> list[int]:
        """Tokens to generate, one number a request."""
        return self.outputs if self.outputs is not None else [self.output_tokens] * len(self.prompts)


@dataclass
class Cuts:
    """Caps lengths that come from a distribution or a file, and counts what it capped. scale multiplies every length first."""

    ctx: int
    output_tokens: int
    scale: float = 1.0
    prompts_cut: int = 0
    outputs_cut: int = 0

    def prompt(self, tokens: int) -> int:
        wanted = max(1, round(min(tokens * self.scale, self.ctx + 1)))
        self.prompts_cut += wanted > self.ctx
        return min(wanted, self.ctx)

    def output(self, tokens: int) -> int:
        wanted = max(1, round(min(tokens * self.scale, self.output_tokens + 1)))
        self.outputs_cut += wanted > self.output_tokens
        return min(wanted, self.output_tokens)

    def notices(self, requests: int) -> list[str]:
        """A sentence for each key that cut something."""
        counts = (("prompts", self.prompts_cut, "ctx", self.ctx), ("outputs", self.outputs_cut, "output_tokens", self.output_tokens))
        return [f"{cut} of {requests} {what} are longer than {key}={most} and were cut to it" for what, cut, key, most in counts if cut]


def check_sizes(model: LoadedModel, requests: int, ctx: int, output_tokens: int) -> None:
    """Raises ConfigError if a number is none, or a request of this size has more positions than the model."""
    for key, value in (("requests", requests), ("ctx", ctx), ("output_tokens", output_tokens)):
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ConfigError(f"{key}={value!r}: use a whole number >= 1")
    room = model.max_positions - output_tokens + 1  # the last token is never run
    if ctx > room:
        mend = f"use ctx <= {room}" if room > 0 else f"use output_tokens <= {model.max_positions}"
        raise ConfigError(f"ctx={ctx}, output_tokens={output_tokens}: {model.name} has {model.max_positions} positions for both; {mend}")


def ordinary_ids(model: LoadedModel) -> list[int]:
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


def start_ids(tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """What the tokenizer puts before every text: a start token, or nothing."""
    bare = tokenizer("a", add_special_tokens=False)["input_ids"]
    full = list(tokenizer("a")["input_ids"])
    return full[: full.index(bare[0])]


def text_ids(model: LoadedModel, content: str) -> list[int]:
    """Ids of a text. Without a tokenizer (dummy weights only) its bytes. Raises ConfigError for real weights without a tokenizer."""
    if model.tokenizer is not None:
        return list(model.tokenizer(content, add_special_tokens=False, verbose=False)["input_ids"])
    if model.weights == "real":
        raise ConfigError(f"workload=text: {model.name} has real weights and no tokenizer; put its tokenizer.json beside them")
    return [byte % model.vocab_size for byte in content.encode()]


def read_text(file: Path) -> str:
    """UTF-8. Raises ConfigError."""
    try:
        return file.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(f"workload={file}: not UTF-8 text ({error.reason} at byte {error.start}); convert it first") from error
    except OSError as error:
        raise ConfigError(f"workload={file}: cannot be read ({error.strerror}); give a text file") from error


def sha256_of(file: str | Path) -> str:
    """Of a file's bytes."""
    with Path(file).open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
