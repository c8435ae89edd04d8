"""Text that arrives token by token equals text decoded at once, whatever bytes the tokens cut."""

from __future__ import annotations

import functools
import random

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers.tokenization_utils_tokenizers import PreTrainedTokenizerFast

from vtoken_sdk.runtime import EngineConfig, SamplingParams
from vtoken_sdk.runtime.detokenizer import Detokenizer
from vtoken_sdk.runtime.model_loader import LoadedModel

from .oracles import SMALL, build, make_engine, prompt

TEXTS = {
    "plain": "The quick brown fox, and then some more.  Two spaces; a tab\t, a line\nand another.",
    "emoji": "family 👨‍👩‍👧‍👦 flag 🇺🇳 skin 👍🏽 end",
    "cjk": "漢字とかな、한국어, 中文。",
    "combining": "e\u0301 n\u0303 a\u0308\u0304 \u0ba8\u0bbf \u0e01\u0e33",
    "mixed": "naïve — “quoted” ½ Ω≈ç√∫ \u200bzero",
}


@functools.cache
def tokenizer() -> PreTrainedTokenizerFast:
    """Byte-level BPE of at most 1,000 tokens, trained here on ASCII alone, so that every other character is cut into bytes."""
    raw = Tokenizer(models.BPE())
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet, special_tokens=["<end>"], show_progress=False)
    raw.train_from_iterator([TEXTS["plain"] * 3], trainer)
    return PreTrainedTokenizerFast(tokenizer_object=raw, eos_token="<end>")


def encode(text: str) -> list[int]:
    return list(tokenizer().encode(text))


def test_any_tokens_at_all_stream_to_what_they_decode_to() -> None:
    """Random tokens are mostly broken UTF-8."""
    draw = random.Random(0)
    for _ in range(60):
        ids = [draw.randrange(len(tokenizer())) for _ in range(30)]
        detokenizer, shown = Detokenizer(tokenizer(), ()), ""
        for token in ids:
            detokenizer.append(token)
            assert detokenizer.text.startswith(shown)
            shown = detokenizer.text
        assert detokenizer.finish() == tokenizer().decode(ids, skip_special_tokens=True)


@functools.cache
def model() -> LoadedModel:
    hf = build("llama", **SMALL)
    hf.generation_config.eos_token_id = tokenizer().eos_token_id
    return LoadedModel.from_transformers(hf, tokenizer=tokenizer())


@pytest.mark.parametrize("text", TEXTS.values(), ids=list(TEXTS))
@pytest.mark.parametrize("lag", [1, 3])
def test_an_engine_streams_the_text_of_its_tokens(text: str, lag: int) -> None:
    engine, ids = make_engine(model(), EngineConfig(pool_blocks=40, lag=lag)), encode(text)
    name = engine.add_request(prompt(0, 9, 256), SamplingParams(forced=tuple(ids)))
    seen = [""]
    while engine.has_work:
        engine.step()
        now = engine.outputs[name].text
        assert now is not None and now.startswith(seen[-1])
        seen.append(now)
    assert seen[-1] == text
    assert len(set(seen)) > len(text) // 8


@pytest.mark.parametrize("lag", [1, 3])
def test_a_stop_string_over_two_tokens_stops_the_request(lag: int) -> None:
    """At the token that completes it, though later steps were launched; the reason is "stop", and the books are whole."""
    ids = encode(TEXTS["plain"])
    engine = make_engine(model(), EngineConfig(pool_blocks=40, lag=lag))
    stop = "brown fox"
    output = engine.generate([prompt(0, 9, 256)], SamplingParams(forced=tuple(ids), stop=(stop,)))[0]
    assert output.finish_reason == "stop"
    assert output.text == "The quick "
    decoded = tokenizer().decode(output.token_ids)
    assert stop in decoded and stop not in tokenizer().decode(output.token_ids[:-1])
    engine.check()
    assert engine.worker.pool.n_free() == 40


def test_end_tokens_are_not_text() -> None:
    ids = [*encode("done"), tokenizer().eos_token_id]
    output = make_engine(model(), EngineConfig(pool_blocks=40)).generate([prompt(0, 9, 256)], SamplingParams(forced=tuple(ids)))[0]
    assert (output.text, output.token_ids, output.finish_reason) == ("done", ids, "length")
