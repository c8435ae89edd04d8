"""LongBench's metrics, from their definitions: an answer written against a true one, 0..1.

Sources: the names of LongBench's `eval.py` for each dataset; ROUGE-L as the package `rouge` 1.0.1 computes it (at the level of
summaries, over distinct words); similarity of code as `fuzzywuzzy` without its C library. Chinese datasets need a segmenter of words and
have no score here.
"""

from __future__ import annotations

import difflib
import re
import string
from collections import Counter
from collections.abc import Callable, Sequence

Metric = Callable[[str, str, Sequence[str]], float]

TINY = 1e-8  # the package's, against a division by 0


def token_f1(written: str, true: str, classes: Sequence[str] = ()) -> float:
    """F1 over words, each as often as it occurs; case, punctuation and articles apart."""
    ours, theirs = _plain_words(written), _plain_words(true)
    same = (Counter(ours) & Counter(theirs)).total()
    return 2 * same / (len(ours) + len(theirs)) if same else 0.0


def _plain_words(text: str) -> list[str]:
    bare = "".join(c for c in text.lower() if c not in string.punctuation)
    return re.sub(r"\b(a|an|the)\b", " ", bare).split()


def rouge_l(written: str, true: str, classes: Sequence[str] = ()) -> float:
    """F1 of the union, over all pairs of sentences, of the words in their longest common subsequences."""
    ours, theirs = _sentences(written), _sentences(true)
    if not ours or not theirs:
        return 0.0
    common: set[str] = set()
    for sentence in theirs:
        for other in ours:
            common |= _common_words(sentence, other)
    precision = len(common) / len({word for sentence in ours for word in sentence})
    recall = len(common) / len({word for sentence in theirs for word in sentence})
    return 2 * precision * recall / (precision + recall + TINY)


def _sentences(text: str) -> list[list[str]]:
    """Words of each; a sentence of spaces alone is one empty word, as in the package."""
    return [" ".join(part.split()).split(" ") for part in text.split(".") if part]


def _common_words(x: Sequence[str], y: Sequence[str]) -> set[str]:
    """The words of a longest common subsequence; of several, the one that drops from `y` first, from behind."""
    lengths = [[0] * (len(y) + 1) for _ in range(len(x) + 1)]
    for i, word in enumerate(x, 1):
        for j, other in enumerate(y, 1):
            lengths[i][j] = lengths[i - 1][j - 1] + 1 if word == other else max(lengths[i - 1][j], lengths[i][j - 1])
    i, j, words = len(x), len(y), set()
    while i and j:
        if x[i - 1] == y[j - 1]:
            words.add(x[i - 1])
            i, j = i - 1, j - 1
        elif lengths[i - 1][j] > lengths[i][j - 1]:
            i -= 1
        else:
            j -= 1
    return words


def classification(written: str, true: str, classes: Sequence[str]) -> float:
    """1 over the classes named in the answer if the true one is among them. A class inside the true one's name does not count."""
    named = [name for name in classes if name in written and (name == true or name not in true)]
    return 1 / len(named) if true in named else 0.0


def paragraph(written: str, true: str, classes: Sequence[str] = ()) -> float:
    """Share of the numbers written that are the paragraph's ("Paragraph 7")."""
    (number,) = re.findall(r"Paragraph (\d+)", true)[:1] or [""]
    return count(written, number)


def count(written: str, true: str, classes: Sequence[str] = ()) -> float:
    """Share of the numbers written that are the true one."""
    numbers = re.findall(r"\d+", written)
    return sum(number == true for number in numbers) / len(numbers) if numbers else 0.0


def code_similarity(written: str, true: str, classes: Sequence[str] = ()) -> float:
    """Of the first line that is code, to the hundredth: twice the matching characters over all characters."""
    lines = written.lstrip("\n").split("\n")
    line = next((line for line in lines if not any(mark in line for mark in ("`", "#", "//"))), "")
    if not line or not true:
        return 0.0
    return round(100 * difflib.SequenceMatcher(None, line, true).ratio()) / 100


# dataset -> metric and its name. A dataset of one's own is judged by token F1, or by its classes where it has some.
METRICS: dict[str, tuple[str, Metric]] = {
    **dict.fromkeys(("narrativeqa", "qasper", "multifieldqa_en", "hotpotqa", "2wikimqa", "musique", "triviaqa"), ("token_f1", token_f1)),
    **dict.fromkeys(("gov_report", "qmsum", "multi_news", "samsum"), ("rouge_l", rouge_l)),
    **dict.fromkeys(("trec", "lsht"), ("classification", classification)),
    "passage_retrieval_en": ("paragraph", paragraph),
    "passage_count": ("count", count),
    **dict.fromkeys(("lcc", "repobench-p"), ("code_similarity", code_similarity)),
}
WITHOUT_METRIC = ("multifieldqa_zh", "dureader", "vcsum", "passage_retrieval_zh")
FIRST_LINE = ("trec", "triviaqa", "samsum", "lsht")  # only the answer's first line counts: the examples go on after it


def metric_of(dataset: str, classes: Sequence[str]) -> tuple[str, Metric] | None:
    """None for a dataset whose metric needs a segmenter of Chinese words."""
    if dataset in WITHOUT_METRIC:
        return None
    return METRICS.get(dataset) or (("classification", classification) if classes else ("token_f1", token_f1))


def best_score(dataset: str, metric: Metric, written: str, answers: Sequence[str], classes: Sequence[str]) -> float:
    """Against the answer that it fits best."""
    if dataset in FIRST_LINE:
        written = written.lstrip("\n").split("\n")[0]
    return max(metric(written, answer, classes) for answer in answers)
