"""From what a user wrote to the values of every key: one, several, or an interval to search."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .interval import Interval
from .settings import KEYS, SWEEP_KEYS
from .values import UsageError, Value, as_number


def axes_of(flat: Mapping[str, Any]) -> dict[str, list[Value]]:
    """Every key with its parsed values, one or more, in the order given, each once. Intervals are not among them: see `intervals_of`.

    Raises UsageError on a bad value, an empty list, or several values of a key of the whole sweep.
    """
    axes: dict[str, list[Value]] = {}
    for key, raw in flat.items():
        if Interval.written_in(raw):
            continue
        if isinstance(raw, str) and "," in raw and key not in SWEEP_KEYS:
            raw = [{"true": True, "false": False}.get(v.strip().lower(), as_number(v.strip())) for v in raw.split(",")]
        if key == "tracker" and isinstance(raw, list):
            raw = ",".join(map(str, raw))  # the one key of the whole sweep whose value is a list
        values = raw if isinstance(raw, list) else [raw]
        parse = KEYS.get(key)
        parsed = [parse(key, v) if parse else v for v in values]
        unique = [v for i, v in enumerate(parsed) if (type(v), v) not in [(type(u), u) for u in parsed[:i]]]
        if not unique:
            raise UsageError(f"{key}=[]: give at least one value")
        if key in SWEEP_KEYS and len(unique) > 1:
            raise UsageError(f"{key} belongs to the whole sweep and takes one value, not {len(unique)}")
        axes[key] = unique
    return axes


def intervals_of(flat: Mapping[str, Any]) -> dict[str, Interval]:
    """The keys that are to be searched. Raises UsageError where an end is no value of the key, or the low one is not below the high one."""
    intervals = {}
    for key, raw in flat.items():
        if not Interval.written_in(raw):
            continue
        interval = Interval.read(raw)
        parse = KEYS.get(key)
        low, high = (parse(key, as_number(end)) if parse else as_number(end) for end in (interval.low, interval.high))
        if key in SWEEP_KEYS or not isinstance(low, int | float) or not isinstance(high, int | float):
            raise UsageError(f"{key}={raw}: only keys of a job with numbers as values can be searched")
        if parse and type(low) is not type(high):
            raise UsageError(f"{key}={raw}: write both ends alike, as ratios (0.25, 1.0) or as whole numbers")
        intervals[key] = Interval(low, high, interval.log)
        if not low < high or (interval.log and low <= 0):
            raise UsageError(f"{key}={raw}: write interval(LOW,HIGH) with LOW below HIGH" + " and above 0" * interval.log)
    return intervals
