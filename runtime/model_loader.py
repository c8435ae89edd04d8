"""From a model's name to a transformers model on a device: real weights or dummy ones, everything that we cannot serve refused."""

from __future__ import annotations

import difflib
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import torch

from . import dummy, smollm2
from .checkpoint import Place, config_hash, files_hash, parse_config, quiet, read_config, read_tokenizer, read_weights, weight_files
from .config import ConfigError
from .model_support import check_supported

if TYPE_CHECKING:  # imported when a model is loaded: it takes a second, and a help page must not wait for it
    from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

Weights = Literal["auto", "dummy", "real"]
DtypeName = Literal["auto", "fp32", "fp16", "bf16"]
DeviceName = Literal["auto", "cpu", "cuda"]
DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
BF16_CAPABILITY = (8, 0)
HASH_LIMIT = 1 << 30  # bytes of weights that are hashed; above it the config's hash stands for the model


@dataclass(frozen=True)
class ModelSource:
    """Where a model came from. location: a folder, a Hub name, or the built-in shape. sha256: of what `hashed` says."""

    location: str
    revision: str | None
    sha256: str
    hashed: Literal["weights", "config", "gguf"]


@dataclass(frozen=True)
class LoadedModel:
    """A transformers model, ready but with its own attention still. notices: choices that a user should hear of."""

    hf: PreTrainedModel = field(repr=False)
    name: str
    weights: Literal["real", "dummy"]
    tokenizer: PreTrainedTokenizerBase | None = field(repr=False)
    dtype: torch.dtype
    device: torch.device
    source: ModelSource
    notices: tuple[str, ...] = ()

    @classmethod
    def from_transformers(
        cls,
        hf: PreTrainedModel,
        *,
        name: str = "in memory",
        weights: Literal["real", "dummy"] = "real",
        tokenizer: PreTrainedTokenizerBase | None = None,
        source: ModelSource | None = None,
        notices: tuple[str, ...] = (),
    ) -> LoadedModel:
        """Wraps a model that is already in memory, and freezes it. Raises UnsupportedModel."""
        config = {**hf.config.to_dict(), "architectures": [type(hf).__name__]}
        check_supported(name, config)
        hf.train(False).requires_grad_(False)
        source = source or ModelSource(name, None, config_hash(config), "config")
        return cls(hf, name, weights, tokenizer, hf.dtype, hf.device, source, notices)

    @property
    def vocab_size(self) -> int:
        return int(self.hf.config.vocab_size)

    @property
    def max_positions(self) -> int:
        """Positions that the model was made for. YaRN configs state the length before scaling."""
        config = self.hf.config
        stated = int(config.max_position_embeddings)
        rotary = config.rope_parameters or {}
        if rotary.get("rope_type") == "yarn":
            return max(stated, int(rotary["original_max_position_embeddings"] * rotary["factor"]))
        return stated

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        """Every end token of the generation config and of the config, ascending."""
        found: set[int] = set()
        for config in (self.hf.generation_config, self.hf.config):
            ids = getattr(config, "eos_token_id", None)
            found.update(ids if isinstance(ids, list | tuple) else [] if ids is None else [ids])
        return tuple(sorted(found))

    @property
    def head_dim(self) -> int:
        config = self.hf.config
        return int(getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads)


def load_model(name: str, *, weights: Weights = "auto", dtype: DtypeName = "auto", device: DeviceName = "auto") -> LoadedModel:
    """name: tiny, smollm2, llama-3.1-8b, mistral-7b, a local folder, or a Hub name (owner/name or owner/name@revision).

    weights: "auto" is "dummy" for `tiny` and "real" elsewhere; "dummy" needs a config.json only. dtype: "auto" is fp32 on CPU, the
    config's on CUDA (fp16 in place of bf16 below compute capability 8.0). Only Hub names touch the network.
    Raises ConfigError (name, weights, dtype, device), and UnsupportedModel for what the runtime does not serve.
    """
    for key, value, allowed in (("weights", weights, Weights), ("dtype", dtype, DtypeName), ("device", device, DeviceName)):
        if value not in get_args(allowed):
            raise ConfigError(f"{key}={value!r}: use one of {', '.join(get_args(allowed))}")
    target = _device(device)
    if name in dummy.SHAPES:
        return _built_in(name, weights, dtype, target)
    if name == "smollm2":
        folder, notices = smollm2.smollm2_folder()
        source = ModelSource(smollm2.PACKAGE, None, smollm2.SHA256, "gguf")  # checked when it was converted
        model = _load(Place(name, str(folder), None, local=True), weights, dtype, target, source)
        return replace(model, notices=notices + model.notices)
    folder = Path(name).expanduser()
    if name and folder.is_dir():
        return _load(Place(name, str(folder), None, local=True), weights, dtype, target)
    where, _, revision = name.partition("@")
    if where.count("/") != 1 or where.startswith((".", "/", "~")) or where.endswith("/"):
        raise ConfigError(_unknown(name, folder))
    return _load(Place(name, where, revision or None, local=False), weights, dtype, target)


def resolve_dtype(
    requested: DtypeName, stated: torch.dtype | None, device: torch.device, capability: tuple[int, int] | None
) -> tuple[torch.dtype, tuple[str, ...]]:
    """The dtype to load in, and notices. stated: the config's. capability: the CUDA device's, None on CPU. Raises ConfigError."""
    lacks_bf16 = capability is not None and capability < BF16_CAPABILITY
    shortage = f"bf16 needs compute capability 8.0, this device has {capability[0]}.{capability[1]}" if capability else ""
    if requested != "auto":
        if requested == "bf16" and lacks_bf16:
            raise ConfigError(f"dtype=bf16: {shortage}; use dtype=fp16, fp32 or auto")
        return DTYPES[requested], ()
    if device.type == "cpu":
        return torch.float32, ()
    chosen = torch.float32 if stated not in DTYPES.values() or stated is None else stated
    if chosen == torch.bfloat16 and lacks_bf16:
        return torch.float16, (f"dtype=auto took fp16: {shortage}",)
    return chosen, ()


def _device(name: DeviceName) -> torch.device:
    if name == "cpu":
        return torch.device("cpu")
    available = torch.cuda.is_available()
    if name == "cuda" and not available:
        raise ConfigError("device=cuda: PyTorch sees no CUDA device here; use device=cpu or auto")
    return torch.device("cuda", torch.cuda.current_device()) if available else torch.device("cpu")


def _unknown(name: str, folder: Path) -> str:
    known = ("smollm2", *dummy.SHAPES)
    if name and folder.exists():
        return f"model={name}: this is a file; give the folder that holds config.json"
    if "/" in name or name.startswith((".", "~")):
        return f"model={name}: there is no such folder"
    close = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {close[0]}? " if close else ""
    return f"model={name}: {hint}Known are {', '.join(known)}, a local folder, or a Hub name (owner/name)"


def _built_in(name: str, weights: Weights, dtype: DtypeName, device: torch.device) -> LoadedModel:
    """A shape that ships with the project; it has no weights of its own."""
    tiny = name == "tiny"
    if weights == "real" or (weights == "auto" and not tiny):
        mend = "use weights=dummy (its shapes, random values), or give a local folder or a Hub name that has weights"
        raise ConfigError(f"model={name}, weights={weights}: only its shapes ship with the project; {mend}")
    _, config = parse_config(name, dummy.SHAPES[name])
    chosen, notices = _choose(dtype, config, device)
    with quiet():
        hf = dummy.tiny_model(config, chosen, device) if tiny else dummy.dummy_model(name, config, chosen, device)
    source = ModelSource(f"built-in {name}", None, config_hash(dummy.SHAPES[name]), "config")
    return LoadedModel.from_transformers(hf, name=name, weights="dummy", source=source, notices=notices)


def _load(place: Place, weights: Weights, dtype: DtypeName, device: torch.device, known: ModelSource | None = None) -> LoadedModel:
    """A folder, or a repository of the Hub, whose downloads show their progress. known: the source of its real weights."""
    kind: Literal["real", "dummy"] = "dummy" if weights == "dummy" else "real"
    with quiet(bars=not place.local):
        place, raw = read_config(place)
        cls, config = parse_config(place.name, raw)
        chosen, notices = _choose(dtype, config, device)
        files = weight_files(place) if kind == "real" and place.local else []
        if kind == "dummy":
            hf = dummy.dummy_model(place.name, config, chosen, device)
        else:
            hf, more = read_weights(place, cls, config, chosen)
            hf, notices = dummy.to_device(hf, device), notices + more
        tokenizer, more = read_tokenizer(place)
    source = known if known is not None and kind == "real" else _source(place, raw, files)
    return LoadedModel.from_transformers(hf, name=place.name, weights=kind, tokenizer=tokenizer, source=source, notices=notices + more)


def _source(place: Place, raw: dict[str, Any], files: list[Path]) -> ModelSource:
    if files and sum(file.stat().st_size for file in files) <= HASH_LIMIT:
        return ModelSource(place.where, place.revision, files_hash(files), "weights")
    return ModelSource(place.where, place.revision, config_hash(raw), "config")


def _choose(dtype: DtypeName, config: PreTrainedConfig, device: torch.device) -> tuple[torch.dtype, tuple[str, ...]]:
    stated = config.dtype
    stated = getattr(torch, stated, None) if isinstance(stated, str) else stated
    capability = torch.cuda.get_device_capability(device) if device.type == "cuda" else None
    return resolve_dtype(dtype, stated, device, capability)
