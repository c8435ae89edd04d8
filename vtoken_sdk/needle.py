"""A fact in a long text, asked for at its end: does it survive eviction?

After the single-key task of RULER (Hsieh et al. 2024, arXiv 2404.06654).

The filler is a book, so that no sentence comes twice. Query-aware: the question is part of the prompt, so a policy that reads attention
or queries sees it before it evicts. Query-agnostic: the prompt ends before the question, which follows as forced tokens.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vtoken_sdk.runtime.config import ConfigError
from vtoken_sdk.workloads import text

if TYPE_CHECKING:
    from vtoken_sdk.runtime.model_loader import LoadedModel

CITIES = (
    *("Lisbon", "Oslo", "Cairo", "Quito", "Hanoi", "Dakar", "Riga", "Lima", "Tunis", "Perth", "Kyoto", "Bergen", "Porto", "Delhi"),
    *("Sofia", "Accra", "Malmo", "Turin", "Leeds", "Osaka", "Havana", "Nairobi", "Warsaw", "Madrid", "Vienna", "Athens", "Dublin"),
)


@dataclass(frozen=True)
class Needle:
    """One item. prompt, forced: token ids; the answer is forced[answer:]. depth: share of the filler before the fact."""

    prompt: list[int]
    forced: list[int]
    answer: int
    depth: float


def needles(model: LoadedModel, *, items: int, ctx: int, seed: int = 0, query_aware: bool = True) -> list[Needle]:
    """Prompts of ctx tokens at most, their facts spread evenly over the depth. Raises ConfigError."""
    if model.tokenizer is None:
        raise ConfigError(f"needles are text, and {model.name} has no tokenizer; use a model with real weights")
    if not 1 <= items <= len(CITIES):
        raise ConfigError(f"items={items}: use a whole number from 1 to {len(CITIES)}")

    def encode(words: str) -> list[int]:
        assert model.tokenizer is not None
        return list(model.tokenizer(words, add_special_tokens=False, verbose=False)["input_ids"])

    draw = random.Random(f"needle/{seed}")
    cities = draw.sample(CITIES, items)
    made: list[Needle] = []
    for number, city in enumerate(cities):
        code = str(draw.randrange(10_000, 100_000))
        fact = encode(f" The secret number of {city} is {code}.")
        question, answer = encode(f"\n\nThe secret number of {city} is"), encode(f" {code}")
        room = ctx - len(fact) - len(question)
        if room < 1:
            raise ConfigError(f"ctx={ctx}: the fact and the question alone need {len(fact) + len(question)} tokens; use a larger ctx")
        filler = text(model, requests=items, ctx=room, output_tokens=1, seed=seed).prompts[number]
        depth = (number + draw.random()) / items
        at = max(1, int(depth * len(filler)))
        context = filler[:at] + fact + filler[at:]
        if query_aware:
            made.append(Needle(context + question, answer, 0, depth))
        else:
            made.append(Needle(context, question + answer, len(question), depth))
    return made
