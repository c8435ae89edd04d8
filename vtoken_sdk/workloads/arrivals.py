"""When requests arrive: at a rate, evenly or in bursts, or as a trace's own times, stretched."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from vtoken_sdk.runtime.config import ConfigError

STREAM = 0x41  # of the seed, so that arrivals and token ids do not share their draws


def gamma_arrivals(requests: int, request_rate: float, burstiness: float = 1.0, seed: int = 0) -> list[float]:
    """Seconds from the start, ascending, as `vllm bench serve --request-rate --burstiness` draws them.

    Gaps are gamma distributed with shape `burstiness` and mean 1 / request_rate: 1 is a Poisson process, below 1 comes in bursts (the
    gaps' coefficient of variation is burstiness ** -0.5), above 1 is more even. Then all are stretched a little so that the last of n
    requests comes at n / request_rate, whatever the seed. Raises ConfigError.
    """
    for key, value in (("request_rate", request_rate), ("burstiness", burstiness)):
        if not 0 < value < float("inf"):
            raise ConfigError(f"{key}={value}: use a number above 0")
    gaps = np.random.default_rng([seed, STREAM]).gamma(burstiness, 1 / (request_rate * burstiness), requests)
    times = np.cumsum(gaps)
    if times[-1] > 0:  # a burstiness near 0 makes gaps that no float can tell from 0
        times *= requests / request_rate / times[-1]
    return [float(time) for time in times]


def stretched(times_s: Sequence[float], request_rate: float | None) -> list[float]:
    """A trace's times so that the requests come at request_rate on average; None leaves them. The first comes at 0. Raises ConfigError."""
    first, span = times_s[0], times_s[-1] - times_s[0]
    if request_rate is None:
        return [time - first for time in times_s]
    if span == 0:
        raise ConfigError(
            f"request_rate={request_rate}: the trace's {len(times_s)} requests all come at once; use more of them, or arrivals=rate"
        )
    factor = (len(times_s) - 1) / request_rate / span
    return [(time - first) * factor for time in times_s]
