"""The comparison on the terminal and the page, from made-up rows and steps: shapes that a sweep can have, without running one."""

from __future__ import annotations

import io
import re
from html.parser import HTMLParser
from typing import Any

import pytest
from rich.console import Console

from vtoken_sdk.metrics import COLUMNS
from vtoken_sdk.report import print_comparison, render
from vtoken_sdk.report.compare import RUNTIMES, Row, grouped
from vtoken_sdk.report.figures import figures
from vtoken_sdk.report.plots import POINTS, thin
from vtoken_sdk.report.verdict import verdict


def row(runtime: str, policy: str = "h2o", budget: float = 0.5, **more: Any) -> Row:
    size = 1 if runtime == "page1" else 16
    evicts = runtime != "native"
    ideal = 500.0 if evicts else 1000.0
    held = {"native": 1000, "naive": 990, "refill": 950, "vtoken": 510, "page1": 500}[runtime] * 16 / size
    known: Row = {
        **dict.fromkeys(COLUMNS),
        **{"job": f"{runtime}-{policy}-{budget}" if evicts else "native", "status": "done", "runtime": runtime},
        **({"policy": policy, "budget": budget, "evict_prefill": "end", "evict_every": 16} if evicts else {}),
        **{"model": "tiny", "weights": "dummy", "dtype": "float32", "device": "cpu", "workload": "synthetic", "requests": 8, "ctx": 16384},
        **{"lengths": "fixed", "max_tokens": 32, "chunk": 2048, "max_running": 64, "pool_blocks": 5427, "pool_block_size": 16, "seed": 0},
        **{"block_size": size, "blocks_held": held, "blocks_ideal": ideal * 16 / size, "blocks_held_peak": int(held * 1.1)},
        **{
            "waste": 1 - ideal * 16 / size / held,
            "utilization": ideal * 16 / size / held,
            "concurrency_peak": 8,
            "admits_5427": 10 if evicts else 5,
        },
        **{"admits_11519": 22 if evicts else 11, "output_tok_s": 812.3, "ttft_ms_p50": 1200.0, "itl_ms_p50": 9.1, "itl_ms_p95": 12.2},
        **{"model_ms": 7.0, "table_ms": 0.4, "cut_short": 0, "tokens_sha256": f"{policy}{budget}", "victims_sha256": f"{policy}{budget}"},
    }
    return known | more


def steps_of(rows: list[Row], count: int = 300) -> dict[str, dict[str, list[Any]]]:
    return {
        str(r["job"]): {
            "step": list(range(count)),
            "blocks_held": [int(r["blocks_held"] * min(1, i / 50)) for i in range(count)],
            "blocks_ideal": [int(r["blocks_ideal"] * min(1, i / 50)) for i in range(count)],
            "utilization": [None if i == 0 else r["utilization"] for i in range(count)],
            "running": [8] * count,
        }
        for r in rows
        if r["status"] == "done"
    }


FIVE = [row(name) for name in RUNTIMES]
MANY = [
    row("native"),
    *(
        row(n, p, b)
        for p in ("h2o", "random", "streaming_llm", "scissorhands", "./mine.py")
        for b in (0.1, 0.25, 0.5, 0.75, 64)
        for n in RUNTIMES[1:]
    ),
]


def on_terminal(rows: list[Row], width: int, *, terminal: bool = False) -> str:
    out = io.StringIO()
    print_comparison(Console(file=out, width=width, force_terminal=terminal, legacy_windows=False), rows)
    return out.getvalue()


@pytest.mark.parametrize("width", [80, 100, 200])
@pytest.mark.parametrize("rows", [FIVE, MANY], ids=["five", "many"])
def test_the_terminal_shows_every_figure_at_any_width(rows: list[Row], width: int) -> None:
    text = on_terminal(rows, width)
    assert "\x1b" not in text
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= width
    for name in RUNTIMES:
        assert re.search(rf"^.*\b{name}\b.*\d", text, re.MULTILINE), name
    words = text.split()
    for figure in figures(rows):
        assert all(word in words for word in figure.head.split()), figure.head
        assert figure.cell(rows[-1]) in words


def test_two_hundred_columns_hold_it_all_in_one_table() -> None:
    assert on_terminal(FIVE, 200).count("native ") == 1
    assert on_terminal(FIVE, 80).count("native ") > 1


def test_naive_against_vtoken_is_the_verdict() -> None:
    assert verdict(FIVE) == [
        "h2o, budget=0.5: naive holds 1.98 and vtoken 1.02 times the blocks that the live tokens need; "
        "5,427 blocks should hold 10 such requests under vtoken, 5 under native.",
        "The runtimes evicted the same tokens and generated the same text: their figures compare.",
    ]


def test_many_combinations_are_summed_up() -> None:
    assert verdict(MANY)[0] == "Over 25 combinations, at most: naive holds 1.98 and vtoken 1.02 times the blocks that the live tokens need."


@pytest.mark.parametrize(("column", "word"), [("victims_sha256", "evicted"), ("tokens_sha256", "generated")])
def test_runtimes_that_disagree_are_told(column: str, word: str) -> None:
    rows = [*FIVE[:-1], row("page1", **{column: "another"})]
    assert verdict(rows)[-1].startswith(f"Attention: the runtimes {word} different tokens (h2o, budget=0.5)")


def test_a_ratio_and_a_token_are_two_budgets() -> None:
    rows = [row("naive", budget=1), row("naive", budget=1.0, job="other")]
    assert len(grouped(rows)) == 2
    assert re.findall(r"^([\d.]+) +naive", on_terminal(rows, 200), re.MULTILINE) == ["1", "1.0"]


class Page(HTMLParser):
    """Tags and attributes; fails on unbalanced ones."""

    VOID = frozenset({"meta", "br", "link", "img", "input", "use", "path", "rect"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.VOID:
            assert self.open.pop() == tag


@pytest.fixture(scope="module")
def page() -> str:
    failed = row("vtoken", "bad", status="failed", error="ValueError: <b>my own</b> fault", blocks_held=None, job="deadbeef")
    missing = row("page1", "bad", status="missing", job="cafe")
    return render("a-sweep", [*MANY, failed, missing], steps_of(MANY), "vtoken-sweep policy=h2o 'a<b'", {"commit": "abc", "python": "3.11"})


def test_the_page_loads_nothing_and_runs_nothing(page: str) -> None:
    seen = Page(page).seen
    assert not {tag for tag, _ in seen} & {"script", "link", "img", "iframe", "object", "image"}
    assert not [a for _, attributes in seen for a in attributes if a.startswith("on") or a in ("src", "srcset")]
    links = [a for _, attributes in seen for name, a in attributes.items() if name.endswith("href")]
    assert all(a is not None and a.startswith("#") for a in links)
    assert "url(http" not in page
    assert "@import" not in page


def test_the_page_is_small_and_says_everything(page: str) -> None:
    assert len(MANY) > 100
    assert len(page.encode()) < 1_000_000
    for word in ("CPU timing, one run a job", "Dummy weights", "prefers-color-scheme: dark", "deadbeef", "jobs/cafe", "abc"):
        assert word in page, word
    assert "&lt;b&gt;my own&lt;/b&gt; fault" in page
    assert "vtoken-sweep policy=h2o &#39;a&lt;b&#39;" in page
    assert "17 more combinations are not drawn" in page
    for title in ("Blocks held", "Utilization and waste", "Concurrency, measured", "Throughput", "Latency: ITL p50"):
        assert title in page, title
    assert "Quality" not in page
    assert "budget=0.25" in page


def test_ids_in_the_page_are_unique(page: str) -> None:
    ids = [a["id"] for _, a in Page(page).seen if "id" in a]
    clashing = {i for i in ids if ids.count(i) > 1}
    referenced = set(re.findall(r'(?:href="#|url\(#)([^")]+)', page))
    bodies = {i: set(re.findall(rf'<(?:path|clipPath|rect)[^>]*id="{i}"[^>]*>.*?</', page)) for i in clashing & referenced}
    assert all(len(body) <= 1 for body in bodies.values()), "one id names two drawings"


def test_a_page_without_a_result_is_still_a_page() -> None:
    failed = [row("native", status="failed", error="no"), row("naive", status="missing")]
    text = render("a", failed, {}, "vtoken-sweep", {})
    Page(text)
    assert "No job finished" in text


def test_quality_is_drawn_where_it_was_judged() -> None:
    rows = [row(n, nll=3.1, kl=0.02 if n != "native" else 0.0, top1=0.9, weights="real") for n in RUNTIMES]
    text = render("a", rows, steps_of(rows), "vtoken-sweep", {})
    assert "Quality: KL" in text
    assert "Dummy weights" not in text
    assert "top-1" in on_terminal(rows, 80)


def test_thinning_keeps_peaks_and_ends() -> None:
    import numpy as np

    x = np.arange(100_000.0)
    y = np.sin(x / 1000)
    y[77_777], y[3] = 9.0, np.nan
    few_x, few_y = thin(x, y)
    assert len(few_x) <= POINTS + 2
    assert np.nanmax(few_y) == 9.0
    assert (few_x[0], few_x[-1]) == (0, 99_999)


def test_a_policy_that_ignores_its_budget_is_told_of() -> None:
    greedy, idle, fair = (row("vtoken", name, kept=kept, evictions=n) for name, kept, n in (("a", 1.4, 9), ("b", 2.0, 0), ("c", 1.0, 9)))
    said = " ".join(verdict([greedy, idle, fair]))
    assert "Attention: a, budget=0.5 keeps 1.40 times its budget." in said
    assert "b, budget=0.5: nothing was evicted" in said
    assert "c, budget=0.5 keeps" not in said
    assert "nothing was evicted" not in " ".join(verdict([fair]))
