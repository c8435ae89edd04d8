"""The options of a sweep: which keys there are, and what a value of each may look like. Imports nothing heavy.

A flat dict maps keys such as "evict.prefill" to values. A list as a value, or a string with commas, is an axis of the sweep.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from importlib.resources import files
from typing import Any

from vtoken_sdk.tracking import KINDS, MODES

from .interval import Interval

Value = str | int | float | bool | None
Parser = Callable[[str, Any], Value]

POLICY_OPTION = "option."
MOST = 2**63 - 1  # what a column of the results holds


class UsageError(Exception):
    """The command cannot be run as it is. One line: the key, what is wrong, and the mend. Nothing has run."""


def nearest(word: str, names: Iterable[str]) -> str | None:
    """The name most like `word`, by the whole or by its last part (`prefill` finds `evict.prefill`)."""
    names = list(names)
    if close := difflib.get_close_matches(word, names, 1):
        return close[0]
    tails = {name.rpartition(".")[2]: name for name in names}
    close = difflib.get_close_matches(word.rpartition(".")[2], tails, 1)
    return tails[close[0]] if close else None


def _number(value: object) -> object:
    """Numbers written as text, as they come out of a comma list in a file."""
    if isinstance(value, str):
        for kind in (int, float):
            try:
                return kind(value)
            except ValueError:
                continue
    return value


def _size(value: object) -> object:
    """16k -> 16384, 1m -> 1048576, 1.5k -> 1536; anything else as `_number`."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([km])", value.strip().lower()) if isinstance(value, str) else None
    if match is None:
        return _number(value)
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
    parsed = _number(value)
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
            near = nearest(str(word), names)
            raise UsageError(f"{key}={value}: use one of {', '.join(names)}" + (f"; did you mean {key}={near}?" if near else ""))
        return str(word)

    return parse


def tracker_names(value: str | None) -> list[str]:
    """Of trackers besides the files, from their comma list."""
    return [word.strip() for word in (value or "").split(",") if word.strip() not in ("", "jsonl")]


def trackers(key: str, value: Any) -> str | None:
    """What was asked for and is not installed is told before anything runs; W&B is the default, and then a notice at the end."""
    for name in tracker_names(None if value is None else str(value)):
        if name not in KINDS:
            near = nearest(name, KINDS)
            raise UsageError(f"{key}={value}: {name} is none of jsonl, {', '.join(KINDS)}" + (f"; did you mean {near}?" if near else ""))
        if name != "wandb" and not KINDS[name].installed:
            raise UsageError(f"{key}={value}: {name} is not installed; pip install 'vtoken-sdk[{KINDS[name].extra}]'")
    return None if value is None else str(value)


# Keys of a job: all that its results depend on. What EngineConfig and the loaders check by themselves is only read here.
JOB_KEYS: dict[str, Parser] = {
    "policy": text,
    "policy_sha256": optional(text),
    "budget": budget,
    "evict.prefill": choice("chunk", "end", "never"),
    "evict.every": whole(0),
    "granularity": choice("token", "layer", "head"),
    "runtime": choice("native", "naive", "refill", "vtoken", "page1"),
    "threshold": number,
    "margin": whole(0),
    "reclaim.packing": choice("fill", "fresh"),
    "reclaim.slack": whole(0),
    "reclaim.move_cap": whole(1),
    "reclaim.publish_after": whole(1),
    "reclaim.refill": flag,
    "block_size": whole(1),
    "pool_blocks": whole(1),
    "prefix_cache": flag,
    "model": text,
    "weights": choice("auto", "real", "dummy"),
    "dtype": text,
    "device": text,
    "workload": text,
    "workload_sha256": optional(text),
    "ctx": whole(1),
    "lengths": choice("fixed", "uniform", "lognormal", "sharegpt", "longbench", "reasoning"),
    "length_scale": above_zero,
    "requests": whole(1),
    "output_tokens": whole(1),
    "arrivals": choice("rate", "trace"),
    "request_rate": optional(above_zero, (None, float("inf"), "inf")),
    "burstiness": above_zero,
    "max_concurrency": optional(whole(1)),
    "step_ms": optional(above_zero),
    "num_warmups": whole(0),
    "goodput.ttft": optional(above_zero),
    "goodput.tpot": optional(above_zero),
    "goodput.e2el": optional(above_zero),
    "chunk": whole(1),
    "max_running": whole(1),
    "seed": whole(0),
    "quality.mode": choice("auto", "on", "off"),
    "quality.texts": whole(0),
    "quality.tokens": whole(1),
    "quality.needles": whole(0),
    "quality.needles4": whole(0),
    "quality.query": choice("aware", "agnostic"),
    "quality.text": optional(text),
    "quality.data": optional(text),
    "quality.items": whole(0),
    "quality.prompts": optional(text),
    "quality.sha256": optional(text),
}
# How the sweep goes about its jobs: no result depends on these.
STEER_KEYS: dict[str, Parser] = {
    "from": optional(text),
    "rerun": optional(choice("failed", "all")),
    "fail_fast": flag,
    "dry_run": flag,
    "in_process": flag,
    "cluster": choice("local", "joblib", "slurm", "ray"),
    "workers": optional(whole(1)),
    "search": optional(choice("optuna")),
    "objective": text,
    "direction": choice("auto", "minimize", "maximize"),
    "trials": whole(1),
}
# Keys of the sweep as a whole: one value each.
SWEEP_KEYS: dict[str, Parser] = {
    **STEER_KEYS,
    "name": optional(text),
    "experiment": optional(text),
    "dir": optional(text),
    "tracker": trackers,
    "wandb.mode": optional(choice(*MODES)),
    "wandb.project": text,
    "wandb.timeout": seconds,
}


def variation(key: str, value: Any) -> str:
    """KEY=VALUE pairs of job keys with spaces between them; "" varies nothing. Raises UsageError on what they cannot be."""
    words = str(value or "").split()
    for word in words:
        name, equals, said = word.partition("=")
        if not equals or name not in JOB_KEYS:
            near = nearest(name, JOB_KEYS)
            raise UsageError(
                f"{key}={value}: use KEY=VALUE pairs with spaces between them" + (f"; did you mean {near}=...?" if near else "")
            )
        JOB_KEYS[name](name, said)
    return " ".join(words)


def varied(value: str, flat: Mapping[str, Any]) -> dict[str, Value]:
    """The parsed values of a variation. flat: the options that it changes; another block size keeps the pool's memory."""
    pairs = (word.partition("=") for word in value.split())
    changed = {name: JOB_KEYS[name](name, said) for name, _, said in pairs}
    if isinstance(size := changed.get("block_size"), int):
        changed.setdefault("pool_blocks", flat["pool_blocks"] * flat["block_size"] // size)
    return changed


# Keys that make jobs and are no option of one.
AXIS_KEYS: dict[str, Parser] = {"vary": variation}
KEYS = JOB_KEYS | SWEEP_KEYS | AXIS_KEYS


def field_name(key: str) -> str:
    """evict.prefill -> evict_prefill: attributes, columns and W&B keys are flat."""
    return key.replace(".", "_")


@cache
def shipped_text() -> str:
    """The shipped configuration with its comments: the reference of all keys."""
    return files("vtoken_sdk.conf").joinpath("vtoken_sweep.yaml").read_text(encoding="utf-8")


def flatten(nested: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """{"evict": {"every": 4}} -> {"evict.every": 4}. Empty mappings vanish."""
    flat: dict[str, Any] = {}
    for key, value in nested.items():
        if isinstance(value, Mapping):
            flat.update(flatten(value, f"{prefix}{key}."))
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def nest(flat: Mapping[str, Any]) -> dict[str, Any]:
    """The reverse of `flatten`."""
    nested: dict[str, Any] = {}
    for key, value in flat.items():
        *groups, last = key.split(".")
        node = nested
        for group in groups:
            node = node.setdefault(group, {})
        node[last] = value
    return nested


def check_keys(keys: Iterable[str]) -> None:
    """Raise UsageError at the first key that does not exist. Options of policies are checked against the policies later."""
    for key in keys:
        if key in KEYS or (key.startswith(POLICY_OPTION) and key.count(".") == 1):
            continue
        inner = [name for name in KEYS if name.startswith(f"{key}.")]
        if inner:
            raise UsageError(f"{key} is a group of keys; set {' or '.join(inner)}")
        near = nearest(key, KEYS)
        raise UsageError(f"unknown key {key}" + (f"; did you mean {near}?" if near else "; vtoken-sweep --help lists the keys"))


def axes_of(flat: Mapping[str, Any]) -> dict[str, list[Value]]:
    """Every key with its parsed values, one or more, in the order given, each once. Intervals are not among them: see `intervals_of`.

    Raises UsageError on a bad value, an empty list, or several values of a key of the whole sweep.
    """
    axes: dict[str, list[Value]] = {}
    for key, raw in flat.items():
        if Interval.written_in(raw):
            continue
        if isinstance(raw, str) and "," in raw and key not in SWEEP_KEYS:
            raw = [{"true": True, "false": False}.get(v.strip().lower(), _number(v.strip())) for v in raw.split(",")]
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
        low, high = (parse(key, _number(end)) if parse else _number(end) for end in (interval.low, interval.high))
        if key in SWEEP_KEYS or not isinstance(low, int | float) or not isinstance(high, int | float):
            raise UsageError(f"{key}={raw}: only keys of a job with numbers as values can be searched")
        if parse and type(low) is not type(high):
            raise UsageError(f"{key}={raw}: write both ends alike, as ratios (0.25, 1.0) or as whole numbers")
        intervals[key] = Interval(low, high, interval.log)
        if not low < high or (interval.log and low <= 0):
            raise UsageError(f"{key}={raw}: write interval(LOW,HIGH) with LOW below HIGH" + " and above 0" * interval.log)
    return intervals
