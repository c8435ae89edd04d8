"""Each experiment at a small size, with its shipped options otherwise; and what its figures mean."""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from rich.console import Console

from tests.sweep.conftest import Sweep
from vtoken_sdk.experiments import EXPERIMENTS, Finding, Range, Run, capacity, load_runs
from vtoken_sdk.metrics import COLUMNS
from vtoken_sdk.paper import CAPACITY, HOOKS, RETAINED_BLOCKS, THROUGHPUT, UTILIZATION
from vtoken_sdk.runtime.capacity import peak_blocks
from vtoken_sdk.runtime.dummy import SHAPES
from vtoken_sdk.sweep.answer import answer, experiment_names
from vtoken_sdk.sweep.axes import axes_of
from vtoken_sdk.sweep.plan import Plan, PolicyFacts, make_plan
from vtoken_sdk.sweep.settings import check_keys, flatten, shipped_text

SMALL = ("ctx=128", "output_tokens=20", "chunk=64", "dir=out")


def run(vtoken_sweep: Sweep, *args: str) -> tuple[dict[str, Any], str]:
    done = vtoken_sweep(*args, *SMALL)
    assert done.code == 0, done
    assert "Experiment: out/experiment.json" in done.out
    told: dict[str, Any] = json.loads(Path("out/experiment.json").read_text())
    assert "Measured on tiny with random weights, cpu; the paper's figures are of 7B to 8B models on a GPU." in told["caveats"]
    assert json.loads(Path("out/plan.json").read_text())["experiment"] == told["experiment"]
    return told, done.out


def only(told: dict[str, Any], metric: str, setting: str) -> dict[str, Any]:
    (found,) = [f for f in told["findings"] if (f["metric"], f["setting"]) == (metric, setting)]
    return dict(found)


def test_memory(vtoken_sweep: Sweep) -> None:
    told, out = run(
        vtoken_sweep, "experiment=memory", "policy=random", "budget=0.5", "runtime=native,naive,vtoken", "requests=2", "pool_blocks=64"
    )
    gain = only(told, "utilization", "vtoken, against naive")
    assert gain["paper"] == [21.7, 21.9]
    assert gain["measured"] > 0
    kept = only(told, "retained blocks", "vtoken, against native")
    assert (kept["paper"], kept["better"]) == ([-72, -27], "lower")
    assert -60 < kept["measured"] < -20  # half the tokens
    naive, vtoken = (only(told, "waste F", name)["measured"] for name in ("naive", "vtoken"))
    assert vtoken < naive
    series = {s["runtime"]: s for s in told["detail"]["series"].values()}
    assert set(series) == {"native", "naive", "vtoken"}
    assert len(series["vtoken"]["waste"]) == len(series["vtoken"]["step"]) <= 200
    assert "+21.7 to +21.9 %" in out


def test_capacity(vtoken_sweep: Sweep) -> None:
    told, _ = run(vtoken_sweep, "experiment=capacity", "runtime=native,vtoken", "requests=3,4", "pool_blocks=32")
    native, vtoken = (only(told, "requests at once", name) for name in ("native", "vtoken"))
    assert native["measured"] == 3  # 10 blocks each, of 32
    assert vtoken["measured"] == 4
    assert native["paper"] is vtoken["paper"] is None  # another pool than the paper's
    gain = only(told, "requests at once", "vtoken, against native")
    assert (gain["paper"], gain["at_least"], gain["verdict"]) == ([1.6, 2.0], True, "open")  # 5 were not tried


def test_throughput(vtoken_sweep: Sweep) -> None:
    told, _ = run(
        vtoken_sweep,
        "experiment=throughput",
        "runtime=native,vtoken",
        "num_prompts=4",
        "pool_blocks=64",
        "request_rate=50,500,inf",
        "step_ms=5",
    )
    assert only(told, "throughput under the limit", "vtoken")["paper"] == [9.9, 37.3]
    assert only(told, "throughput at equal load", "vtoken")["paper"] == [9.9, 37.3]
    assert "native" in only(told, "goodput", "vtoken")["note"]
    points = told["detail"]["points"]
    assert {(p["runtime"], p["request_rate"]) for p in points} == {(r, q) for r in ("native", "vtoken") for q in (50, 500, None)}
    limited = [p["within"] for p in points if p["runtime"] == "native"]
    assert any(limited)  # the limit comes from native itself


def test_overhead(vtoken_sweep: Sweep) -> None:
    told, _ = run(vtoken_sweep, "experiment=overhead", "seed=0,1", "requests=1", "pool_blocks=64")
    for metric in ("gap between tokens, p50", "time a token"):
        hooks = only(told, metric, "vtoken, full, against native")
        assert (hooks["paper"], hooks["better"]) == ([None, 1.0], "lower")
        assert hooks["note"].startswith("2 seeds: ")
        assert "CPU times of one machine; dummy weights" in hooks["note"]
    assert only(told, "planner, a step", "vtoken, h2o")["measured"] > 0
    assert only(told, "bytes moved", "vtoken, h2o")["measured"] > 0
    seeds = {job["job"]: job["seed"] for job in json.loads(Path("out/plan.json").read_text())["jobs"]}
    ran = [seeds[json.loads(line)["job"]] for line in Path("out/jobs.jsonl").read_text().splitlines()]
    assert ran == sorted(ran)  # a machine's drift then meets all that is paired alike


def test_ablation(vtoken_sweep: Sweep) -> None:
    told, _ = run(
        vtoken_sweep,
        "experiment=ablation",
        "policy=random",
        "requests=2",
        "pool_blocks=64",
        "runtime=vtoken",
        "vary=['','threshold=0.25','block_size=64','reclaim.packing=fresh margin=0','reclaim.stream=main']",
    )
    waste = {f["setting"]: f["measured"] for f in told["findings"] if f["metric"] == "waste F"}
    names = [
        "vtoken as shipped",
        "vtoken, threshold=0.25",
        "vtoken, block_size=64",
        "vtoken, margin=0, packing=fresh",
        "vtoken, stream=main",
    ]
    assert set(waste) == set(names)
    assert waste["vtoken as shipped"] == waste["vtoken, stream=main"]  # when copies run changes no victim and no block
    assert waste["vtoken as shipped"] < waste["vtoken, threshold=0.25"]
    assert waste["vtoken as shipped"] < waste["vtoken, block_size=64"]
    sizes = {(j["block_size"], j["pool_blocks"]) for j in json.loads(Path("out/plan.json").read_text())["jobs"]}
    assert sizes == {(16, 64), (64, 16)}  # the pool keeps its memory


def test_quality_of_random_weights_is_not_measured(vtoken_sweep: Sweep) -> None:
    told, _ = run(vtoken_sweep, "experiment=quality", "model=tiny", "policy=h2o", "budget=0.5")
    (found,) = told["findings"]
    assert (found["verdict"], found["measured"]) == ("not measured", None)
    assert "random weights" in found["note"]


def test_a_misspelled_experiment_is_told(vtoken_sweep: Sweep) -> None:
    done = vtoken_sweep("experiment=memroy")
    assert done.code == 2
    assert (
        "experiment=memroy: use one of ablation, capacity, memory, overhead, quality, throughput; did you mean experiment=memory?"
        in done.err
    )


def test_options_of_ones_own_have_a_name_too(vtoken_sweep: Sweep) -> None:
    Path("mine/experiment").mkdir(parents=True)
    Path("mine/experiment/small.yaml").write_text("# @package _global_\nname: mine\nruntime: [native]\nrequests: 1\nmax_running: 1\n")
    done = vtoken_sweep("--config-dir", "mine", "experiment=small", *SMALL)
    assert done.code == 0, done
    told = json.loads(Path("out/plan.json").read_text())
    assert (told["name"], told["experiment"], [j["runtime"] for j in told["jobs"]]) == ("mine", None, ["native"])
    assert not Path("out/experiment.json").exists()


# -- what is shipped ----------------------------------------------------------------------------------------------------


def shipped(name: str, **changed: Any) -> Plan:
    flat = flatten(yaml.safe_load(shipped_text()))
    own = flatten(yaml.safe_load(files("vtoken_sdk.conf").joinpath("experiment", f"{name}.yaml").read_text()))
    check_keys(own)
    axes = axes_of(flat | own | changed)
    return make_plan(axes, {str(policy): PolicyFacts(("recent",), "x.py", "aa") for policy in axes["policy"]})


def test_every_experiment_has_options_and_an_analysis() -> None:
    assert set(experiment_names()) == set(EXPERIMENTS)
    for name in EXPERIMENTS:
        plan = shipped(name)
        assert (plan.experiment, plan.name) == (name, name)
        runtimes = {job.runtime for job in plan.jobs}
        assert "vtoken" in runtimes
        assert ("native" in runtimes) == (name not in ("ablation", "quality"))


@pytest.mark.parametrize(("model", "pool"), [("mistral-7b", 5427), ("llama-3.1-8b", 11519)])
def test_the_papers_shapes_fit_the_shipped_experiments(model: str, pool: int) -> None:
    """Each job's request fits its pool and the model's positions."""
    for name in ("memory", "throughput", "capacity", "overhead", "ablation"):
        for job in shipped(name, model=model, weights="dummy", pool_blocks=pool).jobs:
            config = job.engine_config()
            total = job.ctx + job.output_tokens
            assert peak_blocks(config, job.ctx, total - 1, job.policy is not None) <= config.n_blocks
            assert total <= SHAPES[model]["max_position_embeddings"]


def test_the_papers_figures() -> None:
    """As the project's plan quotes them."""
    assert (Range(21.7, 21.9), Range(-72, -27), Range(9.9, 37.3)) == (UTILIZATION, RETAINED_BLOCKS, THROUGHPUT)
    assert HOOKS.high == 1.0
    assert CAPACITY == {(5427, 16384, 256): (5, 8, "Mistral-7B"), (11519, 16384, 256): (11, 22, "Llama-3.1-8B")}


# -- what figures mean --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("measured", "paper", "better", "verdict"),
    [
        (21.8, Range(21.7, 21.9), "higher", "within"),
        (40.0, Range(21.7, 21.9), "higher", "better"),
        (21.6, Range(21.7, 21.9), "higher", "missed"),
        (-80.0, Range(-72, -27), "lower", "better"),
        (-20.0, Range(-72, -27), "lower", "missed"),
        (-0.5, HOOKS, "lower", "within"),
        (1.2, HOOKS, "lower", "missed"),
        (None, HOOKS, "lower", "not measured"),
        (3.0, None, "higher", "no figure"),
    ],
)
def test_a_miss_is_called_a_miss(measured: float | None, paper: Range | None, better: Any, verdict: str) -> None:
    assert Finding("m", "s", measured, "%", paper, better).verdict == verdict


def test_what_a_short_sweep_did_not_reach_is_open() -> None:
    assert Finding("m", "s", 4, "requests", Range(8, 8), at_least=True).verdict == "open"
    assert Finding("m", "s", 9, "requests", Range(8, 8), at_least=True).verdict == "better"
    assert Finding("m", "s", 4, "requests", at_least=True).shown == ">= 4"


def table(folder: Path, rows: list[dict[str, Any]]) -> Any:
    """Runs with the given figures; each holds 10, 20, 40 slots over three steps, of which the first reads a prompt."""
    full = []
    for number, row in enumerate(rows):
        job = f"job{number}"
        (folder / "jobs" / job).mkdir(parents=True)
        steps = {"step": [0, 1, 2], "slots_held": [16, 32, 64], "prefill_tokens": [9, 0, 0], "waste": [0.9, 0.2, 0.4]}
        steps |= {name: [1.0, 2.0, 4.0] for name in ("utilization", "blocks_held", "blocks_ideal")}
        pq.write_table(pa.table(steps), folder / "jobs" / job / "steps.parquet")
        (folder / "jobs" / job / "bench.json").write_text(json.dumps(row.pop("bench", {"ttfts": [], "itls": [], "duration": 1})))
        full.append(
            dict.fromkeys(COLUMNS) | {"job": job, "status": "done", "policy": None, "device": "cuda", "weights": "real", "seed": 0} | row
        )
    return load_runs(folder, full)


def test_a_prompts_steps_do_not_count_as_settled(tmp_path: Path) -> None:
    (only_run,) = table(tmp_path, [{"runtime": "vtoken"}]).runs
    assert only_run.settled_mean("waste") == pytest.approx(0.3)


def test_unequal_loads_are_told(tmp_path: Path) -> None:
    rows = [{"runtime": "native", "concurrency_peak": 2}, {"runtime": "vtoken", "policy": "h2o", "budget": 0.5, "concurrency_peak": 4}]
    found = {(f.metric, f.setting): f for f in EXPERIMENTS["memory"](table(tmp_path, rows)).findings}
    native, naive = (found["retained blocks", f"vtoken, against {base}"] for base in ("native", "naive"))
    assert native.measured == 0
    assert native.note == "native held 2 requests at once, vtoken 4: use a larger pool_blocks to compare equal loads"
    assert (naive.measured, naive.verdict, naive.note) == (None, "not measured", "nothing to compare with finished")


def test_the_frontier_ends_at_the_first_number_that_does_not_fit(tmp_path: Path) -> None:
    pool = {"pool_blocks": 5427, "pool_block_size": 16, "ctx": 16384, "max_tokens": 256, "model": "tiny"}
    rows = []
    for runtime, peaks in {"native": {4: 4, 5: 5, 6: 5}, "vtoken": {4: 4, 5: 5, 6: 6, 8: 8, 9: 9, 10: 9, 11: 11}}.items():
        policy = {"policy": "h2o", "budget": 0.5} if runtime == "vtoken" else {}
        for n, peak in peaks.items():
            rows.append(
                {**pool, **policy, "runtime": runtime, "requests": n, "concurrency_peak": peak, "preemptions": 2 * (n == 9), "cut_short": 0}
            )
    found = {f.setting: f for f in EXPERIMENTS["capacity"](table(tmp_path, rows)).findings}
    native, vtoken, gain = found["native"], found["vtoken"], found["vtoken, against native"]
    assert (native.measured, native.paper, native.verdict) == (5, Range(5, 5), "within")
    assert (vtoken.measured, vtoken.paper, vtoken.verdict) == (8, Range(8, 8), "within")  # 9 was preempted, so 11 does not count
    assert gain.measured == pytest.approx(1.6)
    assert "pool is that of Mistral-7B" in native.note


def test_throughput_counts_only_loads_within_the_limit(tmp_path: Path) -> None:
    def row(runtime: str, rate: float, tokens: float, p95: float, good: int) -> dict[str, Any]:
        bench = {"duration": 10, "ttfts": [0.1] * 4, "itls": [[0.01]] * good + [[9.0]] * (4 - good)}
        policy = {"policy": "h2o", "budget": 0.5} if runtime == "vtoken" else {}
        figures = {"output_tok_s": tokens, "itl_ms_p95": p95, "ttft_ms_p95": 200.0, "tpot_ms_p95": 20.0}
        return {"runtime": runtime, "request_rate": rate, "requests": 4, **policy, **figures, "bench": bench}

    rows = [row("native", 1, 50, 8.0, 4), row("native", 2, 100, 10.0, 2), row("native", 4, 90, 30.0, 0)]
    rows += [row("vtoken", 1, 50, 9.0, 4), row("vtoken", 2, 120, 10.4, 3), row("vtoken", 4, 200, 10.6, 1)]
    outcome = EXPERIMENTS["throughput"](table(tmp_path, rows))
    gain, equal, goodput = outcome.findings
    assert equal.measured == pytest.approx((200 / 90 - 1) * 100)  # at 4 requests/s, 10.6 ms against native's 30; at 1, 9 ms is over 8.4
    assert "2 of 3 loads within the limit" in equal.note
    assert gain.measured == pytest.approx(20.0)  # 120 against 100; 200 is over 1.05 x 10 ms
    assert gain.verdict == "within"
    assert "limit 10.50 ms" in gain.note
    assert goodput.measured == pytest.approx(0.0)  # 0.4 requests/s each, at the lightest load
    assert [p["within"] for p in outcome.detail["points"]] == [True, True, False, True, True, False]


def test_throughput_lets_a_runtime_read_prompts_in_chunks_of_its_own(tmp_path: Path) -> None:
    def row(runtime: str, chunk: int, tokens: float) -> dict[str, Any]:
        policy = {"policy": "h2o", "budget": 0.5} if runtime == "vtoken" else {}
        return {"runtime": runtime, "chunk": chunk, "requests": 4, **policy, "output_tok_s": tokens, "itl_ms_p95": 8.0}

    other = EXPERIMENTS["throughput"](table(tmp_path / "other", [row("native", 2048, 100), row("vtoken", 1536, 120)])).findings
    assert [f.measured for f in other[:2]] == pytest.approx([20.0, 20.0])
    assert "1536" in other[0].setting
    rows = [row("native", 2048, 100), row("native", 1536, 150), row("vtoken", 1536, 120)]
    same = EXPERIMENTS["throughput"](table(tmp_path / "same", rows)).findings
    assert [f.measured for f in same[:2]] == pytest.approx([-20.0, -20.0])


def test_throughput_compares_the_same_seeds_and_claims_nothing_without_gaps(tmp_path: Path) -> None:
    """Seed 1 of native failed: vtoken's, which is fast there, has nothing to stand beside."""

    def row(runtime: str, seed: int, tokens: float, p95: float | None = 8.0) -> dict[str, Any]:
        policy = {"policy": "h2o", "budget": 0.5} if runtime == "vtoken" else {}
        return {"runtime": runtime, "seed": seed, "requests": 4, **policy, "output_tok_s": tokens, "itl_ms_p95": p95}

    rows = [row("native", 0, 100), row("vtoken", 0, 120), row("vtoken", 1, 300)]
    gain, equal, _ = EXPERIMENTS["throughput"](table(tmp_path / "seeds", rows)).findings
    assert gain.measured == equal.measured == pytest.approx(20.0)
    (gain,) = EXPERIMENTS["throughput"](table(tmp_path / "gaps", [row("native", 0, 100, None), row("vtoken", 0, 120, None)])).findings
    assert (gain.measured, gain.verdict) == (None, "not measured")


def test_an_experiment_that_cannot_be_evaluated_costs_nothing_else(tmp_path: Path) -> None:
    rows = [dict(run.row) for run in table(tmp_path, [{"runtime": "vtoken"}]).runs]
    next(tmp_path.glob("jobs/*/steps.parquet")).unlink()
    (line,), good = answer(Console(), tmp_path, "memory", rows)
    assert not good
    assert line.startswith("Experiment memory could not be evaluated: FileNotFoundError")


def test_overhead_is_a_share_of_natives_time(tmp_path: Path) -> None:
    rows = []
    for seed, (native, hooked) in enumerate([(10.0, 10.05), (10.0, 10.15)]):
        rows.append({"runtime": "native", "seed": seed, "itl_ms_p50": native, "output_tok_s": 1000 / native})
        rows.append({"runtime": "vtoken", "policy": "full", "seed": seed, "itl_ms_p50": hooked, "output_tok_s": 1000 / hooked})
    gap, time = EXPERIMENTS["overhead"](table(tmp_path, rows)).findings
    assert gap.measured == time.measured == pytest.approx(1.0)
    assert gap.note == "2 seeds: ±6.4 (95 %)"


@pytest.mark.parametrize(
    ("fitting", "tried", "frontier"), [((2,), (2, 8), (2, 8)), ((2, 3), (2, 3, 4), (3, 4)), ((2, 4), (2, 4), (4, None)), ((), (3,), (0, 3))]
)
def test_a_frontier_knows_the_first_number_that_does_not_fit(
    fitting: tuple[int, ...], tried: tuple[int, ...], frontier: tuple[int, int | None]
) -> None:
    runs = [Run({"requests": n, "concurrency_peak": n, "preemptions": int(n not in fitting), "cut_short": 0}, Path()) for n in tried]
    assert capacity.frontier(runs) == frontier
