"""Text that grows by whole characters while tokens arrive."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_BROKEN = "�"


class Detokenizer:
    """The text of one request. `text` never ends in half a character until `finish`, and then equals decoding all ids at once."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, stop: Sequence[str]) -> None:
        self.tokenizer, self.stop = tokenizer, stop
        self.ids: list[int] = []
        self.text = ""
        self._stopped = False
        self._start = self._read = 0  # ids[_start:_read] is context that decides on spaces, its text is out already

    def append(self, token: int) -> bool:
        """Add a token. True if a stop string is complete; `text` then ends before it."""
        self.ids.append(token)
        context = self._decode(self.ids[self._start : self._read])
        longer = self._decode(self.ids[self._start :])
        if longer.endswith(_BROKEN) or len(longer) <= len(context):
            return False
        before = len(self.text)
        self.text += longer[len(context) :]
        self._start, self._read = self._read, len(self.ids)
        return self._cut(before)

    def finish(self) -> str:
        """The whole text, a broken tail included."""
        if not self._stopped:
            self.text = self._decode(self.ids)
        return self.text

    def _cut(self, before: int) -> bool:
        longest = max(map(len, self.stop), default=0)
        found = [at for s in self.stop if (at := self.text.find(s, max(0, before - longest))) >= 0]
        if found:
            self.text, self._stopped = self.text[: min(found)], True
        return self._stopped

    def _decode(self, ids: Sequence[int]) -> str:
        return str(self.tokenizer.decode(ids, skip_special_tokens=True))
