"""The tiny model with a tokenizer, called real: what is measured needs no meaning where mechanics are tested."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers.tokenization_utils_tokenizers import PreTrainedTokenizerFast

from vtoken_sdk.policies.streaming_llm import StreamingLLM
from vtoken_sdk.runtime import Engine, EngineConfig
from vtoken_sdk.runtime.model_loader import LoadedModel, load_model
from vtoken_sdk.workloads import BUNDLED_TEXT


@cache
def tokenizer() -> PreTrainedTokenizerFast:
    """As many tokens as the tiny model knows, from the first pages of the book; `<s>` begins each text."""
    raw = Tokenizer(models.BPE())
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=512, special_tokens=["<s>"], initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    raw.train_from_iterator([BUNDLED_TEXT.read_text(encoding="utf-8")[:20000]], trainer)
    from tokenizers.processors import TemplateProcessing

    raw.post_processor = TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    return PreTrainedTokenizerFast(tokenizer_object=raw, bos_token="<s>")


def tiny() -> LoadedModel:
    hf = load_model("tiny", device="cpu").hf
    return LoadedModel.from_transformers(hf, name="mine", weights="real", tokenizer=tokenizer())


def save_tiny(folder: Path) -> str:
    """As a local model folder, for `model=FOLDER`."""
    model: Any = tiny().hf
    model.save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return str(folder)


def engines(model: LoadedModel, runtime: Any, budget: float, policy: Any = StreamingLLM, **options: Any) -> Callable[[], Engine]:
    config = EngineConfig(runtime=runtime, budget=budget, pool_blocks=256, chunk=64, **options)
    return lambda: Engine(model, config, None if runtime == "native" else policy())
