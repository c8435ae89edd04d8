"""One job, in its own process: from jobs/<job>/config.yaml to result.json and steps.parquet."""

from __future__ import annotations

import hashlib
import json
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, cast

import torch
import yaml  # type: ignore[import-untyped]

from vtoken_sdk.metrics import Row, latency_row, step_row
from vtoken_sdk.paper import ADMITS
from vtoken_sdk.quality import FolderShelf, FullCache, Item, Score, judge, summary
from vtoken_sdk.registry import load_policy, policy_source
from vtoken_sdk.runtime import Engine, EngineConfig, RequestOutput, SamplingParams, StepRecord, look_ahead
from vtoken_sdk.runtime.model_loader import load_model
from vtoken_sdk.tracking.files import JobFolder, read_json, write_json, write_parquet
from vtoken_sdk.workloads import Workload, sha256_of

from .bench import bench_result
from .client import Client
from .job import Job
from .load import job_workload
from .provenance import of_model
from .quality import FULL_CACHE, quality_items

if TYPE_CHECKING:
    from vtoken_sdk.runtime.model_loader import LoadedModel

# Steps between two looks at how full blocks are, which wait for the device. Primes: out of step with evictions every 16 steps, say.
SAMPLE_EVERY = {"cpu": 17, "cuda": 257}
SERVING = 0.5  # share of a job's work that is the workload's where quality is judged too, for the estimate of the time left
SAY_EVERY = 0.3  # seconds between two notes of progress


class JobFailed(Exception):
    """The job's result is not to be used. The message is for the user: no trace of ours says more."""


def run_job(folder: Path) -> str | None:
    """None, or why the job failed; error.txt has the trace."""
    job = JobFolder(folder)
    try:
        _run(job)
    except JobFailed as error:
        reason, trace = str(error).partition("\n")[0], str(error)
    except (Exception, SystemExit) as error:  # a failed job is a row of the results, whatever failed; with in_process, an exit too
        reason, trace = f"{type(error).__name__}: {error}".partition("\n")[0], traceback.format_exc()
    else:
        return None
    job.fail(reason, trace)
    return reason


def _run(folder: JobFolder) -> None:
    began = time.perf_counter()
    torch.set_default_dtype(torch.float32)  # in_process: whatever the policy of the job before set
    torch.set_default_device(None)
    folder.say("running", phase="model", share=0.0)
    job = Job.from_config(yaml.load((folder.path / "config.yaml").read_bytes(), yaml.CSafeLoader))  # a tenth of OmegaConf's time
    model = load_model(job.model, weights=cast(Any, job.weights), dtype=cast(Any, job.dtype), device=cast(Any, job.device))
    policy = load_policy(job.policy, job.option) if job.policy is not None else None
    source = policy_source(type(policy)) if policy is not None else None
    if source is not None and source[1] != job.policy_sha256:
        raise JobFailed(f"{source[0]} was changed after the sweep was planned; run the command again")
    config = job.engine_config()
    engine = Engine(model, config, policy)
    workload = job_workload(model, job)
    workload_sha256 = sha256_of(workload.source) if workload.source else None  # before a policy's code may change the current folder
    if job.workload_sha256 not in (None, workload_sha256):
        raise JobFailed(f"{workload.source} was changed after the sweep was planned; run the command again")
    items, _ = quality_items(model, job)
    records, occupied, client = serve(engine, job, workload, folder, SERVING if items else 1.0)
    outputs = client.outputs
    bench = bench_result(job, client, model=model.name, weights=model.weights, device=model.device.type)
    row: Row = {
        "weights": model.weights,
        "dtype": str(model.dtype).removeprefix("torch."),
        "device": model.device.type,
        "block_size": config.slots_per_block,
        "budget_tokens": config.budget_of(job.ctx) if policy is not None else None,
        "prompt_tokens": sum(o.prompt_tokens for o in outputs),
        "output_tokens": sum(len(o.token_ids) for o in outputs),
        "concurrency_peak": engine.concurrency_peak,
        **{name: engine.admits(job.ctx, job.output_tokens, blocks) for name, blocks in ADMITS.items()},
        "kept": kept(config, outputs) if policy is not None else None,
        "cut_short": sum(o.finish_reason == "capacity" for o in outputs),
        **step_row(records, evicts=policy is not None, compacts=config.compacts),
        **latency_row(outputs),
        "request_throughput": bench["request_throughput"],
        "request_goodput": bench["request_goodput"],
        "tokens_sha256": _digest([o.token_ids for o in outputs]),
        "victims_sha256": _digest([[[e.length, e.ids] for e in o.evictions] for o in outputs]) if policy is not None else None,
        "seconds": time.perf_counter() - began,
    }
    del engine
    row |= judged(model, items, lambda: Engine(model, config, policy), folder)
    write_parquet(folder.path / "steps.parquet", steps_table(records, occupied))
    write_json(folder.path / "bench.json", bench)
    write_json(
        folder.path / "result.json",
        {
            "row": row,
            "label": job.label,
            "config": {key.replace(".", "_"): value for key, value in job.flat().items()},
            "provenance": {
                **read_json(folder.path.parent.parent / "plan.json").get("provenance", {}),
                **of_model(model),
                "policy_source": source[0] if source else None,
                "policy_sha256": job.policy_sha256,
                "workload_source": workload.source,
                "workload_sha256": workload_sha256,
            },
        },
    )
    folder.say("done", seconds=time.perf_counter() - began)


def judged(model: LoadedModel, items: Sequence[Item], engine_factory: Callable[[], Engine], folder: JobFolder) -> Row:
    """Run the quality suites: their columns of the row, and quality.parquet with a row an item. {} where nothing is judged."""
    if not items:
        return {}
    full_cache = FullCache(model, FolderShelf(folder.path.parent.parent / FULL_CACHE))

    def say(done: int, of: int) -> None:
        folder.say("running", phase=f"quality {done}/{of}", share=SERVING + (1 - SERVING) * done / of)

    say(0, len(items))
    scores = judge(model, engine_factory, items, full_cache, say)
    write_parquet(folder.path / "quality.parquet", scores_table(scores))
    return summary(scores)


def serve(
    engine: Engine, job: Job, workload: Workload, folder: JobFolder, share: float
) -> tuple[list[StepRecord], dict[int, list[int]], Client]:
    """Run the workload to its end. share: of the job's whole work. Raises JobFailed if a request ended in an error."""
    params = [SamplingParams(max_tokens=n, ignore_eos=True) for n in workload.output_lengths]
    if engine.reads_future:
        folder.say("running", phase="full cache", share=0.0)
        params = look_ahead(engine.model, engine.config, workload.prompts, params)
    longest = max(len(prompt) + n for prompt, n in zip(workload.prompts, workload.output_lengths, strict=True))
    engine.warm_up(longest, min(len(params), job.max_running))
    client = Client(engine, workload, params, max_concurrency=job.max_concurrency, step_ms=job.step_ms)
    if job.num_warmups:
        folder.say("running", phase="warm-up", share=0.0)
        client.warm_up(job.num_warmups)
    prompt_left, output_left = workload.prompt_tokens, sum(workload.output_lengths)
    prefilled, decoded, said = 0, 0, 0.0
    records = []
    occupied: dict[int, list[int]] = {}
    every = SAMPLE_EVERY[engine.model.device.type]
    for record in client.run():
        records.append(record)
        if record.step % every == 0:
            occupied[engine.steps - 1] = engine.occupancy()
        prefilled, decoded = prefilled + record.prefill_tokens, decoded + record.decode_tokens
        if time.perf_counter() - said > SAY_EVERY:
            said = time.perf_counter()
            folder.say("running", phase="engine", share=share * min(1.0, (prefilled / prompt_left + decoded / output_left) / 2))
    engine.check()
    errors = [o.error for o in client.outputs if o.error is not None]
    if errors:
        raise JobFailed("\n".join(errors))
    return records, occupied, client


def kept(config: EngineConfig, outputs: Sequence[RequestOutput]) -> float | None:
    """Live tokens after a request's last eviction (its prompt, if nothing was evicted) against its budget, mean over the requests.

    Requests of one token are left out: none of their steps comes after an eviction. None if there are no others.
    """
    shares = []
    for output in outputs:
        if len(output.token_ids) < 2:
            continue
        length = output.evictions[-1].length if output.evictions else output.prompt_tokens
        live = length - sum(len(e.ids) for e in output.evictions)
        shares.append(live / config.budget_of(output.prompt_tokens))
    return fmean(shares) if shares else None


def steps_table(records: Sequence[StepRecord], occupied: Mapping[int, Sequence[int]]) -> Any:
    """One row a step, as StepRecord.as_row has it; in some steps how many held blocks have 0, 1, ... live tokens."""
    import pyarrow as pa

    return pa.Table.from_pylist([{**r.as_row(), "occupancy": occupied.get(r.step)} for r in records])


def scores_table(scores: Sequence[Score]) -> Any:
    """One row an item of the quality suites."""
    import pyarrow as pa

    return pa.Table.from_pylist([asdict(score) for score in scores])


def _digest(value: object) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()[:16]
