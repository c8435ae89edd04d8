"""Sends a workload's requests to an engine and follows them, as `vllm bench serve` does: open loop by arrival, or closed loop."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

from vtoken_sdk.runtime import Engine, RequestOutput, SamplingParams, StepRecord
from vtoken_sdk.workloads import Workload

WARM_TOKENS = 34  # twice past a due eviction at its usual interval


class Client:
    """One run of a workload.

    max_concurrency: so many requests are out at once; the next in line is sent when one ends, and its time counts from there, as vllm's
    does. None: each is out from its arrival, and its time counts from that, however late the engine could take it in. step_ms: arrivals
    by the count of steps, each so many milliseconds; idle time is skipped.
    """

    def __init__(
        self,
        engine: Engine,
        workload: Workload,
        params: Sequence[SamplingParams],
        *,
        max_concurrency: int | None = None,
        step_ms: float | None = None,
    ) -> None:
        self.engine, self.workload, self.params = engine, workload, params
        self.most = max_concurrency or len(workload.prompts)
        self.closed, self.step_ms = max_concurrency is not None, step_ms
        self.arrivals = workload.arrivals_s or [0.0] * len(workload.prompts)
        self.names: list[str] = []
        self.queued_s: list[float] = []
        self.began_s = 0.0
        self._began = time.perf_counter()
        self._ahead = 0.0  # seconds that the arrivals' clock is ahead of the steps'
        self._steps = 0
        self._out: list[RequestOutput] = []

    @property
    def outputs(self) -> list[RequestOutput]:
        """Of the requests sent so far, in the workload's order."""
        return [self.engine.outputs[name] for name in self.names]

    def warm_up(self, requests: int) -> None:
        """Run so many of the workload's requests for a few tokens, apart from the others, so that kernels are compiled and graphs captured
        before the clock starts. Their prompts are reversed, so that no prefix of theirs is found later.
        """
        turned = [prompt if self.engine.reads_future else prompt[::-1] for prompt in self.workload.prompts[:requests]]
        names = [self.engine.add_request(prompt, params) for prompt, params in zip(turned, self.params, strict=False)]
        while open_names := [n for n in names if self.engine.outputs[n].finish_reason is None]:
            for name in open_names:
                if len(self.engine.outputs[name].token_ids) >= WARM_TOKENS:
                    self.engine.abort(name)
            self.engine.step()
        for _ in self.engine.run():
            pass
        self.engine.concurrency_peak = 0

    def run(self) -> Iterator[StepRecord]:
        """Until the last request has ended. Raises RequestRejected. `began_s` and `queued_s` are the engine's seconds at the start, and how
        long each request waited for its turn after its arrival."""
        self._began = time.perf_counter()
        while len(self.names) < len(self.arrivals) or self.engine.has_work:
            self._send_due()
            if self.engine.has_work:
                yield from self.engine.step()
                self._steps += 1
                self._out = [output for output in self._out if output.finish_reason is None]
            elif len(self.names) < len(self.arrivals):
                self._wait()

    def _now(self) -> float:
        """Seconds since the start, on the clock of the arrivals."""
        if self.step_ms is not None:
            return self._steps * self.step_ms / 1e3 + self._ahead
        return time.perf_counter() - self._began

    def _send_due(self) -> None:
        now = self._now()
        while len(self.names) < len(self.arrivals) and len(self._out) < self.most and self.arrivals[len(self.names)] <= now:
            self._send(len(self.names))

    def _send(self, number: int) -> None:
        engine = self.engine
        sent = time.perf_counter() - self._began
        name = engine.add_request(self.workload.prompts[number], self.params[number])
        output = engine.outputs[name]
        if not self.names:
            self.began_s = output.arrival_s - sent
        late = self._now() - self.arrivals[number] if self.step_ms is not None else sent - self.arrivals[number]
        if not self.closed and self.step_ms is None:
            output.arrival_s = self.began_s + self.arrivals[number]
        self.names.append(name)
        self.queued_s.append(late)
        self._out.append(output)

    def _wait(self) -> None:
        """Nothing to do until the next arrival."""
        left = self.arrivals[len(self.names)] - self._now()
        if self.step_ms is not None:
            self._ahead += left
        elif left > 0:
            time.sleep(left)
