"""What somebody may have meant: the known name that is most like a word."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def nearest(word: str, names: Iterable[str]) -> str | None:
    """By the whole or by its last part (`prefill` finds `evict.prefill`); case does not count."""
    names = list(names)
    for part in (str, _last_part):
        known = {part(name).lower(): name for name in names}
        if close := difflib.get_close_matches(part(word).lower(), known, 1):
            return known[close[0]]
    return None


def did_you_mean(word: str, names: Iterable[str], form: str = "; did you mean {}?") -> str:
    """The end of an error; "" where no name is near."""
    near = nearest(word, names)
    return form.format(near) if near else ""


def _last_part(name: str) -> str:
    return name.rpartition(".")[2]
