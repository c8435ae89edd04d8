"""The figures of a comparison, one a column. Blocks are counted in the largest block size of the sweep, so that the one-token blocks
of page1 compare with the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from operator import itemgetter

from vtoken_sdk.metrics import COLUMNS
from vtoken_sdk.paper import ADMITS

from .compare import Baselines, Line, Row
from .stats import Estimate

Value = Callable[[Row], float | None]


@dataclass(frozen=True)
class Figure:
    """One figure: its heading, the part of the table it belongs to, its value and how that is written, a sentence on what it is.

    better: "less" or "more" where the difference to the baseline says something, or "". column: of the results, if it is one of them.
    """

    head: str
    part: str
    value: Value
    form: str
    about: str
    better: str = ""
    column: str = ""

    @property
    def says(self) -> bool:
        """Is it an outcome, and not a count or the full cache's own?"""
        return bool(self.better or self.column)

    @property
    def title(self) -> str:
        return self.head.replace("\n", " ")

    def cell(self, row: Row) -> str:
        """ "-" where it does not apply."""
        return self.write(self.value(row))

    def write(self, number: float | None) -> str:
        """A mean of whole numbers need not be one."""
        if number is None:
            return "-"
        if not self.form.endswith("d"):
            return format(number, self.form)
        return format(int(number), self.form) if float(number).is_integer() else format(number, f"{self.form[:-1]}.1f")

    def interval(self, estimate: Estimate) -> str:
        """ "±" and half the interval; "" where there is none."""
        return f"±{self.write(estimate.half).lstrip('+')}" if estimate.half else ""

    def estimate(self, line: Line) -> Estimate | None:
        return Estimate.of(self.value(row) for row in line.rows)

    def change(self, line: Line, baselines: Baselines) -> Estimate | None:
        """Relative to the baseline, each row to that of its own seed. None where there is nothing to say."""
        return Estimate.of(self.difference(row, baselines(row)) for row in line.rows)

    def difference(self, row: Row, base: Row | None) -> float | None:
        """Relative to the baseline's row: 0.1 is 10 % more. None where there is nothing to say."""
        if not self.better or base is None or row is base:
            return None
        ours, theirs = self.value(row), self.value(base)
        return None if ours is None or not theirs else ours / theirs - 1


# Columns that figures here and in the parts show, that name rows, or that explain the others. What a user's suite adds is none of these.
SHOWN = {*COLUMNS, "setup"}


def block_unit(rows: Iterable[Row]) -> int:
    """Tokens in the largest block."""
    return max((int(r["pool_block_size"]) for r in rows), default=16)


def in_blocks_of(unit: int, name: str) -> Value:
    """A count of blocks, as if they were of `unit` tokens."""
    return lambda row: None if row[name] is None else row[name] * row["block_size"] / unit


def held_ratio(row: Row) -> float | None:
    """Blocks held over the fewest that could hold the live tokens."""
    return row["blocks_held"] / row["blocks_ideal"] if row["blocks_held"] and row["blocks_ideal"] else None


def megabytes_moved(row: Row) -> float | None:
    return None if row["bytes_moved"] is None else row["bytes_moved"] / 1e6


def ms_form(values: Iterable[float | None]) -> str:
    """Of a column of milliseconds: three digits of its largest, no more than a clock is worth."""
    most = max((abs(value) for value in values if value is not None), default=0.0)
    return f",.{2 if most < 10 else 1 if most < 100 else 0}f"


def figures(rows: Sequence[Row]) -> list[Figure]:
    """Those that any finished row has."""
    unit = block_unit(rows)
    done = [row for row in rows if row["status"] == "done"]

    def time(head: str, part: str, column: str, about: str, better: str = "") -> Figure:
        return Figure(head, part, itemgetter(column), ms_form(row[column] for row in done), about, better)

    fit = "estimate: requests of ctx tokens and max_tokens more that {} blocks hold at once, as far as the runtime promises"
    known = [
        Figure("held", "memory", in_blocks_of(unit, "blocks_held"), ",.0f", f"blocks of {unit} held: mean over the steps", "less"),
        Figure("peak", "memory", in_blocks_of(unit, "blocks_held_peak"), ",.0f", f"blocks of {unit} held: the most", "less"),
        Figure(
            "ideal",
            "memory",
            in_blocks_of(unit, "blocks_ideal"),
            ",.0f",
            "the fewest blocks for the live tokens: ceil(live / block) a request",
        ),
        Figure("held /\nideal", "memory", held_ratio, ".2f", "1.00: no block is wasted"),
        Figure(
            "kept /\nbudget",
            "memory",
            itemgetter("kept"),
            ".2f",
            "live tokens after the last eviction, of the budget; 1.00 keeps to it",
        ),
        Figure("waste", "memory", itemgetter("waste"), ".1%", "share of the held slots that no live token uses, mean over all steps"),
        Figure("at\nonce", "memory", itemgetter("concurrency_peak"), ",d", "the most requests that held blocks at one time", "more"),
        *(Figure(f"fit in\n{n:,}", "memory", itemgetter(column), ",d", fit.format(f"{n:,}"), "more") for column, n in ADMITS.items()),
        Figure("good\nreq/s", "speed", _where_known("request_goodput"), ",.2f", "requests a second that met goodput.*", "more"),
        Figure("tok/s", "speed", itemgetter("output_tok_s"), ",.1f", "tokens generated a second, over all requests", "more"),
        time("TTFT\np50", "speed", "ttft_ms_p50", "ms from a request's arrival to its first token", "less"),
        time("ITL\np50", "speed", "itl_ms_p50", "ms between two tokens of a request, median", "less"),
        time("ITL\np95", "speed", "itl_ms_p95", "ms between two tokens of a request, 95th percentile", "less"),
        Figure(
            "NLL",
            "quality",
            itemgetter("nll"),
            ".3f",
            "negative log-likelihood of the text that follows, nats a token",
            "less",
            column="nll",
        ),
        Figure("full\nNLL", "quality", itemgetter("nll_full"), ".3f", "the same with the full cache"),
        Figure("KL", "quality", itemgetter("kl"), ".4f", "divergence from the full cache, nats a token", column="kl"),
        Figure("top-1", "quality", itemgetter("top1"), ".1%", "tokens on which it agrees with the full cache", column="top1"),
        Figure("judged", "quality", itemgetter("judged"), ",d", "tokens of text that these figures are means of"),
        *(
            figure
            for suite, name in (("needle", "needle"), ("needle4", "4-key\nneedle"))
            for figure in (
                Figure(
                    f"{name}\nfound",
                    "quality",
                    itemgetter(f"{suite}_acc"),
                    ".1%",
                    "needles whose whole number is the first choice",
                    "more",
                    column=f"{suite}_acc",
                ),
                Figure(
                    f"{name}\nNLL",
                    "quality",
                    itemgetter(f"{suite}_nll"),
                    ".3f",
                    "of the needles' numbers, nats a token",
                    "less",
                    column=f"{suite}_nll",
                ),
                Figure(
                    f"{name}\nitems", "quality", itemgetter(f"{suite}_items"), ",d", "needles that the full cache finds, and that count"
                ),
                Figure(
                    f"{name}\ndropped", "quality", itemgetter(f"{suite}_dropped"), ",d", "needles that the full cache itself does not find"
                ),
            )
        ),
        Figure(
            "Long-\nBench",
            "quality",
            itemgetter("longbench_score"),
            ".1f",
            "score of LongBench items by their metrics, percent",
            "more",
            column="longbench_score",
        ),
        Figure("Long-\nBench\nfull", "quality", itemgetter("longbench_score_full"), ".1f", "the same with the full cache"),
        Figure(
            "Long-\nBench\nNLL",
            "quality",
            itemgetter("longbench_nll"),
            ".3f",
            "of the true answers, nats a token",
            "less",
            column="longbench_nll",
        ),
        Figure("Long-\nBench\nitems", "quality", itemgetter("longbench_items"), ",d", "items that count"),
        Figure("Long-\nBench\ndropped", "quality", itemgetter("longbench_dropped"), ",d", "items on which the full cache scores 0"),
        Figure("MB\nmoved", "cost", megabytes_moved, ",.1f", "read plus written by the reclaimer"),
        time("model\nms", "cost", "model_ms", "ms a step: the model"),
        time("policy\nms", "cost", "policy_ms", "ms a step: the policy's own code"),
        time("table\nms", "cost", "table_ms", "ms a step: Token Table and block pool"),
        time("plan\nms", "cost", "plan_ms", "ms a step: the planner"),
        time("copy\nms", "cost", "copy_ms", "ms a step: the reclaimer's copies"),
    ]
    return [figure for figure in (*known, *further(done)) if any(figure.value(row) is not None for row in done)]


def further(rows: Sequence[Row]) -> list[Figure]:
    """Numbers that no figure above shows: those of quality suites, mainly, which name their columns themselves."""
    names = dict.fromkeys(name for row in rows for name, value in row.items() if _is_number(value) and name not in SHOWN)
    return [Figure(name.replace("_", "\n", 1), _part_of(name), _where_known(name), ",.4g", name, _better(name), name) for name in names]


def _where_known(name: str) -> Value:
    """Rows of sweeps without that suite lack the column."""
    return lambda row: row.get(name)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _better(name: str) -> str:
    """By the words that such columns are made of; "" where they say nothing."""
    words = set(name.split("_"))
    if words & {"nll", "kl", "loss", "ppl", "perplexity", "ms"}:
        return "less"
    return "more" if words & {"acc", "accuracy", "em", "f1", "rouge", "score", "top1", "goodput"} else ""


def _part_of(name: str) -> str:
    """Speed is in milliseconds or per second; what else a suite measures is taken for quality."""
    return "speed" if name.endswith(("_ms", "_s", "_p50", "_p95", "_p99")) or "goodput" in name else "quality"


def quality_figures(rows: Sequence[Row]) -> list[Figure]:
    """What was judged and what was lost, without the counts and the full cache's own."""
    judged = [f for f in figures(rows) if f.part == "quality" and f.says]
    lost = [LOST_NLL] if any(LOST_NLL.value(row) is not None for row in rows if row["status"] == "done") else []
    return [*lost, *judged]


def _lost_nll(row: Row) -> float | None:
    return None if row["nll"] is None or row["nll_full"] is None else row["nll"] - row["nll_full"]


# Texts differ in difficulty far more than policies do: the difference on the same text is what seeds can be averaged over.
LOST_NLL = Figure("NLL\nlost", "quality", _lost_nll, "+.4f", "NLL less that of the full cache on the same text, nats a token")
