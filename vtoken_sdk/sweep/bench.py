"""The result of a job under the keys of `vllm bench serve --save-result --save-detailed`, so that tools that read those read ours."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from vtoken_sdk.metrics import PERCENTILES
from vtoken_sdk.runtime import RequestOutput

from .client import Client
from .job import Job

GOODPUT = ("ttft", "tpot", "e2el")


def bench_result(job: Job, client: Client, *, model: str, weights: str, device: str) -> dict[str, Any]:
    """Seconds, milliseconds where a key says so. `timing` says what the times are worth. `duration` is from the start to the last token;
    `queue_times` are a closed loop's seconds from a request's arrival to its sending, which its latencies do not contain."""
    outputs = client.outputs
    done = [o for o in outputs if o.token_times_s and o.error is None]
    duration = max((o.token_times_s[-1] for o in done), default=client.began_s) - client.began_s
    ttfts = [o.token_times_s[0] - o.arrival_s for o in done]
    itls = [np.diff(o.token_times_s).tolist() for o in done]
    e2els = [o.token_times_s[-1] - o.arrival_s for o in done]
    tpots = [float(np.mean(gaps)) for gaps in itls if gaps]
    n_in, n_out = sum(o.prompt_tokens for o in done), sum(len(o.token_ids) for o in done)
    goodput = {name: limit for name in GOODPUT if (limit := getattr(job, f"goodput_{name}")) is not None}
    good = good_requests(ttfts, itls, e2els, goodput)
    result: dict[str, Any] = {
        "date": time.strftime("%Y%m%d-%H%M%S"),
        "endpoint_type": "vtoken-sdk",
        "label": job.label,
        "model_id": model,
        "num_prompts": job.requests,
        "request_rate": job.request_rate if job.request_rate is not None else "inf" if job.arrivals == "rate" else "trace",
        "burstiness": job.burstiness if job.burstiness is not None else 1.0,
        "max_concurrency": job.max_concurrency,
        "timing": timing(device, weights, job.step_ms),
        "duration": duration,
        "completed": len(done),
        "failed": len(outputs) - len(done),
        "total_input_tokens": n_in,
        "total_output_tokens": n_out,
        "request_throughput": _rate(len(done), duration),
        "request_goodput": _rate(good, duration) if goodput else None,
        "goodput": goodput or None,
        "output_throughput": _rate(n_out, duration),
        "total_token_throughput": _rate(n_in + n_out, duration),
        "max_concurrent_requests": peak_concurrency(done),
    }
    for name, values in (("ttft", ttfts), ("tpot", tpots), ("itl", [gap for gaps in itls for gap in gaps]), ("e2el", e2els)):
        result |= summary(name, values)
    return result | {
        "input_lens": [o.prompt_tokens for o in done],
        "output_lens": [len(o.token_ids) for o in done],
        "start_times": [o.arrival_s - client.began_s for o in done],
        "ttfts": ttfts,
        "itls": itls,
        "latencies": e2els,
        "queue_times": client.queued_s if client.closed else [0.0] * len(done),
        "errors": [o.error or "" for o in outputs],
    }


def timing(device: str, weights: str, step_ms: float | None) -> str:
    """What the times of a run may be used for, in a line."""
    said = ["measured on a GPU" if device == "cuda" else "CPU times: they compare the runtimes of one sweep on one machine, nothing else"]
    if weights == "dummy":
        said.append("dummy weights")
    if step_ms is not None:
        said.append(f"arrivals by the count of steps, {step_ms:g} ms each: no rate in real time")
    return "; ".join(said)


def good_requests(ttfts: Sequence[float], itls: Sequence[Sequence[float]], e2els: Sequence[float], limits_ms: dict[str, float]) -> int:
    """Requests within every limit; a request of one token has no TPOT and is within any."""
    tpots = [float(np.mean(gaps)) if gaps else 0.0 for gaps in itls]
    values = {"ttft": ttfts, "tpot": tpots, "e2el": e2els}
    return sum(all(values[name][i] * 1e3 <= limit for name, limit in limits_ms.items()) for i in range(len(ttfts)))


def summary(name: str, values_s: Sequence[float]) -> dict[str, float | None]:
    """mean_, median_, std_ and pNN_<name>_ms; None where there are no values."""
    if not values_s:
        return dict.fromkeys([*(f"{key}_{name}_ms" for key in ("mean", "median", "std")), *(f"p{p}_{name}_ms" for p in PERCENTILES)])
    ms = np.asarray(values_s) * 1e3
    figures = {f"mean_{name}_ms": ms.mean(), f"median_{name}_ms": np.median(ms), f"std_{name}_ms": ms.std()}
    figures |= {f"p{p}_{name}_ms": np.percentile(ms, p) for p in PERCENTILES}
    return {key: float(value) for key, value in figures.items()}


def peak_concurrency(outputs: Sequence[RequestOutput]) -> int:
    """The most requests between their arrival and their last token at once."""
    events = sorted([(o.arrival_s, 1) for o in outputs] + [(o.token_times_s[-1], -1) for o in outputs])
    return max(np.cumsum([change for _, change in events]).tolist(), default=0)


def _rate(count: int, seconds: float) -> float | None:
    return count / seconds if seconds > 0 else None
