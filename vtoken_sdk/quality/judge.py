"""Items under eviction against the full cache: one score an item."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch

from vtoken_sdk.runtime import RequestOutput, SamplingParams, look_ahead

from .compare import QualityError, compare, nll_and_best
from .encoder import Encoder
from .full_cache import FullCache, Truth
from .item import Item, Score

if TYPE_CHECKING:
    from vtoken_sdk.runtime import Engine
    from vtoken_sdk.runtime.model_loader import LoadedModel

LOGITS_BYTES = 1 << 30  # of fp32 logits that one batch of requests keeps until it is done

Progress = Callable[[int, int], None]


def judge(
    model: LoadedModel,
    engine_factory: Callable[[], Engine],
    items: Sequence[Item],
    full_cache: FullCache | None = None,
    progress: Progress = lambda done, of: None,
) -> list[Score]:
    """One score an item, in their order; items that the full cache fails are marked and not run.

    full_cache: to share its answers between calls. progress: called with items done, and their number. Raises QualityError where the
    engine gave up on an item.
    """
    full_cache = full_cache or FullCache(model)
    before = [_before(model, full_cache, item) for item in items]
    scores = [score for _, score in before]
    todo = [n for n, score in enumerate(scores) if not score.dropped]
    progress(len(items) - len(todo), len(items))
    engine: Engine | None = None
    done = len(items) - len(todo)
    for batch in _batches(todo, items, 4 * model.vocab_size):
        engine = engine or engine_factory()
        outputs = _run(model, engine, [items[n] for n in batch])
        for n, (forced, free) in zip(batch, outputs, strict=True):
            scores[n] = _after(model, items[n], before[n][0], scores[n], forced, free)
        done += len(batch)
        progress(done, len(items))
    return scores


def _before(model: LoadedModel, full_cache: FullCache, item: Item) -> tuple[Truth, Score]:
    """What the full cache says of the item, and whether it is worth asking others."""
    truth = full_cache.truth(item.prompt, item.forced, item.answer, keep_logits=item.suite == "continuation")
    found = truth.best.tolist() == item.wanted
    score_full = None
    if item.task is not None:
        written = full_cache.write([*item.prompt, *item.forced[: item.answer]], item.task.max_tokens)
        score_full = item.task.score(Encoder(model, "answers").text(written))
    score = Score(
        suite=item.suite,
        item=item.name,
        seed=item.seed,
        prompt_tokens=len(item.prompt),
        judged=len(item.wanted),
        nll_full=float(truth.nll.mean()),
        found_full=found,
        dropped=(item.must_find and not found) or score_full == 0,
        metric=item.task.metric if item.task is not None else None,
        score_full=score_full,
        **_facts(item),
    )
    return truth, score


def _facts(item: Item) -> dict[str, Any]:
    return dict(item.facts)


def _batches(todo: Sequence[int], items: Sequence[Item], bytes_a_token: int) -> Iterator[list[int]]:
    """Items whose logits fit into memory together, one at least."""
    batch: list[int] = []
    held = 0
    for n in todo:
        size = len(items[n].forced) * bytes_a_token
        if batch and held + size > LOGITS_BYTES:
            yield batch
            batch, held = [], 0
        batch.append(n)
        held += size
    if batch:
        yield batch


def _run(model: LoadedModel, engine: Engine, items: Sequence[Item]) -> list[tuple[RequestOutput, RequestOutput | None]]:
    """Each item forced; and written freely, where it has a task and the question is in its prompt.

    A policy that reads the future gets the full cache's, which is not that of a text of its own: it writes nothing.
    """
    forced = [SamplingParams(forced=tuple(item.forced), logits=True, seed=item.request_seed) for item in items]
    prompts = [item.prompt for item in items]
    if engine.reads_future:
        forced = look_ahead(model, engine.config, prompts, forced)
    writing = [item for item in items if item.task is not None and not item.answer and not engine.reads_future]
    free = [SamplingParams(max_tokens=item.task.max_tokens, seed=item.request_seed) for item in writing if item.task is not None]
    outputs = engine.generate([*prompts, *(item.prompt for item in writing)], [*forced, *free])
    written = dict(zip((item.name for item in writing), outputs[len(items) :], strict=True))
    pairs = [(output, written.get(item.name) if item.task is not None else None) for item, output in zip(items, outputs, strict=False)]
    for output in outputs:
        del engine.outputs[output.request_id]  # with its logits
    return pairs


def _after(model: LoadedModel, item: Item, truth: Truth, score: Score, forced: RequestOutput, free: RequestOutput | None) -> Score:
    name = f"{item.suite} item {item.name}"
    if forced.logits is None or len(forced.logits) != len(item.forced):
        raise QualityError(f"{name}: {_ended(forced)} of {len(item.forced)} tokens")
    if free is not None and free.finish_reason not in ("stop", "length"):
        raise QualityError(f"{name}, written freely: {_ended(free)}")
    logits, wanted = forced.logits[item.answer :].cpu(), torch.tensor(item.wanted)
    try:
        nll, best = nll_and_best(logits, wanted)
        kl = float(compare(truth.logits, logits, wanted)[2].mean()) if truth.logits is not None else None
    except ValueError as error:
        raise QualityError(f"{name}: {error}") from error
    return dataclasses.replace(
        score,
        nll=float(nll.mean()),
        kl=kl,
        top1=float((best == truth.best).double().mean()),
        found=best.tolist() == item.wanted,
        score=item.task.score(Encoder(model, "answers").text(free.token_ids)) if item.task is not None and free is not None else None,
    )


def _ended(output: RequestOutput) -> str:
    return f"the engine ended after {len(output.token_ids)} tokens ({output.finish_reason}{': ' + output.error if output.error else ''})"
