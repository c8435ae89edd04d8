"""Which suites are judged, and their items."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from vtoken_sdk.runtime.config import ConfigError
from vtoken_sdk.workloads import Workload, text

from .item import Item, Query
from .longbench import longbench
from .needle import needles

if TYPE_CHECKING:
    from vtoken_sdk.runtime.model_loader import LoadedModel

SMALL = 7e9  # parameters of the smallest model that the papers on eviction judge by


@dataclass(frozen=True)
class Suites:
    """Sizes of the suites; 0 or None leaves one out.

    ctx: tokens of a prompt, the question included. texts, tokens: passages, and tokens judged in each. needles, needles4: items with one
    key and with four. query: "aware" has the question before the eviction at the prompt's end, "agnostic" after it. text: a file for
    passages and fillers, None is the book that ships. data, items, prompts: a LongBench file, how many of its lines (0: all), and the
    file of its prompts.
    """

    ctx: int
    seed: int = 0
    texts: int = 0
    tokens: int = 64
    needles: int = 0
    needles4: int = 0
    query: Query = "aware"
    text: str | None = None
    data: str | None = None
    items: int = 0
    prompts: str | None = None


def build_items(model: LoadedModel, suites: Suites) -> tuple[list[Item], list[str]]:
    """The items, the same for every policy, budget and runtime; and what a user should hear of. Raises ConfigError."""
    items: list[Item] = []
    notices: list[str] = []
    if suites.texts:
        work = text(model, requests=suites.texts, ctx=suites.ctx, output_tokens=suites.tokens, seed=suites.seed, path=suites.text)
        items += continuations(work, suites.seed)
        notices += work.notices
    for number, keys in ((suites.needles, 1), (suites.needles4, 4)):
        if number:
            items += needles(model, items=number, ctx=suites.ctx, seed=suites.seed, keys=keys, query=suites.query, path=suites.text)
    if suites.data is not None:
        found, said = longbench(
            model, suites.data, ctx=suites.ctx, items=suites.items, seed=suites.seed, query=suites.query, prompts=suites.prompts
        )
        items += found
        notices += said
    if longest := max((item.length for item in items if item.length > model.max_positions), default=0):
        raise ConfigError(
            f"ctx={suites.ctx}: an item of the quality suites has {longest} tokens with its question and answer, and {model.name} has "
            f"{model.max_positions} positions; use ctx <= {suites.ctx - longest + model.max_positions}"
        )
    if items and (note := small_model_note(model)):
        notices.append(note)
    return items, notices


def continuations(work: Workload, seed: int = 0) -> list[Item]:
    """The text that really follows each prompt. Raises ConfigError for a workload without it."""
    if work.continuations is None:
        raise ConfigError(f"workload={work.kind}: quality needs the text that follows each prompt; use workload=text")
    pairs = zip(work.prompts, work.continuations, strict=True)
    return [Item("continuation", str(n), prompt, forced, seed=seed) for n, (prompt, forced) in enumerate(pairs)]


def small_model_note(model: LoadedModel) -> str | None:
    """None for a model of the size that papers judge by."""
    parameters = sum(p.numel() for p in model.hf.parameters())
    if parameters >= SMALL:
        return None
    size = f"{parameters / 1e9:.1f} billion" if parameters >= 1e9 else f"{max(1, round(parameters / 1e6))} million"
    return f"quality is judged on {model.name}, of about {size} parameters: a small model does not speak for large ones"
