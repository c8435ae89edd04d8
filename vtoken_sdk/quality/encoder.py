"""Text to token ids and back, in pieces that are put together as ids."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from vtoken_sdk.runtime.config import ConfigError

if TYPE_CHECKING:
    from vtoken_sdk.runtime.model_loader import LoadedModel


class Encoder:
    """A model's tokenizer. Raises ConfigError if it has none; what: the texts, for the message."""

    def __init__(self, model: LoadedModel, what: str) -> None:
        if model.tokenizer is None:
            raise ConfigError(f"{what} are text, and {model.name} has no tokenizer; use a model with real weights")
        self._tokenizer = model.tokenizer
        self.start_tokens = len(self.first("a")) - len(self("a"))  # what the tokenizer puts before every text

    def __call__(self, text: str) -> list[int]:
        """Ids of a text that follows another."""
        return list(self._tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])

    def first(self, text: str) -> list[int]:
        """Ids of a text at the beginning of a prompt, with its start tokens."""
        return list(self._tokenizer(text, verbose=False)["input_ids"])

    def words(self, ids: Sequence[int]) -> list[str]:
        """The text of each token by itself."""
        return list(self._tokenizer.batch_decode([[token] for token in ids]))

    def text(self, ids: Sequence[int]) -> str:
        """Without special tokens."""
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=True))
