"""Prompts by seed: random ids in lengths of a chosen shape, and windows of real text."""

from __future__ import annotations

import itertools
import random
import statistics
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import torch
import transformers

from vtoken_sdk.runtime.config import ConfigError
from vtoken_sdk.runtime.model_loader import LoadedModel, load_model
from vtoken_sdk.workloads import BUNDLED_TEXT, build_workload, synthetic, text
from vtoken_sdk.workloads.lengths import draw_lengths


@pytest.fixture(scope="module")
def tiny() -> LoadedModel:
    return load_model("tiny", device="cpu")


@pytest.fixture(scope="module")
def worded(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    """A model of 80 ids, 60 of them words of a tokenizer that begins every text with <s>."""
    words = {"<s>": 0, "</s>": 1, "<pad>": 2, **{f"w{i}": i for i in range(3, 60)}}
    backend = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="<pad>"))
    backend.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    backend.post_processor = tokenizers.processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    options: Any = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "model_max_length": 16}
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=backend, **options)
    config = transformers.LlamaConfig(
        vocab_size=80, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2, max_position_embeddings=64
    )
    config.eos_token_id = [1, 40]
    return LoadedModel.from_transformers(transformers.LlamaForCausalLM(config), name="worded", tokenizer=tokenizer)


# -- synthetic ----------------------------------------------------------------------------------------------------------


def test_synthetic_ids_follow_the_seed_alone(tiny: LoadedModel) -> None:
    torch.manual_seed(1)
    one = synthetic(tiny, requests=3, ctx=50, output_tokens=4, seed=5)
    torch.manual_seed(2)
    more = synthetic(tiny, requests=5, ctx=50, output_tokens=9, seed=5)
    assert one.prompts == more.prompts[:3]
    assert len({tuple(p) for p in more.prompts}) == 5
    assert synthetic(tiny, requests=3, ctx=50, output_tokens=4, seed=6).prompts != one.prompts
    assert (one.kind, one.output_tokens, one.continuations, one.prompt_tokens) == ("synthetic", 4, None, 150)
    ids = {i for p in synthetic(tiny, requests=10, ctx=2000, output_tokens=1).prompts for i in p}
    assert ids == set(range(512))


def test_synthetic_ids_are_ordinary_tokens(worded: LoadedModel) -> None:
    prompts = synthetic(worded, requests=100, ctx=60, output_tokens=1).prompts
    assert {i for p in prompts for i in p} == set(range(3, 60)) - {40}


def test_length_distributions(tiny: LoadedModel) -> None:
    def lengths(kind: Any) -> list[int]:
        return [len(p) for p in synthetic(tiny, requests=400, ctx=800, output_tokens=1, lengths=kind).prompts]

    assert set(lengths("fixed")) == {800}
    uniform = lengths("uniform")
    assert 100 <= min(uniform) < 120
    assert 780 < max(uniform) <= 800
    assert 410 < statistics.mean(uniform) < 490  # 450, give or take 4 standard errors
    lognormal = lengths("lognormal")
    assert max(lognormal) == 800
    assert 150 < statistics.median(lognormal) < 250
    assert [len(p) for p in synthetic(tiny, requests=3, ctx=1, output_tokens=1, lengths="lognormal").prompts] == [1, 1, 1]
    with pytest.raises(ConfigError, match="lengths='normal': use one of fixed, uniform, lognormal"):
        lengths("normal")


@pytest.mark.parametrize(
    ("lengths", "mean_in", "mean_out", "most_in"),
    [("sharegpt", 215, 198, 1024), ("longbench", 7468 * 1.3, 152, 1 << 20), ("reasoning", 1384, 1615, 42238)],
)
def test_lengths_like_public_data_have_its_means(lengths: str, mean_in: float, mean_out: float, most_in: int) -> None:
    """The means that the module names as measured; draws alone, without the prompts' ids."""
    rng = random.Random(3)
    drawn = [draw_lengths(lengths, 1, 1, rng) for _ in range(8000)]
    for column, mean in enumerate((mean_in, mean_out)):
        values = [pair[column] for pair in drawn]
        error = statistics.stdev(values) / len(values) ** 0.5
        assert abs(statistics.mean(values) - mean) < max(4 * error, 0.02 * mean)
    assert max(pair[0] for pair in drawn) <= most_in


def test_lengths_from_data_are_scaled_and_cut_and_that_is_told(tiny: LoadedModel) -> None:
    sizes: Any = {"requests": 40, "ctx": 100, "output_tokens": 9, "seed": 1}
    work = synthetic(tiny, **sizes, lengths="sharegpt", length_scale=0.25)
    whole = synthetic(tiny, **{**sizes, "ctx": 1024, "output_tokens": 2048}, lengths="sharegpt")
    assert [len(p) for p in work.prompts] == [min(100, round(len(p) * 0.25)) for p in whole.prompts]
    assert work.output_lengths == [min(9, max(1, round(n * 0.25))) for n in whole.output_lengths]
    cut = sum(len(p) * 0.25 > 100 for p in whole.prompts)
    assert work.notices[0] == f"{cut} of 40 prompts are longer than ctx=100 and were cut to it"
    assert "outputs are longer than output_tokens=9" in work.notices[1]
    assert whole.notices == ()
    assert synthetic(tiny, **sizes).output_lengths == [9] * 40


# -- text ---------------------------------------------------------------------------------------------------------------


def test_windows_of_the_bundled_text_are_spread_evenly_and_followed_by_their_truth(tiny: LoadedModel) -> None:
    content = BUNDLED_TEXT.read_bytes()
    work = text(tiny, requests=4, ctx=1000, output_tokens=20, seed=3)
    assert "bytes of pride_and_prejudice.txt are its tokens" in work.notices[0]
    assert work.source == str(BUNDLED_TEXT)
    assert work.continuations is not None
    firsts = []
    for prompt, continuation in zip(work.prompts, work.continuations, strict=True):
        assert (len(prompt), len(continuation)) == (1000, 20)
        firsts.append(content.find(bytes(prompt + continuation)))
    assert min(firsts) >= 0
    gaps = {b - a for a, b in itertools.pairwise(firsts)}
    assert max(gaps) - min(gaps) <= 1
    assert min(gaps) == pytest.approx(len(content) / 4, rel=0.01)
    assert text(tiny, requests=4, ctx=1000, output_tokens=20, seed=3) == work
    assert text(tiny, requests=4, ctx=1000, output_tokens=20, seed=4).prompts != work.prompts


def test_windows_begin_as_the_tokenizer_begins_texts(worded: LoadedModel, tmp_path: Path) -> None:
    file = tmp_path / "words.txt"
    file.write_text(" ".join(f"w{3 + i % 57}" for i in range(100)))
    work = text(worded, requests=2, ctx=10, output_tokens=3, path=file)
    assert work.continuations is not None
    for prompt, continuation in zip(work.prompts, work.continuations, strict=True):
        assert (len(prompt), prompt[0], len(continuation)) == (10, 0, 3)
        body = prompt[1:] + continuation
        assert body == [3 + (body[0] - 3 + i) % 57 for i in range(12)]
    assert work.notices == ()


def test_a_text_that_is_just_long_enough(tiny: LoadedModel, tmp_path: Path) -> None:
    file = tmp_path / "short.txt"
    file.write_bytes(bytes(range(20, 120)))
    assert text(tiny, requests=1, ctx=90, output_tokens=10, path=file).prompts == [list(range(20, 110))]
    work = text(tiny, requests=3, ctx=88, output_tokens=10, path=file)
    assert sorted(p[0] for p in work.prompts) == [20, 21, 22]
    assert "the 3 windows of 98 tokens overlap" in work.notices[1]
    with pytest.raises(ConfigError, match=r"4 different windows of 98 tokens need 101 tokens, .*short\.txt has 100"):
        text(tiny, requests=4, ctx=88, output_tokens=10, path=file)


def test_build_takes_a_kind_or_a_file(tiny: LoadedModel, tmp_path: Path) -> None:
    sizes: Any = {"requests": 2, "ctx": 20, "output_tokens": 2}
    file = tmp_path / "mine.txt"
    file.write_text("to be or not to be " * 10)
    assert build_workload("synthetic", tiny, **sizes) == synthetic(tiny, **sizes)
    assert build_workload("text", tiny, **sizes) == text(tiny, **sizes)
    assert build_workload(str(file), tiny, **sizes) == text(tiny, **sizes, path=file)


def test_what_cannot_be_built_says_why(tiny: LoadedModel, worded: LoadedModel, tmp_path: Path) -> None:
    sizes: Any = {"requests": 2, "ctx": 20, "output_tokens": 2}
    latin = tmp_path / "latin.txt"
    latin.write_bytes("naïve".encode("latin-1"))
    cases: list[tuple[str, LoadedModel, dict[str, Any], str]] = [
        ("txet", tiny, {}, r"workload=txet: use synthetic, text, or the path of a text, trace or ShareGPT file"),
        (str(latin), tiny, {}, "not UTF-8"),
        (str(tmp_path), tiny, {}, "cannot be read"),
        ("text", tiny, {"lengths": "uniform"}, "lengths=uniform: windows of text .*workload=synthetic"),
        ("text", tiny, {"length_scale": 0.5}, "length_scale=0.5: texts cannot be scaled"),
        ("text", worded, {"ctx": 1}, "ctx=1: .* 1 start tokens"),
        ("synthetic", tiny, {"requests": 0}, "requests=0"),
        ("text", tiny, {"ctx": 0}, "ctx=0"),
        ("synthetic", tiny, {"output_tokens": True}, "output_tokens=True"),
        ("synthetic", worded, {"ctx": 64}, "worded has 64 positions for both; use ctx <= 63"),
        ("synthetic", worded, {"output_tokens": 70}, "use output_tokens <= 64"),
    ]
    for workload, model, changed, said in cases:
        with pytest.raises(ConfigError, match=said):
            build_workload(workload, model, **{**sizes, **changed})
    assert build_workload("synthetic", worded, **{**sizes, "ctx": 63}).prompt_tokens == 126


def test_real_weights_without_a_tokenizer_have_no_text(tiny: LoadedModel) -> None:
    model = LoadedModel.from_transformers(tiny.hf, name="mine", weights="real")
    with pytest.raises(ConfigError, match="mine has real weights and no tokenizer"):
        text(model, requests=1, ctx=10, output_tokens=1)
