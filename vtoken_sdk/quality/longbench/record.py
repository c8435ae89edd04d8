"""The lines of a LongBench file."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from vtoken_sdk.nearest import did_you_mean
from vtoken_sdk.runtime.config import ConfigError

FIELDS = ("input", "context", "answers", "length", "dataset", "language", "all_classes", "_id")
KINDS = {
    "input": "a string (the question; may be empty)",
    "context": "a string with text in it",
    "answers": "a list of at least one string",
    "dataset": 'a string, such as "hotpotqa" or a name of your own',
    "language": 'a string, such as "en"',
    "length": "a whole number",
    "all_classes": "a list of strings, or null",
    "_id": "a string",
}
OPTIONAL = ("length", "language", "all_classes", "_id")


@dataclass(frozen=True)
class Record:
    """One line. answers: any of them is right; the first is the one that is forced. classes: empty but for classification."""

    id: str
    dataset: str
    question: str
    context: str
    answers: tuple[str, ...]
    classes: tuple[str, ...]


def read_records(path: str | Path) -> list[Record]:
    """All lines of the file, empty ones apart. Raises ConfigError that names file, line, field and mend."""
    file = Path(path).expanduser()
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise ConfigError(f"quality.data={file}: not UTF-8 text ({error.reason} at byte {error.start}); convert it first") from error
    except OSError as error:
        raise ConfigError(
            f"quality.data={file}: cannot be read ({error.strerror}); give a LongBench file, one JSON object a line"
        ) from error
    records = [_record(f"quality.data={file}, line {number}", number, line) for number, line in enumerate(lines, 1) if line.strip()]
    if not records:
        raise ConfigError(f"quality.data={file}: no lines; give a LongBench file, one JSON object a line")
    first: dict[str, int] = {}
    for number, record in enumerate(records, 1):
        if record.id in first:
            raise ConfigError(
                f'quality.data={file}: items {first[record.id]} and {number} have the same _id "{record.id}"; give each its own'
            )
        first[record.id] = number
    return records


def _record(where: str, number: int, line: str) -> Record:
    try:
        fields = json.loads(line)
    except ValueError as error:
        raise ConfigError(f"{where}: not JSON ({error}); write one JSON object a line, with the fields {', '.join(FIELDS)}") from error
    if not isinstance(fields, dict):
        raise ConfigError(
            f"{where}: {type(fields).__name__}, not an object; write one JSON object a line, with the fields {', '.join(FIELDS)}"
        )
    for name in FIELDS:
        if name not in fields:
            if name in OPTIONAL:
                continue
            raise ConfigError(
                f"{where}: no field {name}; "
                + (did_you_mean(name, sorted(set(fields) - set(FIELDS)), "rename {}") or f"add it: {KINDS[name]}")
            )
        if not _fits(name, fields[name]):
            raise ConfigError(f"{where}: {name}={json.dumps(fields[name], ensure_ascii=False)[:60]}; make it {KINDS[name]}")
    return Record(
        str(fields.get("_id") or number),
        fields["dataset"].lower().removesuffix("_e"),  # LongBench-E has the same tasks
        fields["input"],
        fields["context"],
        tuple(fields["answers"]),
        tuple(fields.get("all_classes") or ()),
    )


def _fits(name: str, value: object) -> bool:
    if name in ("answers", "all_classes"):
        if value is None:
            return name == "all_classes"
        return isinstance(value, list) and all(isinstance(v, str) and v for v in value) and (bool(value) or name == "all_classes")
    if name == "length":
        return value is None or (isinstance(value, int) and not isinstance(value, bool))
    if name in OPTIONAL and value is None:
        return True
    return isinstance(value, str) and bool(value or name == "input")
