"""How requests reach an engine: open loop by arrival, closed loop, by the clock or by the count of steps; and vllm's figures of it."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from vtoken_sdk.runtime import ConfigError, Engine, EngineConfig, RequestOutput, SamplingParams, StepRecord
from vtoken_sdk.runtime.model_loader import LoadedModel, load_model
from vtoken_sdk.runtime.request import Eviction
from vtoken_sdk.sweep.axes import axes_of
from vtoken_sdk.sweep.bench import bench_result, timing
from vtoken_sdk.sweep.client import Client
from vtoken_sdk.sweep.job import Job
from vtoken_sdk.sweep.load import job_workload
from vtoken_sdk.sweep.run import kept
from vtoken_sdk.sweep.settings import flatten, shipped_text
from vtoken_sdk.sweep.values import UsageError
from vtoken_sdk.workloads import LENGTHS, Workload, gamma_arrivals, synthetic

from .conftest import Sweep, results

TOKENS = 6


@pytest.fixture(scope="module")
def model() -> LoadedModel:
    return load_model("tiny", device="cpu")


def served(model: LoadedModel, arrivals: list[float] | None, requests: int = 5, **options: Any) -> tuple[Client, list[StepRecord]]:
    work: Workload = replace(synthetic(model, requests=requests, ctx=32, output_tokens=TOKENS), arrivals_s=arrivals)
    engine = Engine(model, EngineConfig(runtime="native", pool_blocks=64, chunk=64))
    client = Client(engine, work, [SamplingParams(max_tokens=TOKENS, ignore_eos=True)] * requests, **options)
    records = list(client.run())
    assert [len(o.token_ids) for o in client.outputs] == [TOKENS] * requests
    return client, records


def job(**options: Any) -> Job:
    flat = flatten(yaml.safe_load(shipped_text())) | {"runtime": "native", "requests": 5} | options
    return Job.from_flat({key: values[0] for key, values in axes_of(flat).items()})


def test_all_at_once_without_arrivals(model: LoadedModel) -> None:
    client, records = served(model, None)
    assert records[0].running + records[0].waiting == 5
    assert {o.arrival_s for o in client.outputs} == {client.began_s}


def test_a_closed_loop_keeps_so_many_out_and_counts_time_from_the_sending(model: LoadedModel) -> None:
    client, records = served(model, None, max_concurrency=2)
    assert max(r.running + r.waiting for r in records) == 2
    outputs = client.outputs
    for i in range(2, 5):
        ends = sorted(o.token_times_s[-1] for o in outputs[:i])
        assert outputs[i].arrival_s >= ends[i - 2]  # when the host knew that one had ended
        assert client.queued_s[i] == pytest.approx(outputs[i].arrival_s - client.began_s, abs=1e-3)


def test_an_open_loop_counts_time_from_the_arrival(model: LoadedModel) -> None:
    arrivals = [0.0, 1e-6, 2e-6, 3e-6, 0.05]
    client, _ = served(model, arrivals)
    assert [o.arrival_s - client.began_s for o in client.outputs] == pytest.approx(arrivals)
    assert client.outputs[4].token_times_s[0] - client.began_s > 0.05


def test_arrivals_by_the_count_of_steps_repeat_exactly_and_nobody_waits(model: LoadedModel) -> None:
    arrivals = [0.0, 0.010, 0.025, 1e6, 1e6 + 0.002]
    runs = [served(model, arrivals, step_ms=5.0)[1] for _ in range(2)]
    seen = [[(r.step, r.running + r.waiting, r.live_tokens, r.blocks_held) for r in records] for records in runs]
    assert seen[0] == seen[1]
    assert [n for _, n, _, _ in seen[0][:6]] == [1, 1, 2, 2, 2, 3]  # at step 2, 10 ms; at step 5, 25 ms
    late = [n for _, n, _, _ in seen[0][6:]]
    assert 0 in late or min(late) == 1  # the first three are gone before a million seconds have passed
    assert max(late[late.index(min(late)) :]) == 2


def test_warm_ups_are_in_no_figure(model: LoadedModel) -> None:
    work = synthetic(model, requests=3, ctx=32, output_tokens=36)
    outputs = {}
    for warm in (0, 2):
        engine = Engine(model, EngineConfig(runtime="native", pool_blocks=64, prefix_cache=True))
        client = Client(engine, work, [SamplingParams(max_tokens=36, ignore_eos=True)] * 3, max_concurrency=1)
        client.warm_up(warm)
        began = engine.steps
        records = list(client.run())
        assert (engine.concurrency_peak, len(client.outputs), records[0].step) == (1, 3, began)
        assert [o.prefix_hit_tokens for o in client.outputs] == [0, 0, 0]
        assert client.outputs[0].arrival_s >= client.began_s
        outputs[warm] = [o.token_ids for o in client.outputs]
        assert len(engine.outputs) == 3 + warm
        assert (began > 0) == bool(warm)
        engine.check()
    assert outputs[0] == outputs[2]


def test_the_result_has_vllms_keys_and_definitions(model: LoadedModel) -> None:
    client, _ = served(model, [0.0, 0.001, 0.002, 0.003, 0.004])
    result = bench_result(job(request_rate=1000), client, model="tiny", weights="dummy", device="cpu")
    outputs = client.outputs
    duration = max(o.token_times_s[-1] for o in outputs) - client.began_s
    assert result["duration"] == pytest.approx(duration)
    assert (result["completed"], result["failed"], result["num_prompts"], result["request_rate"]) == (5, 0, 5, 1000)
    assert (result["total_input_tokens"], result["total_output_tokens"]) == (160, 5 * TOKENS)
    assert result["request_throughput"] == pytest.approx(5 / duration)
    assert result["output_throughput"] == pytest.approx(5 * TOKENS / duration)
    assert result["total_token_throughput"] == pytest.approx((160 + 5 * TOKENS) / duration)
    ttft = np.array([o.token_times_s[0] - o.arrival_s for o in outputs]) * 1e3
    tpot = np.array([(o.token_times_s[-1] - o.token_times_s[0]) / (TOKENS - 1) for o in outputs]) * 1e3
    assert result["mean_ttft_ms"] == pytest.approx(ttft.mean())
    assert result["std_ttft_ms"] == pytest.approx(ttft.std())
    assert result["p99_ttft_ms"] == pytest.approx(np.percentile(ttft, 99))
    assert result["median_tpot_ms"] == pytest.approx(np.median(tpot))
    assert result["p95_e2el_ms"] >= result["p50_e2el_ms"] == result["median_e2el_ms"] >= result["median_ttft_ms"]
    assert len(result["itls"]) == 5
    assert result["request_goodput"] is None
    assert 1 <= result["max_concurrent_requests"] <= 5
    assert "CPU times" in result["timing"]
    assert "dummy weights" in result["timing"]
    limited = job(**{"request_rate": "inf", "goodput.ttft": float(np.sort(ttft)[2]), "goodput.tpot": 1e9})
    good = bench_result(limited, client, model="tiny", weights="dummy", device="cpu")
    assert good["request_goodput"] == pytest.approx(3 / duration)
    assert good["goodput"] == {"ttft": float(np.sort(ttft)[2]), "tpot": 1e9}
    assert good["request_rate"] == "inf"


def test_times_are_labelled() -> None:
    assert timing("cuda", "real", None) == "measured on a GPU"
    assert timing("cpu", "dummy", 5.0).endswith("dummy weights; arrivals by the count of steps, 5 ms each: no rate in real time")


def test_requests_of_one_token_say_nothing_of_the_budget() -> None:
    short = RequestOutput("a", 100, token_ids=[1])
    evicted = RequestOutput("b", 100, token_ids=[1, 2], evictions=[Eviction(100, tuple(range(40)))])
    config = EngineConfig(budget=0.5)
    assert kept(config, [short, evicted]) == pytest.approx(60 / 50)
    assert kept(config, [short]) is None


# -- in a sweep ---------------------------------------------------------------------------------------------------------

LINES = [{"timestamp": 400 * i, "input_length": 640 + 160 * i, "output_length": 100, "hash_ids": [0, 10 + i]} for i in range(4)]


def test_a_trace_in_a_sweep(vtoken_sweep: Sweep) -> None:
    Path("moon.jsonl").write_text("\n".join(map(json.dumps, LINES)))
    trace = ("workload=moon.jsonl", "arrivals=trace", "length_scale=0.1", "step_ms=100")
    done = vtoken_sweep(*trace, "ctx=100", "output_tokens=64", "num_prompts=4", "runtime=native", "goodput.ttft=1e6", "dir=out")
    assert done.code == 0, done
    assert "Note: 1 of 4 prompts are longer than ctx=100 and were cut to it" in done.out
    (row,) = results("out")
    assert (row["arrivals"], row["request_rate"], row["length_scale"], row["requests"]) == ("trace", None, 0.1, 4)
    assert (row["prompt_tokens"], row["output_tokens"]) == (64 + 80 + 96 + 100, 40)
    assert row["request_goodput"] == row["request_throughput"] > 0
    bench = json.loads((Path("out/jobs") / row["job"] / "bench.json").read_text())
    assert (bench["request_rate"], bench["goodput"], bench["input_lens"]) == ("trace", {"ttft": 1e6}, [64, 80, 96, 100])
    record = json.loads((Path("out/jobs") / row["job"] / "result.json").read_text())["provenance"]
    assert record["workload_sha256"] == hashlib.sha256(Path("moon.jsonl").read_bytes()).hexdigest()

    Path("moon.jsonl").write_text("\n".join(map(json.dumps, LINES[:2])) + '\n{"timestamp": 1, "input_length": 9}\n')
    broken = vtoken_sweep(*trace, "requests=3", "runtime=native", "dir=broken")
    assert (broken.code, broken.err) == (
        2,
        "vtoken-sweep: workload=moon.jsonl, line 3: output_length is missing; correct the line, or delete it\n",
    )
    assert not Path("broken").exists()


def test_arrivals_of_a_workload_without_times_are_refused(model: LoadedModel) -> None:
    with pytest.raises(
        ConfigError, match="arrivals=trace: workload=synthetic has no times; use arrivals=rate, or the path of a request trace"
    ):
        job_workload(model, job(arrivals="trace", ctx=32))
    bursty = job_workload(model, job(request_rate=2, burstiness=0.5, ctx=32, output_tokens=4))
    assert bursty.arrivals_s == gamma_arrivals(5, 2, 0.5, 0)
    assert job_workload(model, job(request_rate="inf", ctx=32)).arrivals_s is None
    assert [job(lengths=name).lengths for name in LENGTHS] == list(LENGTHS)
    with pytest.raises(UsageError, match="request_rate=0: use a number above 0"):
        job(request_rate=0)
