"""Public request traces and ShareGPT files: what is read, what is refused and how, when requests arrive."""

from __future__ import annotations

import json
import os
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from vtoken_sdk.runtime import Engine, EngineConfig, SamplingParams
from vtoken_sdk.runtime.config import ConfigError
from vtoken_sdk.runtime.model_loader import LoadedModel, load_model
from vtoken_sdk.workloads import build_workload, gamma_arrivals, is_text, sharegpt, stretched, trace
from vtoken_sdk.workloads.formats import read_trace

DATA = Path(os.environ.get("VTOKEN_TEST_DATA", Path(__file__).parents[2] / "shared" / "data"))
MANY: Any = {"ctx": 4096, "output_tokens": 4096}

AZURE_2023 = """TIMESTAMP,ContextTokens,GeneratedTokens\r
2023-11-16 18:15:46.6805900,374,44\r
2023-11-16 18:15:50.9951690,396,109\r
2023-11-16 18:15:51.2224670,879,55\r
"""
AZURE_2024 = """TIMESTAMP,ContextTokens,GeneratedTokens
2024-05-10 00:00:00.009930+00:00,2162,5
2024-05-10 00:00:01+00:00,2399,6
2024-05-10 00:00:01.514948+00:00,76,15
"""
BURSTGPT = """Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type
5,ChatGPT,472,18,490,Conversation log
45,GPT-4,1087,0,1087,API log
118.5,GPT-4,417,276,693,Conversation log
"""
MOONCAKE = "\n".join(
    json.dumps({"timestamp": t, "input_length": n, "output_length": 20, "hash_ids": ids})
    for t, n, ids in [(0, 1100, [7, 8, 9]), (1500, 1300, [7, 8, 10]), (3000, 600, [11, 12])]
)
BAILIAN = "\n".join(
    json.dumps(
        {
            "chat_id": i,
            "parent_chat_id": -1,
            "timestamp": t,
            "input_length": n,
            "output_length": 30,
            "type": "text",
            "turn": 1,
            "hash_ids": ids,
        }
    )
    for i, (t, n, ids) in enumerate([(0.0, 40, [1, 2, 3]), (61.114, 45, [1, 2, 4])])
)


@pytest.fixture(scope="module")
def tiny() -> LoadedModel:
    return load_model("tiny", device="cpu")


def written(folder: Path, name: str, content: str) -> Path:
    (folder / name).write_text(content, newline="")
    return folder / name


@pytest.mark.parametrize(
    ("name", "content", "kind", "lengths", "outputs", "times"),
    [
        ("azure.csv", AZURE_2023, "azure", [374, 396, 879], [44, 109, 55], [0, 4.314579, 4.541877]),
        ("AZURE.CSV", "\ufeff" + AZURE_2024, "azure", [2162, 2399, 76], [5, 6, 15], [0, 0.99007, 1.505018]),
        ("burst.csv", BURSTGPT, "burstgpt", [472, 417], [18, 276], [0, 113.5]),
        ("moon.jsonl", MOONCAKE, "mooncake", [1100, 1300, 600], [20] * 3, [0, 1.5, 3]),
        ("bailian.jsonl", BAILIAN + "\n\n", "bailian", [40, 45], [30] * 2, [0, 61.114]),
    ],
)
def test_each_format_gives_lengths_and_times(
    tiny: LoadedModel, tmp_path: Path, name: str, content: str, kind: str, lengths: list[int], outputs: list[int], times: list[float]
) -> None:
    work = trace(tiny, requests=len(lengths), **MANY, path=written(tmp_path, name, content))
    assert work.kind == kind
    assert [len(p) for p in work.prompts] == lengths
    assert work.output_lengths == outputs
    assert work.arrivals_s == pytest.approx(times, abs=1e-6)
    assert work.source == str(tmp_path / name)
    assert ("burst.csv: 1 request without tokens in or out left out" in work.notices) == (kind == "burstgpt")
    assert trace(tiny, requests=1, **MANY, path=tmp_path / name).prompts == work.prompts[:1]
    assert trace(tiny, requests=1, **MANY, seed=1, path=tmp_path / name).prompts != work.prompts[:1]


def test_equal_hash_ids_are_equal_tokens_and_hit_the_prefix_cache(tiny: LoadedModel, tmp_path: Path) -> None:
    path = written(tmp_path, "moon.jsonl", MOONCAKE)
    first, second, third = trace(tiny, requests=3, **MANY, path=path).prompts
    assert first[:1024] == second[:1024]
    assert first[1024:1100] != second[1024:1100]
    assert not {tuple(first[i : i + 8]) for i in range(0, 600, 8)} & {tuple(third[i : i + 8]) for i in range(0, 600, 8)}
    one, two = trace(tiny, requests=2, **MANY, path=written(tmp_path, "bailian.jsonl", BAILIAN)).prompts
    assert one[:32] == two[:32]
    assert one[32:40] != two[32:40]

    work = trace(tiny, requests=3, **MANY, path=path, length_scale=1 / 16)  # blocks of 32 tokens
    assert [len(p) for p in work.prompts] == [69, 81, 38]
    engine = Engine(tiny, EngineConfig(runtime="native", pool_blocks=64, prefix_cache=True, max_running=1))
    outputs = engine.generate(work.prompts, [SamplingParams(max_tokens=n) for n in work.output_lengths])
    assert [o.prefix_hit_tokens for o in outputs] == [0, 64, 0]


def test_lines_out_of_order_are_sorted_by_time(tiny: LoadedModel, tmp_path: Path) -> None:
    lines = MOONCAKE.splitlines()
    work = trace(tiny, requests=3, **MANY, path=written(tmp_path, "moon.jsonl", "\n".join([lines[2], lines[0], lines[1]])))
    assert [len(p) for p in work.prompts] == [1100, 1300, 600]
    assert work.arrivals_s == [0, 1.5, 3]


def test_a_date_without_a_zone_is_utc(tiny: LoadedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not of the machine's zone, in which clocks were put forward here: an hour would be missing."""
    content = "TIMESTAMP,ContextTokens,GeneratedTokens\n2024-03-31 01:30:00,9,9\n2024-03-31 03:30:00,9,9\n2024-03-31 03:30:01+00:00,9,9\n"
    path = written(tmp_path, "azure.csv", content)
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    try:
        work = trace(tiny, requests=3, **MANY, path=path)
    finally:
        monkeypatch.delenv("TZ")
        time.tzset()
    assert work.arrivals_s == [0, 7200, 7201]


def test_long_requests_are_cut_and_that_is_told(tiny: LoadedModel, tmp_path: Path) -> None:
    work = trace(tiny, requests=3, ctx=400, output_tokens=50, path=written(tmp_path, "azure.csv", AZURE_2023))
    assert [len(p) for p in work.prompts] == [374, 396, 400]
    assert work.output_lengths == [44, 50, 50]
    assert work.notices == (
        "1 of 3 prompts are longer than ctx=400 and were cut to it",
        "2 of 3 outputs are longer than output_tokens=50 and were cut to it",
    )


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        (
            "a.csv",
            AZURE_2023.replace("396", "many"),
            r"a\.csv, line 3: ContextTokens='many': use a whole number of tokens; correct the line",
        ),
        ("a.csv", AZURE_2023.replace("109", "-9"), r"line 3: GeneratedTokens='-9': use a whole number"),
        ("a.csv", AZURE_2023.replace("2023-11-16 18:15:51", "yesterday"), r"line 4: TIMESTAMP='yesterday.*: use a date and time; correct"),
        ("a.csv", AZURE_2023 + "2023-11-16 18:16:00\r\n", r"line 5: ContextTokens is missing; correct the line, or delete it"),
        ("a.csv", BURSTGPT.replace("118.5", "nan"), r"line 4: Timestamp='nan': use a number of seconds"),
        ("a.csv", "a,b\n1,2\n", r"line 2: no format that is known has the fields a, b: azure has TIMESTAMP.*burstgpt has Timestamp"),
        ("a.csv", "TIMESTAMP,ContextTokens,GeneratedTokens\n", "it has no request"),
        ("a.jsonl", MOONCAKE.replace("1500", "true"), r"a\.jsonl, line 2: timestamp='True': use milliseconds"),
        ("a.jsonl", MOONCAKE.replace("1300", "13.5"), r"line 2: input_length='13\.5': use a whole number"),
        ("a.jsonl", MOONCAKE.replace("[11, 12]", '["x"]'), r"line 3: hash_ids=\['x'\]: use a list of whole numbers"),
        ("a.jsonl", MOONCAKE + "\n{oops", r"line 4: not JSON \(.*at column 2\); correct the line, or delete it"),
        ("a.jsonl", MOONCAKE + "\n[1]", "line 4: not a JSON object"),
        ("a.csv", AZURE_2023.replace("396", "9" * 400), r"line 3: ContextTokens='9{40}': use a whole number"),
        ("a.jsonl", MOONCAKE.replace("1500", "1" + "0" * 400), r"line 2: timestamp='10{39}': use milliseconds"),
        ("a.jsonl", MOONCAKE.replace("1500", "1" * 5000), "line 2: not JSON that can be read"),
        ("a.jsonl", '{"prompt": "hello"}', r"line 1: no format that is known has the fields prompt: bailian.*; mooncake has timestamp"),
        ("a.jsonl", MOONCAKE, r"requests=9: .*a\.jsonl has 3 requests with tokens in and out; use requests=3 or fewer"),
    ],
)
def test_a_malformed_line_names_file_line_field_and_mend(tiny: LoadedModel, tmp_path: Path, name: str, content: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        trace(tiny, requests=9, **MANY, path=written(tmp_path, name, content))


@pytest.mark.parametrize(
    ("file", "requests", "mean_in", "mean_out", "shared"),
    [
        ("azure2023/AzureLLMInferenceTrace_code.csv", 8819, 2048, 27.9, 0),
        ("azure2023/AzureLLMInferenceTrace_conv.csv", 19366, 1155, 211, 0),
        ("mooncake/conversation_trace.jsonl", 12031, 12035, 343, 0.366),
    ],
)
def test_published_traces_have_their_published_figures(file: str, requests: int, mean_in: float, mean_out: float, shared: float) -> None:
    path = DATA / "traces" / file
    if not path.exists():
        pytest.skip(f"there is no {path}; VTOKEN_TEST_DATA names the folder that has traces/")
    _, lines = read_trace(path)
    rows = [r for r in lines if r is not None]
    assert len(rows) == requests
    assert statistics.mean(r.input_tokens for r in rows) == pytest.approx(mean_in, rel=0.001)
    assert statistics.mean(r.output_tokens for r in rows) == pytest.approx(mean_out, rel=0.005)
    ids = [i for r in rows for i in r.hash_ids]
    assert (1 - len(set(ids)) / len(ids) if ids else 0) == pytest.approx(shared, abs=0.001)


# -- ShareGPT -----------------------------------------------------------------------------------------------------------


def talk(*turns: str) -> dict[str, Any]:
    return {"id": "x", "conversations": [{"from": "human" if i % 2 == 0 else "gpt", "value": turn} for i, turn in enumerate(turns)]}


def test_first_turns_of_conversations(tiny: LoadedModel, tmp_path: Path) -> None:
    talks = [
        talk("What is a token?", "A piece of text."),
        talk("Hello", "Hi"),
        talk("alone"),
        talk("x" * 300, "too long"),
        talk("Why so?", "y" * 99),
    ]
    path = written(tmp_path, "talks.json", json.dumps(talks))
    work = sharegpt(tiny, requests=2, ctx=256, output_tokens=40, path=path)
    pairs = sorted(zip((bytes(p).decode() for p in work.prompts), work.output_lengths, strict=True))
    assert pairs == [("What is a token?", 16), ("Why so?", 40)]  # its bytes are the tokens of a model without a tokenizer
    assert any("1 of 2 outputs are longer than output_tokens=40" in n for n in work.notices)
    assert build_workload(str(path), tiny, requests=2, ctx=256, output_tokens=40) == work
    with pytest.raises(ConfigError, match=r"requests=3: .*talks\.json has 2 conversations with 4 to 256 tokens in; use fewer"):
        sharegpt(tiny, requests=3, ctx=256, output_tokens=40, path=path)


def test_halves_of_characters_and_a_byte_order_mark_are_no_obstacle(tiny: LoadedModel, tmp_path: Path) -> None:
    path = written(tmp_path, "talks.json", "\ufeff" + json.dumps([talk("half \ud83d of it", "the \udc00 other")]))
    (prompt,) = sharegpt(tiny, requests=1, ctx=256, output_tokens=40, path=path).prompts
    assert bytes(prompt).decode() == "half \ufffd of it"


def test_a_published_sample_of_conversations(tiny: LoadedModel) -> None:
    path = DATA / "chat" / "dummy_conversation_sharegpt_format.json"
    if not path.exists():
        pytest.skip(f"there is no {path}; VTOKEN_TEST_DATA names the folder that has chat/")
    work = sharegpt(tiny, requests=300, ctx=64, output_tokens=500, path=path)
    assert len(work.prompts) == 300
    assert {bytes(p).decode() for p in work.prompts} >= {"Who are you?"}


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("[1,", r"bad\.json, line 1: not JSON"),
        ('{"conversations": []}', "ShareGPT's format is a JSON list of conversations, this is dict"),
        (json.dumps([talk("a", "b"), {"items": []}]), "entry 2: conversations is missing; each entry wants"),
        ('[{"conversations": [{"from": "human"}, {"value": "x"}]}]', r"entry 1: conversations\[0\]\.value is not text"),
    ],
)
def test_a_malformed_conversation_is_named(tiny: LoadedModel, tmp_path: Path, content: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        sharegpt(tiny, requests=1, ctx=256, output_tokens=40, path=written(tmp_path, "bad.json", content))


def test_what_is_text_has_continuations() -> None:
    assert [is_text(w) for w in ("text", "book.txt", "book", "synthetic", "a.csv", "a.JSONL", "a.json")] == [True] * 3 + [False] * 4


# -- arrivals -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("burstiness", "variation"), [(0.25, 2.0), (1.0, 1.0), (4.0, 0.5)])
def test_arrivals_keep_the_rate_and_come_in_bursts(burstiness: float, variation: float) -> None:
    """The gaps' coefficient of variation is burstiness ** -0.5, as that of a gamma distribution."""
    times = gamma_arrivals(4000, 8.0, burstiness, seed=2)
    gaps = np.diff([0.0, *times])
    assert times[-1] == pytest.approx(4000 / 8.0)
    assert min(gaps) >= 0
    assert gaps.std() / gaps.mean() == pytest.approx(variation, rel=0.1)
    assert gamma_arrivals(4000, 8.0, burstiness, seed=2) == times
    assert gamma_arrivals(4000, 8.0, burstiness, seed=3) != times


def test_a_trace_is_stretched_to_a_rate() -> None:
    assert stretched([5, 6, 9], None) == [0, 1, 4]
    assert stretched([5, 6, 9], 4.0) == [0, 0.125, 0.5]
    with pytest.raises(ConfigError, match="request_rate=4: the trace's 2 requests all come at once"):
        stretched([5, 5], 4)
    with pytest.raises(ConfigError, match="burstiness=0: use a number above 0"):
        gamma_arrivals(3, 1.0, 0)
