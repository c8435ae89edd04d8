"""From the value of `workload` to the requests."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from vtoken_sdk.runtime.config import ConfigError

from .base import Workload
from .sharegpt import sharegpt
from .synthetic import synthetic
from .text import text
from .trace import trace

if TYPE_CHECKING:
    from vtoken_sdk.runtime.model_loader import LoadedModel

NAMES = ("synthetic", "text")
TRACES = (".csv", ".jsonl")


def is_text(workload: str) -> bool:
    """Is this the value of a workload that has continuations: `text`, or a text file?"""
    return workload == "text" or (workload not in NAMES and Path(workload).suffix.lower() not in (*TRACES, ".json"))


def build_workload(
    workload: str,
    model: LoadedModel,
    *,
    requests: int,
    ctx: int,
    output_tokens: int,
    seed: int = 0,
    lengths: str = "fixed",
    length_scale: float = 1.0,
) -> Workload:
    """workload: "synthetic", "text", or a path: .csv and .jsonl are request traces, .json is ShareGPT's format, anything else a text.

    The rest as in the functions of these names. Raises ConfigError.
    """
    if workload == "synthetic":
        return synthetic(
            model, requests=requests, ctx=ctx, output_tokens=output_tokens, seed=seed, lengths=lengths, length_scale=length_scale
        )
    path = None if workload == "text" else Path(workload).expanduser()
    if lengths != "fixed":
        has = "windows of text all have ctx tokens" if is_text(workload) else f"{workload} has lengths of its own"
        raise ConfigError(f"lengths={lengths}: {has}; use lengths=fixed, or workload=synthetic")
    if path is not None and not path.exists():
        raise ConfigError(f"workload={workload}: use synthetic, text, or the path of a text, trace or ShareGPT file; there is no such file")
    if path is not None and path.suffix.lower() in TRACES:
        return trace(model, requests=requests, ctx=ctx, output_tokens=output_tokens, seed=seed, path=path, length_scale=length_scale)
    if length_scale != 1:
        raise ConfigError(f"length_scale={length_scale}: texts cannot be scaled; use length_scale=1, or workload=synthetic or a trace")
    if path is not None and path.suffix.lower() == ".json":
        return sharegpt(model, requests=requests, ctx=ctx, output_tokens=output_tokens, seed=seed, path=path)
    return text(model, requests=requests, ctx=ctx, output_tokens=output_tokens, seed=seed, path=path)
