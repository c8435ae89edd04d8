"""Records a run with the full cache."""

from __future__ import annotations

import torch

from vtoken_sdk.runtime import EngineConfig, SamplingParams, look_ahead
from vtoken_sdk.runtime.model_loader import LoadedModel
from vtoken_sdk.workloads import Workload

from .file import RecordedRun


def record(model: LoadedModel, workload: Workload, chunk: int) -> RecordedRun:
    """Serve the workload's requests one by one, nothing evicted. Text that follows a prompt is forced; else the model's own tokens."""
    texts = workload.continuations
    params = [
        SamplingParams(forced=tuple(texts[i])) if texts is not None else SamplingParams(max_tokens=tokens, ignore_eos=True)
        for i, tokens in enumerate(workload.output_lengths)
    ]
    served = look_ahead(model, EngineConfig(chunk=chunk), workload.prompts, params)
    recordings = tuple(p.future for p in served if p.future is not None)
    about = {
        "model": model.name,
        "weights": model.weights,
        "dtype": str(model.dtype).removeprefix("torch."),
        "workload": workload.kind,
        "requests": len(recordings),
        "ctx": max(map(len, workload.prompts)),
        "output_tokens": max(len(p.forced or ()) for p in served),
        "chunk": chunk,
        "torch": torch.__version__,
    }
    return RecordedRun(recordings, tuple(map(len, workload.prompts)), about)
