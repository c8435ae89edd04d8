"""Public request traces, read line by line: what each file's columns are called and what they mean.

azure: CSV, Azure's LLM inference traces of 2023 (Patel et al., Splitwise) and 2024 (Stojkovic et al., DynamoLLM): TIMESTAMP is a date.
burstgpt: CSV (Wang et al. 2024): Timestamp in seconds; failed requests have no response tokens.
mooncake: JSONL (Qin et al., FAST'25): timestamp in milliseconds, hash_ids of blocks of 512 tokens.
bailian: JSONL (Wang et al., ATC'25; qwen-bailian-usagetraces-anon): timestamp in seconds, hash_ids of blocks of 16 tokens.
"""

from __future__ import annotations

import csv
import itertools
import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from vtoken_sdk.runtime.config import ConfigError


@dataclass(frozen=True)
class TraceRequest:
    """time_s: seconds on the trace's own clock. hash_ids: of its blocks of tokens, equal where the content is; () where not told."""

    time_s: float
    input_tokens: int
    output_tokens: int
    hash_ids: tuple[int, ...] = ()


@dataclass(frozen=True)
class TraceFormat:
    """time, input, output: names of fields. seconds: turns the time field into seconds, ValueError if it cannot. mark: a field that only
    this format has. hash_block: tokens that one of hash_ids stands for; 0: the format has none."""

    name: str
    suffix: str
    time: str
    input: str
    output: str
    mark: str
    seconds: Callable[[Any], float]
    time_is: str
    hash_block: int = 0

    def request(self, fields: Mapping[str, Any], where: str) -> TraceRequest | None:
        """None if nothing went in or came out. where: file and line, for errors. Raises ConfigError."""
        try:
            time_s = self.seconds(fields[self.time])
            if not math.isfinite(time_s):
                raise ValueError
        except (ValueError, TypeError, OverflowError) as error:
            raise ConfigError(f"{where}: {self.time}={str(fields[self.time])[:40]!r}: use {self.time_is}; {MEND}") from error
        tokens_in, tokens_out = (_tokens(fields[name], name, where) for name in (self.input, self.output))
        if not tokens_in or not tokens_out:
            return None
        return TraceRequest(time_s, tokens_in, tokens_out, self._hash_ids(fields, where))

    def _hash_ids(self, fields: Mapping[str, Any], where: str) -> tuple[int, ...]:
        ids = fields.get("hash_ids", []) if self.hash_block else []
        if not isinstance(ids, list) or not all(isinstance(i, int) and not isinstance(i, bool) for i in ids):
            raise ConfigError(f"{where}: hash_ids={ids!r}: use a list of whole numbers; {MEND}")
        return tuple(ids)


MOST = 2**53  # tokens, exact as a float
MEND = "correct the line, or delete it"


def _date(value: str) -> float:
    """A date without a zone is UTC, not this machine's, whose clock may be put forward in the middle of a trace."""
    date = datetime.fromisoformat(value.strip())
    return (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp()


def _milliseconds(value: Any) -> float:
    return _seconds(value) / 1e3


def _seconds(value: Any) -> float:
    if isinstance(value, bool):
        raise ValueError
    return float(value)


FORMATS = (
    TraceFormat("azure", ".csv", "TIMESTAMP", "ContextTokens", "GeneratedTokens", "ContextTokens", _date, "a date and time"),
    TraceFormat("burstgpt", ".csv", "Timestamp", "Request tokens", "Response tokens", "Request tokens", _seconds, "a number of seconds"),
    TraceFormat("bailian", ".jsonl", "timestamp", "input_length", "output_length", "chat_id", _seconds, "a number of seconds", 16),
    TraceFormat("mooncake", ".jsonl", "timestamp", "input_length", "output_length", "input_length", _milliseconds, "milliseconds", 512),
)


def read_trace(file: Path) -> tuple[TraceFormat, Iterator[TraceRequest | None]]:
    """The file's format and its requests in the order of lines; None for a line without tokens in or out. Raises ConfigError, also while
    the requests are read: it names file, line, field and mend."""
    lines = _csv_lines(file) if file.suffix.lower() == ".csv" else _json_lines(file)
    first = next(lines, None)
    if first is None:
        raise ConfigError(f"workload={file}: it has no request; give a trace with one line a request")
    number, fields = first
    found = next((f for f in FORMATS if f.suffix == file.suffix.lower() and f.mark in fields), None)
    if found is None:
        known = "; ".join(f"{f.name} has {f.time}, {f.input}, {f.output}" for f in FORMATS if f.suffix == file.suffix.lower())
        raise ConfigError(f"workload={file}, line {number}: no format that is known has the fields {', '.join(fields)}: {known}")

    return found, (_checked(found, values, f"workload={file}, line {line}") for line, values in itertools.chain([first], lines))


def _checked(known: TraceFormat, fields: Mapping[str, Any], where: str) -> TraceRequest | None:
    for name in (known.time, known.input, known.output):
        if fields.get(name) is None:
            raise ConfigError(f"{where}: {name} is missing; {MEND}")
    return known.request(fields, where)


def _tokens(value: Any, name: str, where: str) -> int:
    try:
        tokens = int(value) if isinstance(value, str) else value
    except ValueError:
        tokens = None
    if not isinstance(tokens, int) or isinstance(tokens, bool) or not 0 <= tokens <= MOST:
        raise ConfigError(f"{where}: {name}={str(value)[:40]!r}: use a whole number of tokens; {MEND}")
    return tokens


def _csv_lines(file: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """(line number, fields by the header's names)."""
    with _opened(file) as stream:
        reader = csv.DictReader(stream)
        try:
            for fields in reader:
                yield reader.line_num, {(name or "").strip(): value for name, value in fields.items() if isinstance(name, str)}
        except (csv.Error, UnicodeDecodeError) as error:
            raise ConfigError(f"workload={file}, line {reader.line_num + 1}: not CSV ({error}); {MEND}") from error


def _json_lines(file: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    with _opened(file) as stream:
        number = 0
        try:
            for number, line in enumerate(stream, 1):
                if not line.strip():
                    continue
                fields = json.loads(line)
                if not isinstance(fields, dict):
                    raise ConfigError(f"workload={file}, line {number}: not a JSON object; {MEND}")
                yield number, fields
        except json.JSONDecodeError as error:
            raise ConfigError(f"workload={file}, line {number}: not JSON ({error.msg} at column {error.colno}); {MEND}") from error
        except UnicodeDecodeError as error:
            raise ConfigError(f"workload={file}, line {number + 1}: not UTF-8 text; {MEND}") from error
        except (ValueError, RecursionError) as error:  # thousands of digits or brackets
            raise ConfigError(f"workload={file}, line {number}: not JSON that can be read ({error}); {MEND}") from error


def _opened(file: Path) -> Any:
    try:
        return file.open(encoding="utf-8-sig", newline="")
    except OSError as error:
        raise ConfigError(f"workload={file}: cannot be read ({error.strerror}); give a request trace") from error
