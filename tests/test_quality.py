"""Quality against the full cache: the arithmetic, the reference forward, and both over a real engine."""

from __future__ import annotations

import copy
import dataclasses
import math
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import torch
import transformers

from tests.quality_model import engines, tiny
from vtoken_sdk.policies.random import Random
from vtoken_sdk.policies.streaming_llm import StreamingLLM
from vtoken_sdk.quality import FolderShelf, FullCache, QualityError, compare, continuations, judge, summary
from vtoken_sdk.quality.table import read_cases
from vtoken_sdk.runtime import ConfigError, Engine, EngineConfig
from vtoken_sdk.runtime.model_loader import LoadedModel
from vtoken_sdk.tracking.files import JobFolder, write_json, write_parquet
from vtoken_sdk.workloads import Workload, synthetic, text


@pytest.fixture(scope="module")
def work() -> Workload:
    return text(tiny(), requests=3, ctx=150, output_tokens=40)


@pytest.fixture
def model() -> LoadedModel:
    return tiny()


# -- arithmetic ---------------------------------------------------------------------------------------------------------


def test_compare_equals_the_definitions() -> None:
    p = torch.tensor([[0.5, 0.25, 0.25], [0.1, 0.2, 0.7]], dtype=torch.float64)
    q = torch.tensor([[0.25, 0.5, 0.25], [0.2, 0.2, 0.6]], dtype=torch.float64)
    nll, nll_full, kl, same = compare(p.log() + 3, q.log() - 5, torch.tensor([1, 2]))  # logits may be shifted
    assert nll.tolist() == pytest.approx([math.log(2), -math.log(0.6)])
    assert nll_full.tolist() == pytest.approx([math.log(4), -math.log(0.7)])
    assert kl.tolist() == pytest.approx([0.25 * math.log(2), 0.1 * math.log(0.5) + 0.7 * math.log(0.7 / 0.6)])
    assert same.tolist() == [0, 1]


def test_compare_sees_differences_that_fp32_would_lose() -> None:
    full = torch.zeros(1, 1000)
    evicted = full.clone()
    evicted[0, 0] = 1e-4
    kl = compare(full, evicted, torch.tensor([0]))[2]
    assert kl.item() == pytest.approx(0.5 * (1e-4) ** 2 * (1 / 1000) * (1 - 1 / 1000), rel=1e-3)


def test_compare_takes_impossible_tokens_and_refuses_nan() -> None:
    full = torch.tensor([[0.0, 0.0, -torch.inf]])
    assert compare(full, full, torch.tensor([0]))[2].item() == 0
    assert compare(full, torch.zeros(1, 3), torch.tensor([0]))[2].item() == pytest.approx(math.log(1.5))
    assert compare(torch.zeros(1, 3), full, torch.tensor([0]))[2].item() == math.inf
    many = torch.zeros(200, 3)
    many[150, 1] = torch.nan
    with pytest.raises(ValueError, match="engine's logits are NaN at continuation token 150"):
        compare(torch.zeros(200, 3), many, torch.zeros(200, dtype=torch.int64))


# -- the full cache -----------------------------------------------------------------------------------------------------


def test_the_full_cache_predicts_each_continuation_token(model: LoadedModel, work: Workload) -> None:
    assert work.continuations is not None
    prompt, continuation = work.prompts[0], work.continuations[0]
    hf: Any = model.hf
    whole = hf(torch.tensor([prompt + continuation])).logits[0]
    got = FullCache(model).logits(prompt, continuation)
    assert got.dtype == torch.float32
    assert torch.allclose(got, whole[len(prompt) - 1 : -1], atol=1e-5)


def test_the_full_cache_shares_the_weights_and_leaves_the_engines_attention_alone(model: LoadedModel, work: Workload) -> None:
    assert work.continuations is not None
    before = FullCache(model).logits(work.prompts[0], work.continuations[0])
    Engine(model, EngineConfig(pool_blocks=16))  # puts its own attention into the model's config
    engines_attention = model.hf.config._attn_implementation
    full = FullCache(model)
    assert torch.equal(full.logits(work.prompts[0], work.continuations[0]), before)
    assert model.hf.config._attn_implementation == engines_attention != full._hf.config._attn_implementation
    for mine, its in zip(model.hf.parameters(), full._hf.parameters(), strict=True):
        assert mine.data_ptr() == its.data_ptr()


def test_the_full_cache_honors_a_soft_cap() -> None:
    torch.manual_seed(0)
    config = transformers.Gemma2Config(
        vocab_size=64, hidden_size=32, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1,
        head_dim=16, sliding_window=8, attn_logit_softcapping=2.0, query_pre_attn_scalar=1, initializer_range=0.5,
    )  # fmt: skip
    hf: Any = transformers.Gemma2ForCausalLM._from_config(config, attn_implementation="eager").eval()
    ids = list(range(30))
    got = FullCache(LoadedModel.from_transformers(hf)).logits(ids[:20], ids[20:])
    assert torch.allclose(got, hf(torch.tensor([ids])).logits[0, 19:-1], atol=1e-5)


def test_answers_on_a_shelf_are_what_would_be_computed(model: LoadedModel, work: Workload, tmp_path: Path, monkeypatch: Any) -> None:
    item = continuations(work)[0]
    shelf = FolderShelf(tmp_path / "shelf")
    first = FullCache(model, shelf)
    computed, written = first.truth(item.prompt, item.forced, 3, keep_logits=True), first.write(item.prompt, 5)
    (folder,) = (path for path in tmp_path.iterdir())
    for path in folder.iterdir():
        (tmp_path / "spare").mkdir(exist_ok=True)
        (tmp_path / "spare" / path.name).write_bytes(path.read_bytes())

    second = FullCache(model, shelf)
    monkeypatch.setattr(second, "_forward", None)  # calling it would fail
    again = second.truth(item.prompt, item.forced, 3, keep_logits=True)
    assert all(torch.equal(getattr(again, name), getattr(computed, name)) for name in ("nll", "best", "logits"))
    assert second.write(item.prompt, 5) == written
    with pytest.raises(TypeError):
        second.truth(item.prompt, item.forced, 4, keep_logits=True)  # another question

    for path in folder.iterdir():
        path.write_bytes(path.read_bytes()[:40])  # torn: computed and written again
    healed = FullCache(model, shelf).truth(item.prompt, item.forced, 3, keep_logits=True)
    assert torch.equal(healed.nll, computed.nll)
    other: Any = LoadedModel.from_transformers(copy.deepcopy(model.hf).double(), name="mine")
    assert FullCache(other, shelf).truth(item.prompt, item.forced, 3).nll.tolist() != computed.nll.tolist()
    full = FolderShelf(tmp_path / "full", most_bytes=100)
    assert torch.equal(FullCache(model, full).truth(item.prompt, item.forced, 3).nll, computed.nll)
    assert not list(full.folder.iterdir())


# -- over an engine -----------------------------------------------------------------------------------------------------


def test_without_eviction_nothing_is_lost(model: LoadedModel, work: Workload) -> None:
    row = summary(judge(model, engines(model, "native", 1), continuations(work)))
    assert set(row) == {"nll", "nll_full", "kl", "top1", "judged"}
    assert row["judged"] == 120
    assert row["top1"] == 1
    assert row["kl"] == pytest.approx(0, abs=1e-9)
    assert row["nll"] == pytest.approx(row["nll_full"], abs=1e-5)
    assert row["nll_full"] is not None and float(row["nll_full"]) > 1


def test_eviction_costs_more_the_more_is_evicted_and_the_same_in_every_runtime(model: LoadedModel, work: Workload) -> None:
    full = FullCache(model)

    def row(runtime: str, budget: int) -> dict[str, Any]:
        return summary(judge(model, engines(model, runtime, budget), continuations(work), full))

    some, much = row("vtoken", 120), row("vtoken", 30)
    assert 1e-3 < some["kl"] < much["kl"]
    assert much["top1"] < 1
    assert much["nll"] != much["nll_full"]
    assert row("naive", 30) == pytest.approx(much, abs=1e-4)


def test_an_item_has_the_same_score_whatever_is_judged_beside_it(model: LoadedModel, work: Workload) -> None:
    """Also where the policy draws: the paired comparisons of a sweep rest on it."""
    items = continuations(work, seed=4)
    factory = engines(model, "naive", 30, Random)
    together = judge(model, factory, items)
    assert together == judge(model, factory, items)
    (alone,) = judge(model, factory, items[1:2])
    assert (alone.kl, alone.nll) == pytest.approx((together[1].kl, together[1].nll), abs=1e-5)
    assert dataclasses.replace(alone, kl=together[1].kl, nll=together[1].nll) == together[1]
    (other,) = judge(model, factory, continuations(work, seed=5)[1:2])
    assert abs((other.kl or 0) - (alone.kl or 0)) > 1e-3


def test_quality_needs_the_text_that_follows(model: LoadedModel) -> None:
    with pytest.raises(ConfigError, match=r"workload=synthetic: quality needs the text.*workload=text"):
        continuations(synthetic(model, requests=1, ctx=10, output_tokens=2))


def test_an_engine_that_gives_up_is_named(model: LoadedModel, work: Workload) -> None:
    @dataclasses.dataclass
    class Failing(StreamingLLM):
        def evict_token(self, cache: Any) -> Any:
            raise RuntimeError("no idea")

    with pytest.raises(QualityError, match=r"continuation item 0: the engine ended after \d+ tokens \(error: .*no idea.* of 40 tokens"):
        judge(model, lambda: Engine(model, EngineConfig(pool_blocks=64, budget=30), Failing()), continuations(work))


def test_jobs_of_an_edited_policy_are_no_part_of_the_comparison(tmp_path: Path) -> None:
    """They stay in the sweep's folder, under the same name."""
    for job, nll in (("new", 2.0), ("old", 1.0)):
        config = {"policy": "./mine.py", "policy_sha256": job, "runtime": "naive", "seed": 0}
        folder = JobFolder(tmp_path / "jobs" / job)
        folder.path.mkdir(parents=True)
        write_json(folder.path / "result.json", {"row": {"nll": nll}, "config": config})
        item = {"suite": "continuation", "item": "0", "seed": 0, "dropped": False, "nll": nll, "nll_full": 1.0, "kl": 0.0, "top1": 1.0}
        write_parquet(folder.path / "quality.parquet", pa.Table.from_pylist([item]))
        folder.say("done")
    write_json(tmp_path / "plan.json", {"jobs": [{"job": "new"}]})
    (case,) = read_cases(tmp_path)
    assert case.config["policy_sha256"] == "new"
