"""Reads what transformers reads: config, weights and tokenizer of a local folder or of a Hub repository, quietly and completely."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from .config import ConfigError
from .model_support import check_supported

if TYPE_CHECKING:  # imported when a model is loaded: it takes a second, and a help page must not wait for it
    from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json")


@dataclass(frozen=True)
class Place:
    """Where a checkpoint is. name: as the user wrote it, for messages. where: a folder if `local`, else a Hub repository."""

    name: str
    where: str
    revision: str | None
    local: bool

    @property
    def arguments(self) -> dict[str, Any]:
        """For every from_pretrained. A local folder never touches the network."""
        return {"revision": self.revision, "local_files_only": self.local}


def read_config(place: Place) -> tuple[Place, dict[str, Any]]:
    """The config as plain data, so that what we refuse is refused before transformers makes anything of it.

    Returns the place too, a Hub repository pinned to the commit that was found. Raises ConfigError.
    """
    path = Path(place.where) / "config.json" if place.local else _hub_config(place)
    if path.parent.parent.name == "snapshots" and not place.local:
        place = replace(place, revision=path.parent.name)
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"model={place.name}: the folder {place.where} has no config.json") from None
    except ValueError as error:
        raise ConfigError(f"model={place.name}: {path} is not JSON ({error})") from error
    if not isinstance(raw, dict):
        raise ConfigError(f"model={place.name}: {path} is not a JSON object")
    return place, raw


def _hub_config(place: Place) -> Path:
    from transformers.utils import cached_file

    try:
        return Path(str(cached_file(place.where, "config.json", revision=place.revision)))
    except Exception as error:  # the Hub client raises many kinds: offline, unknown, gated, no such revision
        raise ConfigError(
            f"model={place.name}: there is no such folder here, and the Hub gave nothing ({first_line(error)}); "
            "check the name and the network, or download the model and give its folder"
        ) from error


def parse_config(name: str, raw: Mapping[str, Any]) -> tuple[type[PreTrainedModel], PreTrainedConfig]:
    architecture = check_supported(name, raw)
    import transformers

    cls: Any = getattr(transformers, architecture)
    try:
        with quiet():
            return cls, cls.config_class.from_dict(json.loads(json.dumps(raw)))  # a copy: from_dict edits nested dicts
    except Exception as error:  # transformers' validators raise many kinds, all about what the config says
        raise ConfigError(f"model={name}: its config is not valid ({first_line(error)})") from error


def read_weights(
    place: Place, cls: type[PreTrainedModel], config: PreTrainedConfig, dtype: torch.dtype
) -> tuple[PreTrainedModel, tuple[str, ...]]:
    """Real weights, all of them: transformers fills what a checkpoint lacks with random values and only logs it."""
    untyped: Any = cls  # its annotations know nothing of output_loading_info
    try:
        hf, info = untyped.from_pretrained(place.where, config=config, dtype=dtype, output_loading_info=True, **place.arguments)
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # a damaged or missing file, a wrong shape, an unreachable Hub: each its own kind
        raise ConfigError(f"model={place.name}: its weights cannot be read ({first_line(error)})") from error
    if info["missing_keys"]:
        some = sorted(info["missing_keys"])
        raise ConfigError(f"model={place.name}: the weights lack {len(some)} tensors of {cls.__name__}, {some[0]} among them")
    unused = sorted(info["unexpected_keys"])
    return hf, (f"{len(unused)} tensors of the weights are not used, {unused[0]} among them",) if unused else ()


def read_tokenizer(place: Place) -> tuple[PreTrainedTokenizerBase | None, tuple[str, ...]]:
    if place.local and not any((Path(place.where) / file).is_file() for file in TOKENIZER_FILES):
        return None, ()
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(place.where, **place.arguments), ()
    except Exception as error:  # synthetic work needs none, so say it and go on
        return None, (f"model={place.name}: its tokenizer cannot be loaded ({first_line(error)})",)


def weight_files(place: Place) -> list[Path]:
    """The files of a local folder that transformers will read, in name order; safetensors are preferred to pickles.

    Raises ConfigError where there are none.
    """
    folder = Path(place.where)
    for stem, suffix in (("model", "safetensors"), ("pytorch_model", "bin")):
        if (folder / f"{stem}.{suffix}").is_file():
            return [folder / f"{stem}.{suffix}"]
        index = folder / f"{stem}.{suffix}.index.json"
        if index.is_file():
            try:
                return sorted({folder / file for file in json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()})
            except (ValueError, KeyError) as error:
                raise ConfigError(f"model={place.name}: {index} is not an index of weight files ({error!r})") from error
    raise ConfigError(f"model={place.name}: the folder has a config.json and no weights (model*.safetensors); use weights=dummy")


def files_hash(files: list[Path]) -> str:
    """SHA-256 of the file; of the lines "hash name" where there are several."""
    digests = []
    for path in files:
        with path.open("rb") as file:
            digests.append(hashlib.file_digest(file, "sha256").hexdigest())
    if len(files) == 1:
        return digests[0]
    lines = "".join(f"{digest} {path.name}\n" for digest, path in zip(digests, files, strict=True))
    return hashlib.sha256(lines.encode()).hexdigest()


def config_hash(config: Mapping[str, Any]) -> str:
    """SHA-256 of the config, whatever its order and whoever saved it last."""
    kept = {key: value for key, value in config.items() if key != "transformers_version" and not key.startswith("_")}
    return hashlib.sha256(json.dumps(kept, sort_keys=True, default=str).encode()).hexdigest()


def first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


@contextlib.contextmanager
def quiet(*, bars: bool = False) -> Iterator[None]:
    """No log lines of transformers below an error, and no progress bars unless asked for; both as before afterwards."""
    from transformers.utils import logging as untyped

    logging: Any = untyped

    verbosity, had_bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    if had_bars and not bars:
        logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if had_bars and not bars:
            logging.enable_progress_bar()
