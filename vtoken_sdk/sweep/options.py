"""What a user asked for, flat: from the shipped values, a configuration file, a record, and the command line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import QuotedString
from omegaconf import DictConfig, OmegaConf

from .record import Record, read_records, shipped
from .settings import KEYS, STEER_KEYS, check_keys, flatten

OURS = "vtoken_sweep"  # the name of the shipped configuration


def options_of(config: DictConfig, overrides: Sequence[str]) -> dict[str, Any]:
    """Shipped values, then the composed configuration, then what the command line sweeps. Raises UsageError on unknown keys."""
    given = _composed(config) | _swept(overrides)
    check_keys(given)
    return shipped() | _set(given)


def recorded_options(config: DictConfig, overrides: Sequence[str], source: str) -> tuple[list[dict[str, Any]], list[Record]]:
    """The options of each job in a record, with those that the user gave on top; and the records. Raises UsageError."""
    records = read_records(Path(source).expanduser())
    given = _composed(config) | _swept(overrides)
    if config.hydra.job.config_name == OURS:  # all of its keys are there: only those that were named count
        named = [_key(text) for text in config.hydra.overrides.task]
        given = {key: value for key, value in given.items() if key in named or key in STEER_KEYS}
    kept = [{key: value for key, value in record.flat.items() if key not in given} for record in records]
    return [shipped() | _set(flat) | _set(given) for flat in kept], records


def _composed(config: DictConfig) -> dict[str, Any]:
    ours = OmegaConf.masked_copy(config, [str(key) for key in config if key != "hydra"])
    return flatten(cast(dict[str, Any], OmegaConf.to_container(ours, resolve=True)))


def _swept(overrides: Sequence[str]) -> dict[str, Any]:
    """Keys with several values on the command line. An interval stays as it is written."""
    given: dict[str, Any] = {}
    for override in OverridesParser.create().parse_overrides(list(overrides)):
        if override.is_sweep_override():
            key = override.get_key_element().lstrip("+")
            if override.is_discrete_sweep():
                given[key] = [v.text if isinstance(v, QuotedString) else v for v in override.sweep_iterator()]
            else:
                given[key] = str(override.input_line).partition("=")[2]
    return given


def _set(given: Mapping[str, Any]) -> dict[str, Any]:
    """null leaves a key as it is shipped."""
    return {key: value for key, value in given.items() if value is not None or key not in KEYS}


def _key(override: str) -> str:
    return override.lstrip("+~").partition("=")[0]
