"""From a line to the text before the question and the question itself.

LongBench's own prompts come from the user's copy of its `config/dataset2prompt.json`; without it, ours below are used, and the results
say so: figures then do not compare with published ones.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from vtoken_sdk.runtime.config import ConfigError

from .record import Record

QUESTION = "{context}\n\nAnswer the question from the text above, as briefly as you can.\n\nQuestion: {input}\nAnswer:"
PLAIN = "{context}\n\n{input}\nAnswer:"
SUMMARY = "{context}\n\n{input}\n\nA summary of the text above:"
EXAMPLES = "{context}\n{input}"
CODE = "{context}{input}"
OURS = {
    **dict.fromkeys(("gov_report", "qmsum", "multi_news", "vcsum"), SUMMARY),
    **dict.fromkeys(("trec", "triviaqa", "samsum", "lsht"), EXAMPLES),
    **dict.fromkeys(("passage_retrieval_en", "passage_retrieval_zh", "passage_count"), PLAIN),
    **dict.fromkeys(("lcc", "repobench-p"), CODE),
}

# Tokens that an answer may have, as in LongBench's config/dataset2maxlen.json.
LONGEST = {
    **dict.fromkeys(("hotpotqa", "2wikimqa", "musique", "triviaqa", "passage_count", "passage_retrieval_en", "passage_retrieval_zh"), 32),
    **dict.fromkeys(("multifieldqa_en", "multifieldqa_zh", "trec", "lsht", "lcc", "repobench-p"), 64),
    **dict.fromkeys(("narrativeqa", "qasper", "dureader", "samsum"), 128),
    **dict.fromkeys(("gov_report", "qmsum", "multi_news", "vcsum"), 512),
}
LONGEST_OF_OTHERS = 64


class Prompts:
    """templates: dataset -> text with {context} and {input}; None: ours."""

    def __init__(self, templates: Mapping[str, str] | None = None) -> None:
        self._templates = templates

    @property
    def name(self) -> str:
        """For the results: whose prompts these are."""
        return "generic" if self._templates is None else "given"

    @classmethod
    def read(cls, path: str | Path | None) -> Prompts:
        """A JSON object as LongBench's dataset2prompt.json; None: ours. Raises ConfigError that names the entry and the mend."""
        if path is None:
            return cls()
        file = Path(path).expanduser()
        try:
            templates = json.loads(file.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise ConfigError(f"quality.prompts={file}: {error}; give a file such as LongBench's config/dataset2prompt.json") from error
        if not isinstance(templates, dict):
            raise ConfigError(f'quality.prompts={file}: not an object; write {{"dataset": "... {{context}} ... {{input}} ..."}}')
        for name, template in templates.items():
            if not isinstance(template, str) or template.count("{context}") != 1:
                raise ConfigError(f"quality.prompts={file}: {name} must be a text with {{context}} in it once")
        return cls(templates)

    def of(self, record: Record) -> tuple[str, str]:
        """The text to the end of the context, and what asks for the answer after it. Raises ConfigError for a dataset without prompt."""
        if self._templates is None:
            template = OURS.get(record.dataset, QUESTION if record.question else PLAIN)
        elif record.dataset in self._templates:
            template = self._templates[record.dataset]
        else:
            raise ConfigError(f"quality.prompts: no entry for dataset {record.dataset}; add one, or leave quality.prompts out")
        before, after = template.split("{context}")
        head, tail = before.replace("{input}", record.question) + record.context, after.replace("{input}", record.question)
        return head, tail
