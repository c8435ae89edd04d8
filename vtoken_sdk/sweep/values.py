"""What the value of a key may look like: a parser a kind. Imports nothing heavy."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from vtoken_sdk.nearest import did_you_mean
from vtoken_sdk.tracking import KINDS

Value = str | int | float | bool | None
Parser = Callable[[str, Any], Value]

MOST = 2**63 - 1  # what a column of the results holds


class UsageError(Exception):
    """The command cannot be run as it is. One line: the key, what is wrong, and the mend. Nothing has run."""


def as_number(value: object) -> object:
    """Numbers written as text, as they come out of a comma list in a file."""
    if isinstance(value, str):
        for kind in (int, float):
            try:
                return kind(value)
            except ValueError:
                continue
    return value


def _size(value: object) -> object:
    """16k -> 16384, 1m -> 1048576, 1.5k -> 1536; anything else as `as_number`."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([km])", value.strip().lower()) if isinstance(value, str) else None
    if match is None:
        return as_number(value)
    tokens = float(match[1]) * {"k": 1024, "m": 1024**2}[match[2]]
    return int(tokens) if tokens.is_integer() else tokens


def whole(low: int) -> Parser:
    def parse(key: str, value: Any) -> int:
        number = _size(value)
        if isinstance(number, bool) or not isinstance(number, int) or number < low:
            mend = f"; write {key}={int(number)}" if isinstance(number, float) and number.is_integer() and number >= low else ""
            raise UsageError(f"{key}={value}: use a whole number >= {low}, such as {max(low, 512)} or 16k{mend}")
        if number > MOST:
            raise UsageError(f"{key}={value}: use a whole number up to {MOST}")
        return number

    return parse


def number(key: str, value: Any) -> float:
    parsed = as_number(value)
    if isinstance(parsed, bool) or not isinstance(parsed, int | float):
        raise UsageError(f"{key}={value}: use a number")
    return float(parsed)


def budget(key: str, value: Any) -> float | int:
    """A ratio stays a float, tokens an int: 1.0 keeps all, 1 keeps one token."""
    parsed = _size(value)
    if isinstance(parsed, bool) or not isinstance(parsed, int | float) or not parsed > 0:
        raise UsageError(f"{key}={value}: use a ratio of the prompt such as 0.5, or a number of tokens such as 512 or 2k")
    if parsed > MOST:
        raise UsageError(f"{key}={value}: more tokens than any prompt has")
    if isinstance(parsed, float) and not parsed <= 1:
        raise UsageError(f"{key}={value}: a ratio is at most 1.0; for tokens write a whole number, such as {key}={max(1, round(parsed))}")
    return parsed


def above_zero(key: str, value: Any) -> float:
    parsed = number(key, value)
    if not 0 < parsed < float("inf"):
        raise UsageError(f"{key}={value}: use a number above 0")
    return parsed


def seconds(key: str, value: Any) -> float:
    parsed = number(key, value)
    if not 0 <= parsed < float("inf"):
        raise UsageError(f"{key}={value}: use a number of seconds, 0 or more")
    return parsed


def optional(parse: Parser, none: tuple[object, ...] = (None,)) -> Parser:
    """None, or another value that stands for it, does not apply."""
    return lambda key, value: None if value in none else parse(key, value)


def text(key: str, value: Any) -> str:
    if value is None or isinstance(value, bool) or not str(value).strip():
        raise UsageError(f"{key}={value}: give it a name")
    return str(value)


def flag(key: str, value: Any) -> bool:
    known = {"true": True, "false": False}
    if isinstance(value, bool) or str(value).lower() not in known:
        if isinstance(value, bool):
            return value
        raise UsageError(f"{key}={value}: use true or false")
    return known[str(value).lower()]


def choice(*names: str) -> Parser:
    def parse(key: str, value: Any) -> str:
        word = {True: "on", False: "off"}.get(value, value) if isinstance(value, bool) else value  # YAML reads on and off as booleans
        if word not in names:
            raise UsageError(f"{key}={value}: use one of {', '.join(names)}{did_you_mean(str(word), names, f'; did you mean {key}={{}}?')}")
        return str(word)

    return parse


def tracker_names(value: str | None) -> list[str]:
    """Of trackers besides the files, from their comma list."""
    return [word.strip() for word in (value or "").split(",") if word.strip() not in ("", "jsonl")]


def trackers(key: str, value: Any) -> str | None:
    """What was asked for and is not installed is told before anything runs; W&B is the default, and then a notice at the end."""
    for name in tracker_names(None if value is None else str(value)):
        if name not in KINDS:
            raise UsageError(f"{key}={value}: {name} is none of jsonl, {', '.join(KINDS)}{did_you_mean(name, KINDS)}")
        if name != "wandb" and not KINDS[name].installed:
            raise UsageError(f"{key}={value}: {name} is not installed; pip install 'vtoken-sdk[{KINDS[name].extra}]'")
    return None if value is None else str(value)
