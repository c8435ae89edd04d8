"""The check that runs a real engine: the tiny model, every step audited, under two runtimes and with preemption."""

from __future__ import annotations

import functools
import random
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from vtoken_sdk.policy import EvictionPolicy, PolicyError

from .factory import PolicyFactory, make_policy
from .faults import CheckFailed

if TYPE_CHECKING:
    from vtoken_sdk.runtime import Eviction, RequestOutput
    from vtoken_sdk.runtime.config import RuntimeName
    from vtoken_sdk.runtime.model_loader import LoadedModel

TOLERANCE = 1e-3  # of logits in fp32: two right ways to sum differ by 1e-5, faults by 0.1 and more
LENGTHS, NEW = (14, 46), 20
ROOMY, TIGHT = 64, 6  # blocks of 16 tokens; in the smaller pool, under naive, a request has to give way


def check_engine(make: PolicyFactory) -> None:
    """The same victims in an engine, audited.

    The tiny model under vtoken, and under naive with preemption; the logits are those of a dense forward pass without the victims.
    """
    prompts = [_tokens(i, n) for i, n in enumerate(LENGTHS)]
    forced = [_tokens(50 + i, NEW) for i in range(len(prompts))]
    naive = serve(make_policy(make), "naive", TIGHT, prompts, forced)
    vtoken = serve(make_policy(make), "vtoken", ROOMY, prompts, forced)
    for i, (a, b) in enumerate(zip(naive, vtoken, strict=True)):
        if a.evictions != b.evictions:
            raise CheckFailed(
                f"request {i} loses other tokens under naive, in a pool so small that requests are preempted, than under vtoken: "
                f"{_parting(a.evictions, b.evictions)}. The policy answers by something that is not in `cache`, such as the row, or "
                "calls that it counts; the checks of hidden state, batches and preemption look closer."
            )
    for i, (prompt, tokens, output) in enumerate(zip(prompts, forced, vtoken, strict=True)):
        assert output.logits is not None
        off = float((output.logits - _masked_logits(prompt, tokens, output.evictions)).abs().max())
        if not off < TOLERANCE:
            raise CheckFailed(
                f"request {i}: logits differ by {off:.2g} from a dense forward pass in which the evicted tokens are hidden. "
                "That is a fault of the runtime, unless the policy changes keys or values: report it with the policy."
            )


def serve(
    policy: EvictionPolicy, runtime: RuntimeName, pool: int, prompts: Sequence[Sequence[int]], forced: Sequence[Sequence[int]]
) -> list[RequestOutput]:
    """An engine's outputs, teacher-forced, so that all runs are about the same tokens; dead slots hold NaN."""
    from vtoken_sdk.runtime import Engine, EngineConfig, EvictOptions, SamplingParams, look_ahead

    evict = EvictOptions("end", 6)
    config = EngineConfig(runtime, pool_blocks=pool, max_running=2, chunk=32, prefill_tokens=64, budget=0.6, evict=evict, poison=True)
    params = [SamplingParams(forced=tuple(tokens), logits=True, seed=100 + i) for i, tokens in enumerate(forced)]
    if "future" in policy.needs:
        params = look_ahead(_model(), config, prompts, params)
    try:
        engine = Engine(_model(), config, policy)
    except PolicyError as error:
        raise CheckFailed(f"no engine takes it: {error}", cause="check_needs") from error
    names = [engine.add_request(prompt, p) for prompt, p in zip(prompts, params, strict=True)]
    while engine.has_work:
        engine.step()
        try:
            engine.check()
        except AssertionError as error:
            raise CheckFailed(
                f"step {engine.steps} under {runtime}: the books do not balance: {error}. Report it with the policy."
            ) from error
    outputs = [engine.outputs[name] for name in names]
    for output in outputs:
        if output.error is not None:
            raise CheckFailed(f"under {runtime}, with {pool} blocks: {output.error}", cause="check_answer")
    return outputs


@functools.cache
def _model() -> LoadedModel:
    from vtoken_sdk.runtime.model_loader import load_model

    return load_model("tiny", dtype="fp32", device="cpu")


@functools.cache
def _dense_model() -> LoadedModel:
    """The same weights with transformers' own attention."""
    from vtoken_sdk.runtime.model_loader import load_model

    model = load_model("tiny", dtype="fp32", device="cpu")
    model.hf.set_attn_implementation("eager")
    return model


def _masked_logits(prompt: Sequence[int], tokens: Sequence[int], evictions: Iterable[Eviction]) -> Tensor:
    """fp32 [n, V]: one dense forward; queries at positions >= an eviction's length do not see its tokens."""
    sequence = [*prompt, *tokens[:-1]]
    n = len(sequence)
    hidden = torch.ones(n, n, dtype=torch.bool).triu(1)
    for eviction in evictions:
        hidden[eviction.length :, list(eviction.ids)] = True
    mask = torch.zeros(n, n).masked_fill(hidden, torch.finfo(torch.float32).min)[None, None]
    with torch.inference_mode():
        out = _dense_model().hf(torch.tensor([sequence]), attention_mask=mask, position_ids=torch.arange(n)[None], use_cache=False)
    return out.logits[0, len(prompt) - 1 :].float()


def _parting(one: Sequence[Eviction], other: Sequence[Eviction]) -> str:
    for a, b in zip(one, other, strict=False):
        if a != b:
            return f"at length {a.length} {sorted(set(a.ids) - set(b.ids))[:6]}, not {sorted(set(b.ids) - set(a.ids))[:6]}"
    return f"{len(one)} evictions, not {len(other)}"


def _tokens(seed: int, n: int) -> tuple[int, ...]:
    draw = random.Random(seed)
    return tuple(draw.randrange(512) for _ in range(n))  # the tiny model's vocabulary
