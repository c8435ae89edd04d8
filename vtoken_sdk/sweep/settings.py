"""The keys of a sweep: which there are, and what reads the values of each. Imports nothing heavy.

A flat dict maps keys such as "evict.prefill" to values. A list as a value, or a string with commas, is an axis of the sweep.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from functools import cache
from importlib.resources import files
from typing import Any

from vtoken_sdk.nearest import did_you_mean
from vtoken_sdk.tracking import MODES

from .values import Parser, UsageError, Value, above_zero, budget, choice, flag, number, optional, seconds, text, trackers, whole

POLICY_OPTION = "option."

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
    "reclaim.stream": choice("side", "main"),
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
    """KEY=VALUE pairs of job keys or policies' options with spaces between them; "" varies nothing.

    Raises UsageError on what they cannot be.
    """
    words = str(value or "").split()
    seen = set()
    for word in words:
        name, equals, said = word.partition("=")
        if not equals:
            raise UsageError(f"{key}={value}: use KEY=VALUE pairs with spaces between them")
        if name not in JOB_KEYS and not _is_policy_option(name):
            meant = "vary changes options of jobs, not of the sweep" if name in KEYS else f"there is no key {name}"
            raise UsageError(f"{key}={value}: {meant}{did_you_mean(name, JOB_KEYS, '; did you mean {}=...?')}")
        if name in seen:
            raise UsageError(f'{key}={value}: {name} is given twice; write a change each, ["{name}=...", "{name}=..."]')
        seen.add(name)
        _changed(name, said)
    return " ".join(words)


def _is_policy_option(key: str) -> bool:
    return key.startswith(POLICY_OPTION) and key.count(".") == 1


def _changed(name: str, said: str) -> Value:
    if not _is_policy_option(name):
        return JOB_KEYS[name](name, said)
    try:
        value: Value = json.loads(said)
    except ValueError:
        return said
    return value


def varied(value: str, flat: Mapping[str, Any]) -> dict[str, Value]:
    """The parsed values of a variation. flat: the options that it changes; another block size keeps the pool's memory."""
    pairs = (word.partition("=") for word in value.split())
    changed = {name: _changed(name, said) for name, _, said in pairs}
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


def check_once(keys: Iterable[str]) -> None:
    """Raise UsageError where a command line has a key twice: whoever typed it meant one of the values, or both."""
    seen: set[str] = set()
    for key in keys:
        if key in seen:
            raise UsageError(f"{key} is given twice; write it once" + (", with commas between its values" if key not in SWEEP_KEYS else ""))
        seen.add(key)


def check_keys(keys: Iterable[str]) -> None:
    """Raise UsageError at the first key that does not exist. Options of policies are checked against the policies later."""
    for key in keys:
        if key in KEYS or _is_policy_option(key):
            continue
        inner = [name for name in KEYS if name.startswith(f"{key}.")]
        if inner:
            raise UsageError(f"{key} is a group of keys; set {' or '.join(inner)}")
        raise UsageError(f"unknown key {key}{did_you_mean(key, KEYS) or '; vtoken-sweep --help lists the keys'}")
