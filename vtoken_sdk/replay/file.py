"""The file of a recording: Parquet, one row a step of a request, with the record of the run in its schema."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from vtoken_sdk.runtime import Recording

VERSION = 1
KEY = b"vtoken_recording"


class RecordingError(ValueError):
    """A file is no recording, or one that this version cannot read. Names the file."""


@dataclass(frozen=True)
class RecordedRun:
    """requests: one recording each, with prompt_tokens of the same length. about: model, weights, workload, versions, ... (flat)."""

    requests: tuple[Recording, ...]
    prompt_tokens: tuple[int, ...]
    about: Mapping[str, Any]


def write_recording(path: Path, run: RecordedRun) -> None:
    """Whole or not at all. Raises OSError."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows: dict[str, list[Any]] = {name: [] for name in ("request", "prompt_tokens", "length", "attention", "key_norms")}
    for number, (recording, prompt) in enumerate(zip(run.requests, run.prompt_tokens, strict=True)):
        before = 0
        for length, attention in zip(recording.lengths.tolist(), recording.attention, strict=True):
            values = (number, prompt, length, attention[:length].numpy(), recording.key_norms[before:length].numpy())
            for column, value in zip(rows.values(), values, strict=True):
                column.append(value)
            before = length
    floats = pa.list_(pa.float32())
    schema = pa.schema(
        [("request", pa.int32()), ("prompt_tokens", pa.int64()), ("length", pa.int64()), ("attention", floats), ("key_norms", floats)],
        metadata={KEY: json.dumps({"version": VERSION, **run.about})},
    )
    scratch = path.with_name(path.name + ".part")
    pq.write_table(pa.table(rows, schema=schema), scratch, compression="zstd")
    scratch.replace(path)


def read_recording(path: Path) -> RecordedRun:
    """Raises RecordingError."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    if not path.exists():
        raise RecordingError(f"{path}: there is no such file; make it with vtoken-replay record")
    try:
        table = pq.read_table(path)
    except (OSError, pa.ArrowException) as error:
        raise RecordingError(f"{path}: not a readable recording ({error})") from error
    about = json.loads((table.schema.metadata or {}).get(KEY, b"null"))
    if about is None:
        raise RecordingError(f"{path}: a Parquet file, but no recording; vtoken-replay record makes one")
    if (version := about.pop("version")) != VERSION:
        raise RecordingError(f"{path}: recording of format {version}, and this release reads format {VERSION}; record it again")
    requests: list[Recording] = []
    prompts: list[int] = []
    for rows in _by_request(table.to_pydict()):
        requests.append(Recording.from_steps([r[1] for r in rows], [torch.tensor(r[2]) for r in rows], [torch.tensor(r[3]) for r in rows]))
        prompts.append(rows[0][0])
    return RecordedRun(tuple(requests), tuple(prompts), about)


def _by_request(columns: Mapping[str, Sequence[Any]]) -> list[list[tuple[Any, ...]]]:
    """Rows (prompt_tokens, length, attention, key_norms) of each request, in order."""
    groups: dict[int, list[tuple[Any, ...]]] = {}
    for request, *row in zip(*(columns[n] for n in ("request", "prompt_tokens", "length", "attention", "key_norms")), strict=True):
        groups.setdefault(request, []).append(tuple(row))
    return [groups[number] for number in sorted(groups)]
