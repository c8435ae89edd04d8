"""A fact in a long text, asked for at its end: does it survive eviction?

After RULER (Hsieh et al. 2024, arXiv 2404.06654): its wording, the tasks of one key and of several keys of which one is asked for. The
filler is a book, so that no sentence comes twice, and facts stand between its sentences.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import TYPE_CHECKING

from vtoken_sdk.runtime.config import ConfigError
from vtoken_sdk.workloads import text

from .encoder import Encoder
from .item import Item, Query, Suite

if TYPE_CHECKING:
    from vtoken_sdk.runtime.model_loader import LoadedModel

CITIES = (
    *("Lisbon", "Oslo", "Cairo", "Quito", "Hanoi", "Dakar", "Riga", "Lima", "Tunis", "Perth", "Kyoto", "Bergen", "Porto", "Delhi"),
    *("Sofia", "Accra", "Malmo", "Turin", "Leeds", "Osaka", "Havana", "Nairobi", "Warsaw", "Madrid", "Vienna", "Athens", "Dublin"),
)
INTRO = "Some special magic numbers are hidden within the following text. Make sure to memorize it. I will quiz you about the numbers.\n\n"
FACT = " One of the special magic numbers for {key} is: {value}."
QUESTION = (
    "\n\nWhat is the special magic number for {key} mentioned in the provided text? "
    "The special magic number for {key} mentioned in the provided text is"
)
DIGITS = 7
SENTENCE_ENDS = (".", "!", "?", '"', "\u201d")


def needles(
    model: LoadedModel, *, items: int, ctx: int, seed: int = 0, keys: int = 1, query: Query = "aware", path: str | Path | None = None
) -> list[Item]:
    """Items of ctx tokens, question included; the fact asked for lies deeper from item to item, the other keys' facts anywhere.

    query: "aware" has the question inside the prompt, so that a policy sees it before it evicts; "agnostic" after it. path: a UTF-8 file
    to take the filler from; None is the book that ships. Raises ConfigError.
    """
    encode = Encoder(model, "needles")
    if not 1 <= keys <= len(CITIES):
        raise ConfigError(f"keys={keys}: use a whole number from 1 to {len(CITIES)}")
    suite: Suite = "needle" if keys == 1 else "needle4"
    intro = encode.first(INTRO)
    made = []
    for number, window in enumerate(text(model, requests=items, ctx=ctx, output_tokens=1, seed=seed, path=path).prompts):
        draw = random.Random(f"{suite}/{seed}/{number}")
        cities = draw.sample(CITIES, keys)
        values = [str(draw.randrange(10 ** (DIGITS - 1), 10**DIGITS)) for _ in cities]
        facts = [encode(FACT.format(key=city, value=value)) for city, value in zip(cities, values, strict=True)]
        depth = (number + draw.random()) / items
        depths = [depth, *(draw.random() for _ in facts[1:])]
        question, answer = encode(QUESTION.format(key=cities[0])), encode(f" {values[0]}")
        room = ctx - len(intro) - len(question) - sum(map(len, facts))
        if room < 1:
            raise ConfigError(f"ctx={ctx}: a needle's facts and question alone need {ctx - room} tokens; use ctx > {ctx - room}")
        filler = window[encode.start_tokens :][:room]
        prompt, forced = intro + hide(facts, depths, filler, encode) + question, answer
        if query == "agnostic":
            prompt, forced = prompt[: -len(question)], question + answer
        asked = len(forced) - len(answer)
        made.append(Item(suite, str(number), prompt, forced, asked, seed, must_find=True, facts={"depth": round(depth, 4)}))
    return made


def hide(facts: list[list[int]], depths: list[float], filler: list[int], encode: Encoder) -> list[int]:
    """The filler with each fact at the first end of a sentence from its depth (0..1) on; where there is none, right there."""
    words = encode.words(filler)
    ends = [i for i in range(1, len(words)) if words[i - 1].endswith(SENTENCE_ENDS) and words[i][:1].isspace()]
    places = []
    for fact, depth in zip(facts, depths, strict=True):
        at = int(depth * len(filler))
        places.append((next((end for end in ends if end >= at), at), fact))
    whole = list(filler)
    for place, fact in sorted(places, key=lambda p: p[0], reverse=True):
        whole[place:place] = fact
    return whole
