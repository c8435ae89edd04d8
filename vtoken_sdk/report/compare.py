"""How rows of results are named, grouped and compared. Used on the terminal and in reports."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Row = dict[str, Any]

RUNTIMES = ("native", "naive", "refill", "vtoken", "page1")
# What names a row, in the order of sorting; the runtime comes last. The first ones hold for native too.
LOAD_KEYS = (
    *("model", "weights", "dtype", "device", "workload", "requests", "ctx", "lengths", "max_tokens"),
    *("length_scale", "arrivals", "request_rate", "burstiness", "max_concurrency", "step_ms"),
    *("chunk", "max_running", "pool_block_size", "pool_blocks", "prefix_cache", "quality_query", "setup", "seed"),
)
VICTIM_KEYS = ("policy", "option", "budget", "evict_prefill", "evict_every")  # they decide who dies
RECLAIM_KEYS = ("threshold", "margin", "reclaim")
POLICY_KEYS = (*VICTIM_KEYS, *RECLAIM_KEYS)
PAIRS = ("option", "reclaim", "setup")  # columns of several options as text: "recent=0.5 sinks=4"
UNLIMITED = float("inf")
AS_IT_IS = ("policy", "model", "workload", "option", "reclaim", "setup")  # values that need no key in front


def key_of(row: Row, key: str) -> Any:
    """A budget is text: 1.0 keeps all tokens, 1 keeps one. No limit on a load is `UNLIMITED`, and a trace's own rate is "trace"."""
    value = row.get(key)
    if value is None:
        if key == "request_rate" and row.get("arrivals") == "trace":
            return "trace"
        return UNLIMITED if key in ("request_rate", "max_concurrency") and row.get("arrivals") is not None else None
    return str(value) if key == "budget" else value


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
        named = [r for r in rows if key_of(r, key) not in (None, UNLIMITED, "trace")]
        if named and key not in varying(rows):
            parts.append(label(named[0], [key]))
    return ", ".join(parts)


def trimmed(rows: Sequence[Row]) -> list[Row]:
    """The rows with those options only, in the columns that hold several, whose values differ between rows: the rest names nothing."""
    kept = {column: _differing([str(r[column]).split() for r in rows if r.get(column) is not None]) for column in PAIRS}

    def cut(row: Row, column: str) -> str | None:
        return " ".join(p for p in str(row[column]).split() if p.partition("=")[0] in kept[column]) or None

    return [{**row, **{column: cut(row, column) for column in PAIRS if row.get(column) is not None}} for row in rows]


def _differing(found: Sequence[Sequence[str]]) -> set[str]:
    """Names that are not in all of them with one value. A single value is kept whole: a title names it."""
    pairs = dict.fromkeys(pair for one in found for pair in one)
    shared = {pair.partition("=")[0] for pair in pairs if all(pair in one for one in found)}
    names = {pair.partition("=")[0] for pair in pairs}
    return names if names == shared else names - shared


def group_of(row: Row, *, seeds: bool = True) -> tuple[Any, ...]:
    """Rows with the same victims: one load, one policy, one budget, whatever the runtime. seeds: False takes all seeds together."""
    return tuple(key_of(row, key) for key in (*LOAD_KEYS, *VICTIM_KEYS) if seeds or key != "seed")


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
            parts.append(str(value) if key in AS_IT_IS else f"{key}={show(key, value)}")
    return ", ".join(parts)


def show(key: str, value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:,}" if key in ("ctx", "pool_blocks", "requests") else str(value)


def grouped(rows: Iterable[Row], *, seeds: bool = True) -> list[list[Row]]:
    """Rows with the same victims together, in the order of `sort_key`. seeds: False takes all seeds together."""
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in sorted(rows, key=sort_key):
        groups.setdefault(group_of(row, seeds=seeds), []).append(row)
    return list(groups.values())


class BaselineError(Exception):
    """No row can be the baseline that was asked for. One line, with what there is."""


@dataclass(frozen=True)
class Baselines:
    """What each finished row is compared with: a runtime's row of the same load (and victims, if it evicts), or a policy's of the same
    budget under the same runtime. of: job -> row.
    """

    name: str
    of: Mapping[str, Row]

    @classmethod
    def among(cls, rows: Sequence[Row], name: str) -> Baselines:
        """Raises BaselineError where no row has that runtime or policy."""
        done = [row for row in rows if row["status"] == "done"]
        keys: tuple[str, ...]
        if name in RUNTIMES:
            column, keys = "runtime", LOAD_KEYS if name == "native" else (*LOAD_KEYS, *VICTIM_KEYS)
        else:
            column, keys = "policy", (*(k for k in (*LOAD_KEYS, *VICTIM_KEYS) if k not in ("policy", "option")), "runtime")
        known = {value: None for column in ("runtime", "policy") for row in rows if (value := row[column]) is not None}
        if name not in known and name != "native":
            raise BaselineError(f"--baseline {name}: no job has that runtime or policy; there are {', '.join(known)}")
        bases: dict[tuple[Any, ...], Row] = {}
        for row in sorted(done, key=sort_key):
            if row[column] == name:
                bases.setdefault(tuple(key_of(row, k) for k in keys), row)
        found = {row["job"]: bases.get(tuple(key_of(row, k) for k in keys)) for row in done}
        return cls(name, {job: base for job, base in found.items() if base is not None})

    def __call__(self, row: Row) -> Row | None:
        """None where there is none, or the row is the baseline itself."""
        base = self.of.get(row["job"])
        return None if base is None or base["job"] == row["job"] else base


@dataclass(frozen=True)
class Line:
    """Finished rows that differ in the seed alone, as one line of a table."""

    rows: Sequence[Row]

    @property
    def first(self) -> Row:
        return self.rows[0]

    @property
    def runtime(self) -> str:
        return str(self.first["runtime"])


def lines(rows: Iterable[Row]) -> list[list[Line]]:
    """Groups of lines with the same victims (but for the seed), in the order of `sort_key`."""
    groups: dict[tuple[Any, ...], dict[tuple[Any, ...], list[Row]]] = {}
    for row in sorted(rows, key=sort_key):
        name = (RUNTIMES.index(row["runtime"]), *(str(key_of(row, k)) for k in RECLAIM_KEYS))
        groups.setdefault(group_of(row, seeds=False), {}).setdefault(name, []).append(row)
    return [[Line(same) for _, same in sorted(group.items(), key=lambda item: item[0][0])] for group in groups.values()]


def names_of(rows: Sequence[Row]) -> list[str]:
    """The keys besides runtime and seed that tell lines apart."""
    return [key for key in varying(rows) if key != "seed"]
