"""LongBench files: what is read, refused, asked, cut and scored."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.quality_model import engines, tiny, tokenizer
from vtoken_sdk.policies.oracle import Oracle
from vtoken_sdk.quality import FullCache, Item, judge, longbench, summary
from vtoken_sdk.quality.longbench.metrics import best_score, classification, code_similarity, count, metric_of, paragraph, rouge_l, token_f1
from vtoken_sdk.quality.longbench.record import FIELDS
from vtoken_sdk.runtime import ConfigError
from vtoken_sdk.runtime.model_loader import LoadedModel

STORY = "The miller came on Monday. On Sunday the gardener brought ripe pears. " * 4


@pytest.fixture(scope="module")
def model() -> LoadedModel:
    return tiny()


def line(**other: Any) -> dict[str, Any]:
    fields = dict.fromkeys(FIELDS) | {"input": "Who came?", "context": STORY, "answers": ["the miller", "a miller"], "dataset": "hotpotqa"}
    return fields | {"length": 50, "language": "en", "_id": "one"} | other


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    def write(*lines: Any) -> Path:
        path = tmp_path / "data.jsonl"
        path.write_text("\n".join(x if isinstance(x, str) else json.dumps(x) for x in lines) + "\n", encoding="utf-8")
        return path

    return write


def test_a_broken_line_names_file_line_field_and_mend(model: LoadedModel, write: Callable[..., Path], tmp_path: Path) -> None:
    def without(name: str, **other: Any) -> dict[str, Any]:
        return {k: v for k, v in line(**other).items() if k != name}

    cases: list[tuple[Any, str]] = [
        ('{"input": ', r"line 3: not JSON .*one JSON object a line"),
        ("[1]", r"line 3: list, not an object"),
        (without("context"), r"line 3: no field context; add it: a string with text in it"),
        (without("answers", answer=["x"]), r"line 3: no field answers; rename answer"),
        (line(answers="the miller"), r'line 3: answers="the miller"; make it a list of at least one string'),
        (line(answers=[]), r"line 3: answers=\[\]; make it"),
        (line(dataset=7), r"line 3: dataset=7; make it a string"),
        (line(all_classes=[1]), r"line 3: all_classes=\[1\]; make it a list of strings, or null"),
        (line(length="long"), r'line 3: length="long"; make it a whole number'),
        (line(_id="one"), r'items 1 and 2 have the same _id "one"; give each its own'),
    ]
    for broken, message in cases:
        path = write(line(), "", broken)
        with pytest.raises(ConfigError, match=message) as raised:
            longbench(model, path, ctx=400)
        assert str(raised.value).startswith(f"quality.data={path}")
    for path, message in ((tmp_path / "no.jsonl", "cannot be read"), (write(""), "no lines")):
        with pytest.raises(ConfigError, match=message):
            longbench(model, path, ctx=400)
    (item,), _ = longbench(
        model, write({k: v for k, v in line().items() if v is not None and k not in ("length", "language", "_id")}), ctx=400
    )
    assert item.name == "1", "what is not needed may be missing"


def test_prompts_are_generic_or_given_and_lose_their_middle(model: LoadedModel, write: Callable[..., Path], tmp_path: Path) -> None:
    def text(ids: list[int]) -> str:
        return str(tokenizer().decode(ids, skip_special_tokens=True))

    path = write(line(), line(_id="two", dataset="trec_e", input="Q: x", answers=["A"], all_classes=["A", "B"]))
    (generic, trec), notices = longbench(model, path, ctx=400)
    assert text(generic.prompt).startswith(STORY) and text(generic.prompt).endswith("Question: Who came?\nAnswer:")
    assert text(generic.forced) == " the miller"
    assert text(trec.prompt) == f"{STORY}\nQ: x"
    assert trec.task is not None and (trec.task.metric, trec.task.max_tokens) == ("classification", 64)
    assert trec.facts == {"dataset": "trec", "prompt": "generic"}
    assert any("2 of 2 items, with generic prompts: for LongBench's own, set quality.prompts" in n for n in notices)

    templates = tmp_path / "dataset2prompt.json"
    templates.write_text(json.dumps({"hotpotqa": "Read.\n{context}\nNow: {input}\nAnswer:"}))
    (given,), notices = longbench(model, write(line()), ctx=400, prompts=templates)
    assert text(given.prompt) == f"Read.\n{STORY}\nNow: Who came?\nAnswer:"
    assert notices == ["quality.data: 1 of 1 items, with given prompts"]
    with pytest.raises(ConfigError, match=r"quality.prompts: no entry for dataset trec; add one"):
        longbench(model, write(line(dataset="trec")), ctx=400, prompts=templates)
    templates.write_text(json.dumps({"hotpotqa": "{input}"}))
    with pytest.raises(ConfigError, match=r"hotpotqa must be a text with \{context\} in it once"):
        longbench(model, path, ctx=400, prompts=templates)

    (short,), notices = longbench(model, write(line()), ctx=140)
    assert short.prompt == generic.prompt[:70] + generic.prompt[-70:]
    assert notices[1] == "quality.data: 1 of 1 items are longer than ctx=140 and lose their middle"
    (late,), _ = longbench(model, write(line()), ctx=140, query="agnostic")
    assert late.prompt + late.forced == short.prompt + short.forced
    assert text(late.forced[: late.answer]).endswith("Question: Who came?\nAnswer:") and late.wanted == short.wanted
    with pytest.raises(ConfigError, match=r'ctx=40: the question of item "one" alone has \d+ tokens'):
        longbench(model, write(line()), ctx=40)


def test_the_seed_draws_the_items(model: LoadedModel, write: Callable[..., Path]) -> None:
    path = write(*(line(_id=str(n)) for n in range(9)))
    names = [[item.name for item in longbench(model, path, ctx=400, items=4, seed=seed)[0]] for seed in (0, 1, 1)]
    assert names[0] != names[1] == names[2]
    assert all(len(set(some)) == 4 and some == sorted(some, key=int) for some in names)
    assert len(longbench(model, path, ctx=400)[0]) == len(longbench(model, path, ctx=400, items=20)[0]) == 9


def test_metrics_follow_their_definitions() -> None:
    assert token_f1("The Ripe, pears!", "ripe pears") == 1
    assert token_f1("ripe ripe apples", "a ripe pear") == pytest.approx(2 * (1 / 3) * (1 / 2) / (1 / 3 + 1 / 2))
    assert token_f1("", "x") == token_f1("plums", "pears") == 0
    # as the package rouge 1.0.1 gives them
    council = (
        "The council will build a bridge. It opens in spring.",
        "The council decided to build a new bridge over the river. It costs two million.",
    )
    assert rouge_l(*council) == pytest.approx(0.4799999952, abs=1e-9)
    assert rouge_l("a b c d e f", "b a c e d f") == pytest.approx(0.6666666616666668, abs=1e-12)
    assert rouge_l("..", "a b") == rouge_l("", "a") == 0
    assert classification("It is a city or a river", "city", ["city", "river", "lake"]) == 0.5
    assert classification("a state city", "state city", ["city", "state city"]) == 1, "a class inside the true one's name"
    assert classification("a lake", "city", ["city", "lake"]) == 0
    assert paragraph("Paragraph 7, not 12", "Paragraph 7") == 0.5
    assert count("There are 12", "12") == 1
    assert count("none", "12") == 0
    assert code_similarity("# so\nreturn x + 1\nmore", "return x + 2") == round(100 * 2 * 11 / 24) / 100
    assert best_score("trec", classification, "\nriver\ncity", ["city"], ["city", "river"]) == 0, "only the first line counts"
    assert best_score("qasper", token_f1, "two", ["one", "two"], []) == 1, "any of the answers"
    assert metric_of("vcsum", []) is None
    assert [metric_of("my own", c)[0] for c in ([], ["x"])] == ["token_f1", "classification"]  # type: ignore[index]


def test_answers_are_written_and_scored_against_the_full_cache(model: LoadedModel, write: Callable[..., Path]) -> None:
    full = FullCache(model)
    (item,), _ = longbench(model, write(line()), ctx=300)
    said = tokenizer().decode(full.write(item.prompt, 32), skip_special_tokens=True)
    lines = [line(_id="knows", answers=[said.strip(), "no"]), line(_id="fails"), line(_id="chinese", dataset="vcsum")]
    items, notices = longbench(model, write(*lines), ctx=300)
    assert "answers of vcsum get no score" in notices[1]

    same = judge(model, engines(model, "native", 1), items, full)
    assert [s.dropped for s in same] == [False, True, False]
    assert (same[0].score, same[0].score_full, same[0].top1) == (1, 1, 1)
    assert (same[2].score, same[2].score_full) == (None, None)
    row = summary(same)
    assert (row["longbench_items"], row["longbench_dropped"], row["longbench_score"], row["longbench_score_full"]) == (2, 1, 100, 100)
    assert row["longbench_nll"] == pytest.approx(row["longbench_nll_full"], abs=1e-4)

    evicted = summary(judge(model, engines(model, "naive", 0.2), items, full))
    assert evicted["longbench_score"] is not None and float(evicted["longbench_score"]) < 100
    assert evicted["longbench_score_full"] == 100
    assert evicted["longbench_top1"] is not None and float(evicted["longbench_top1"]) < 1

    late, _ = longbench(model, write(*lines), ctx=300, query="agnostic")
    asked_later = judge(model, engines(model, "naive", 0.2), late, full)
    assert [s.dropped for s in asked_later] == [False, True, False], "the full cache does not care when it is asked"
    assert asked_later[0].score is None and asked_later[0].nll is not None
    ahead = judge(model, engines(model, "naive", 0.2, Oracle), items[:1], full)
    assert ahead[0].score is None and ahead[0].nll is not None, "its future is not that of a text of its own"


def test_the_score_is_the_mean_over_datasets() -> None:
    from vtoken_sdk.quality import Score

    def score(dataset: str, value: float) -> Score:
        return Score("longbench", f"{dataset}{value}", 0, 9, 2, 1.0, True, nll=1.0, top1=1.0, score=value, score_full=1.0, dataset=dataset)

    row = summary([score("a", 1.0), score("a", 0.0), score("a", 0.5), score("b", 0.1)])
    assert row["longbench_score"] == pytest.approx(100 * (0.5 + 0.1) / 2)


def test_an_item_knows_what_is_judged_and_how_much_it_holds() -> None:
    item = Item("longbench", "x", [1, 2], [3, 4, 5], answer=1)
    assert (item.wanted, item.length) == ([4, 5], 4)
