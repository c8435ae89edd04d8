"""How rows of results are named, grouped and compared. Used on the terminal and on the page."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

Row = dict[str, Any]

RUNTIMES = ("native", "naive", "refill", "vtoken", "page1")
# What names a row, in the order of sorting; the runtime comes last. The first ones hold for native too.
LOAD_KEYS = (
    *("model", "weights", "dtype", "device", "workload", "requests", "ctx", "lengths", "max_tokens"),
    *("chunk", "max_running", "pool_block_size", "pool_blocks", "prefix_cache", "quality_query", "seed"),
)
VICTIM_KEYS = ("policy", "option", "budget", "evict_prefill", "evict_every")  # they decide who dies
RECLAIM_KEYS = ("threshold", "margin", "reclaim")
POLICY_KEYS = (*VICTIM_KEYS, *RECLAIM_KEYS)


def key_of(row: Row, key: str) -> Any:
    """A budget is text: 1.0 keeps all tokens, 1 keeps one."""
    return str(row[key]) if key == "budget" and row[key] is not None else row[key]


def sort_key(row: Row) -> tuple[Any, ...]:
    """Rows of one load together, native first, then by policy and budget, runtimes innermost."""

    def order(key: str) -> tuple[float, str]:
        value = row["budget"] if key == "budget" else key_of(row, key)
        return (value, "") if isinstance(value, int | float) else (-1.0, value or "")

    return (*map(order, (*LOAD_KEYS, *VICTIM_KEYS)), RUNTIMES.index(row["runtime"]), *map(order, RECLAIM_KEYS))


def varying(rows: Sequence[Row]) -> list[str]:
    """The keys besides the runtime whose values differ between rows. None does not apply; "auto" is of jobs that did not run."""
    return [k for k in (*LOAD_KEYS, *POLICY_KEYS) if len({key_of(r, k) for r in rows} - {None, "auto"}) > 1]


def fixed_label(rows: Sequence[Row], keys: Iterable[str] = (*POLICY_KEYS, *LOAD_KEYS)) -> str:
    """What all rows share, where it applies, in one line."""
    parts = []
    for key in keys:
        named = [r for r in rows if key_of(r, key) is not None]
        if named and key not in varying(rows):
            parts.append(label(named[0], [key]))
    return ", ".join(parts)


def group_of(row: Row) -> tuple[Any, ...]:
    """Rows with the same victims: one load, one policy, one budget, whatever the runtime."""
    return tuple(key_of(row, key) for key in (*LOAD_KEYS, *VICTIM_KEYS))


def baseline(row: Row, rows: Iterable[Row]) -> Row | None:
    """The native row of the same load."""
    load = [key_of(row, k) for k in LOAD_KEYS]
    return next((r for r in rows if r["runtime"] == "native" and r["status"] == "done" and [key_of(r, k) for k in LOAD_KEYS] == load), None)


def label(row: Row, keys: Iterable[str]) -> str:
    """For people: the values of these keys."""
    parts = []
    for key in keys:
        value = key_of(row, key)
        if value is not None:
            parts.append(str(value) if key in ("policy", "model", "workload", "option", "reclaim") else f"{key}={show(key, value)}")
    return ", ".join(parts)


def show(key: str, value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:,}" if key in ("ctx", "pool_blocks", "requests") else str(value)


def grouped(rows: Iterable[Row]) -> list[list[Row]]:
    """Rows with the same victims together, in the order of `sort_key`."""
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in sorted(rows, key=sort_key):
        groups.setdefault(group_of(row), []).append(row)
    return list(groups.values())
