"""Lines of a LongBench file as items: prompt, question, true answer, and how an answer of one's own is scored."""

from __future__ import annotations

import functools
import random
from pathlib import Path
from typing import TYPE_CHECKING

from vtoken_sdk.quality.encoder import Encoder
from vtoken_sdk.quality.item import Item, Query, Task
from vtoken_sdk.runtime.config import ConfigError

from .metrics import best_score, metric_of
from .prompts import LONGEST, LONGEST_OF_OTHERS, Prompts
from .record import Record, read_records

if TYPE_CHECKING:
    from vtoken_sdk.runtime.model_loader import LoadedModel


def longbench(
    model: LoadedModel,
    path: str | Path,
    *,
    ctx: int,
    items: int = 0,
    seed: int = 0,
    query: Query = "aware",
    prompts: str | Path | None = None,
) -> tuple[list[Item], list[str]]:
    """`items` lines of the file, drawn by the seed (0: all), in the file's order; and what a user should hear of. Raises ConfigError."""
    records, templates = read_records(path), Prompts.read(prompts)
    encode = Encoder(model, "LongBench items")
    chosen = list(range(len(records)))
    if 0 < items < len(records):
        chosen = sorted(random.Random(f"longbench/{seed}").sample(chosen, items))
    made, cut = [], 0
    for number in chosen:
        item, was_cut = _item(records[number], templates, encode, ctx, seed, query)
        made.append(item)
        cut += was_cut
    notices = [f"quality.data: {len(made)} of {len(records)} items, with {templates.name} prompts"]
    if templates.name == "generic":
        notices[0] += ": for LongBench's own, set quality.prompts to its config/dataset2prompt.json"
    if cut:
        notices.append(f"quality.data: {cut} of {len(made)} items are longer than ctx={ctx} and lose their middle")
    without = sorted({i.facts["dataset"] for i in made if i.task is None})
    if without:
        notices.append(f"quality.data: answers of {', '.join(map(str, without))} get no score: it needs a segmenter of Chinese words")
    return made, notices


def _item(record: Record, prompts: Prompts, encode: Encoder, ctx: int, seed: int, query: Query) -> tuple[Item, bool]:
    """And whether its middle was cut. Text and question are encoded apart, so that the question may come after the eviction."""
    head, tail = prompts.of(record)
    question = encode(tail) if tail else []
    whole = [*encode.first(head), *question]
    cut = len(whole) > ctx
    if cut:  # as LongBench: the middle goes, since instructions stand at both ends
        half = ctx // 2
        if len(question) >= half:
            raise ConfigError(f'ctx={ctx}: the question of item "{record.id}" alone has {len(question)} tokens; use a larger ctx')
        whole = whole[:half] + whole[-half:]
    longest = LONGEST.get(record.dataset, LONGEST_OF_OTHERS)
    joined = f"{tail or head}"[-1:].isspace() or record.dataset in ("lcc", "repobench-p")
    answer = encode(record.answers[0] if joined else f" {record.answers[0]}")[:longest]
    task = None
    if (metric := metric_of(record.dataset, record.classes)) is not None:
        name, function = metric
        score = functools.partial(best_score, record.dataset, function, answers=record.answers, classes=record.classes)
        task = Task(name, score, longest)
    asked = len(question) if query == "agnostic" else 0
    prompt, late = whole[: len(whole) - asked], whole[len(whole) - asked :]
    facts = {"dataset": record.dataset, "prompt": prompts.name}
    return Item("longbench", record.id, prompt, late + answer, asked, seed, facts=facts, task=task), cut
