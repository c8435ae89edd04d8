"""How long synthetic requests are: shapes relative to ctx, and distributions in tokens that stand for public data.

sharegpt: short chat. `vllm bench serve` on ShareGPT V3 (1,000 prompts) has 215 input and 198 output tokens on average, between 4 and
1,024 input tokens and at most 2,048 in all. Only these figures are measured: lognormal shape and spread are ours, the medians chosen so
that the means come out.

longbench: long prompts, short answers. A task of LongBench's English ones (Bai et al. 2023) by lot, each with its mean of words (its
task.md) at 1.3 tokens a word, and the answers' limits of its dataset2maxlen.json. The spread about a task's mean (lognormal, 0.3) is ours.

reasoning: long answers. Quantiles of the requests to deepseek-r1 in ServeGen (Xiang et al. 2025; data/reason/deepseek-r1 of its public
repository, Apache-2.0, clients weighted by their rates), interpolated, which makes the means some 5 to 15 % longer. Input and output are
drawn apart from each other.
"""

from __future__ import annotations

import bisect
import math
import random
from typing import Literal, get_args

from vtoken_sdk.runtime.config import ConfigError

Lengths = Literal["fixed", "uniform", "lognormal", "sharegpt", "longbench", "reasoning"]
LENGTHS: tuple[str, ...] = get_args(Lengths)

UNIFORM_LOW = 1 / 8  # share of ctx
LOGNORMAL_MEDIAN = 1 / 4  # share of ctx
LOGNORMAL_SIGMA = 0.9  # between those of public chat (0.84) and code (0.98) traces, by their median and 95th percentile

SHAREGPT_MEDIANS = (151, 131)  # tokens in, out, before what the sampler leaves out
SHAREGPT_SIGMAS = (1.2, 0.95)
SHAREGPT_LEAST, SHAREGPT_MOST_IN, SHAREGPT_MOST = 4, 1024, 2048

TOKENS_A_WORD = 1.3
LONGBENCH_SIGMA = 0.3
LONGBENCH: dict[str, tuple[int, int]] = {  # words in, tokens out at most
    "narrativeqa": (18409, 128), "musique": (11214, 32), "passage_count": (11141, 32), "qmsum": (10614, 512),
    "passage_retrieval_en": (9289, 32), "hotpotqa": (9151, 32), "gov_report": (8734, 512), "triviaqa": (8209, 32),
    "samsum": (6258, 128), "trec": (5177, 64), "2wikimqa": (4887, 32), "multifieldqa_en": (4559, 64),
    "repobench-p": (4206, 64), "qasper": (3619, 128), "multi_news": (2113, 512), "lcc": (1235, 64),
}  # fmt: skip

REASONING_SHARES = (0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.975, 0.99, 0.995, 1.0)
REASONING_IN = (4, 18, 41, 208, 482, 2092, 6714, 14144, 23423, 28228, 42238)
REASONING_OUT = (9, 287, 427, 792, 1499, 3432, 5701, 8369, 12607, 15737, 26370)


def draw_lengths(lengths: str, ctx: int, output_tokens: int, rng: random.Random) -> tuple[int, int]:
    """Tokens in and out of one request, before caps. Shapes relative to ctx give output_tokens. Raises ConfigError on an unknown name."""
    if lengths == "fixed":
        return ctx, output_tokens
    if lengths == "uniform":
        return rng.randint(max(1, int(ctx * UNIFORM_LOW)), ctx), output_tokens
    if lengths == "lognormal":
        drawn = rng.lognormvariate(math.log(ctx * LOGNORMAL_MEDIAN), LOGNORMAL_SIGMA)
        return max(1, min(ctx, round(drawn))), output_tokens
    if lengths == "sharegpt":
        return _sharegpt(rng)
    if lengths == "longbench":
        words, most = LONGBENCH[rng.choice(list(LONGBENCH))]
        mean = words * TOKENS_A_WORD
        return round(rng.lognormvariate(math.log(mean) - LONGBENCH_SIGMA**2 / 2, LONGBENCH_SIGMA)), most
    if lengths == "reasoning":
        return _quantile(REASONING_IN, rng.random()), _quantile(REASONING_OUT, rng.random())
    raise ConfigError(f"lengths={lengths!r}: use one of {', '.join(LENGTHS)}")


def _sharegpt(rng: random.Random) -> tuple[int, int]:
    while True:
        tokens_in, tokens_out = (round(rng.lognormvariate(math.log(m), s)) for m, s in zip(SHAREGPT_MEDIANS, SHAREGPT_SIGMAS, strict=True))
        if min(tokens_in, tokens_out) >= SHAREGPT_LEAST and tokens_in <= SHAREGPT_MOST_IN and tokens_in + tokens_out <= SHAREGPT_MOST:
            return tokens_in, tokens_out


def _quantile(values: tuple[int, ...], share: float) -> int:
    """Between quantiles, linearly. values: at REASONING_SHARES."""
    above = bisect.bisect_right(REASONING_SHARES, share)
    low, high = REASONING_SHARES[above - 1], REASONING_SHARES[above]
    return max(1, round(values[above - 1] + (share - low) / (high - low) * (values[above] - values[above - 1])))
