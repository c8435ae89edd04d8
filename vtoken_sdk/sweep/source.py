"""Hashes of the files that a job reads: an edited file is another job."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .values import UsageError


def file_sha256(path: Path) -> str:
    """Of a file's content, read once for all jobs of a plan. Raises OSError."""
    stat = path.stat()
    return _sha256(path, stat.st_mtime_ns, stat.st_size)


@functools.lru_cache
def _sha256(path: Path, mtime_ns: int, size: int) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def workload_sha256(flat: Mapping[str, Any]) -> str | None:
    """Of the workload's file; None where it is none, or lies on another machine: what reads it says so.

    Raises UsageError if it is not the one that `workload_sha256` asks for.
    """
    from vtoken_sdk.workloads.build import NAMES

    try:
        found = file_sha256(Path(str(flat["workload"])).expanduser()) if flat["workload"] not in NAMES else None
    except OSError:
        found = None
    wanted = flat.get("workload_sha256")
    if found is not None and wanted not in (None, found):
        now = f"{flat['workload']} has {found}"
        raise UsageError(f"workload_sha256={wanted}: {now}; restore the file of the record, or write workload_sha256=null")
    return found or wanted
