"""Text that grows token by token is the text decoded at once, in whole characters; stop strings end it."""

from __future__ import annotations

import functools

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers.tokenization_utils_tokenizers import PreTrainedTokenizerFast

from vtoken_sdk.runtime.detokenizer import Detokenizer

TEXTS = [
    "plain words, and  two spaces",
    "emoji 👩‍👩‍👧 and 🏳️‍🌈 end",
    "漢字かな交じり文 한국어",
    "combining: e\u0301 a\u0323\u0302 n\u0303",
    "mixed 🙂漢é",
]


@functools.cache
def byte_level() -> PreTrainedTokenizerFast:
    """A byte-level tokenizer without merges: every character beyond ASCII is torn into several tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    core = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=core, clean_up_tokenization_spaces=False)


def encode(text: str) -> list[int]:
    return list(byte_level()(text)["input_ids"])


@pytest.mark.parametrize("text", TEXTS)
def test_streamed_text_grows_by_whole_characters(text: str) -> None:
    stream = Detokenizer(byte_level(), ())
    seen = ""
    for token in encode(text):
        assert not stream.append(token)
        assert stream.text.startswith(seen)
        assert "\ufffd" not in stream.text
        seen = stream.text
    assert stream.finish() == text == byte_level().decode(encode(text))


def test_a_tail_that_is_really_broken_shows() -> None:
    ids = encode("ok 🙂")[:-1]
    stream = Detokenizer(byte_level(), ())
    for token in ids:
        stream.append(token)
    assert stream.text == "ok "
    assert stream.finish() == byte_level().decode(ids)
    assert stream.finish().endswith("\ufffd")


@pytest.mark.parametrize(("stop", "left"), [(("two sp",), "plain words, and  "), (("nope", ","), "plain words"), (("🙂",), None)])
def test_a_stop_string_over_several_tokens_ends_the_text_before_it(stop: tuple[str, ...], left: str | None) -> None:
    stream = Detokenizer(byte_level(), stop)
    ids = encode(TEXTS[0])
    stopped = next((i for i, token in enumerate(ids) if stream.append(token)), None)
    if left is None:
        assert stopped is None
        assert stream.finish() == TEXTS[0]
    else:
        assert stopped is not None
        assert stream.text == stream.finish() == left
        assert any(byte_level().decode(ids[: stopped + 1]).endswith(s) for s in stop)
