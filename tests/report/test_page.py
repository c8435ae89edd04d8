"""The HTML page: whole, self-contained, small, and no part of it empty without a reason."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from vtoken_sdk.report.html import to_html
from vtoken_sdk.report.parts import document
from vtoken_sdk.report.plots import POINTS, thin

from .made import MANY, row, view

TITLES = (
    *("Verdict and provenance", "Comparison", "Quality against budget", "Throughput against p95 ITL"),
    *("Utilization and waste over the steps", "Block occupancy", "Capacity frontier", "Compaction cost", "Overhead"),
    *("Configurations", "Failed and missing jobs", "Commands"),
)


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
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    failed = row("vtoken", "bad", status="failed", error="ValueError: <b>my own</b> fault", blocks_held=None, job="deadbeef")
    missing = row("page1", "bad", status="missing", job="cafe")
    return to_html(document(view(tmp_path_factory.mktemp("page"), *MANY, failed, missing)))


def test_the_page_loads_nothing_and_runs_nothing(page: str) -> None:
    seen = Page(page).seen
    assert not {tag for tag, _ in seen} & {"script", "link", "img", "iframe", "object", "image"}
    assert not [a for _, attributes in seen for a in attributes if a.startswith("on") or a in ("src", "srcset")]
    links = [a for _, attributes in seen for name, a in attributes.items() if name.endswith("href")]
    assert all(a is not None and a.startswith("#") for a in links)
    assert "url(http" not in page
    assert "@import" not in page


def test_a_hundred_jobs_are_a_small_page_that_says_everything(page: str) -> None:
    assert len(MANY) > 100
    assert len(page.encode()) < 1_000_000
    for word in ("CPU timing, one run a job", "Dummy weights", "prefers-color-scheme: dark", "jobs/deadbeef", "jobs/cafe", "abc123"):
        assert word in page, word
    assert "&lt;b&gt;my own&lt;/b&gt; fault" in page
    assert "vtoken-sweep policy=h2o &#39;a&lt;b&#39;" in page
    assert "17 more combinations are not drawn" in page
    assert "sha-of-scissorhands" in page
    assert "budget=0.25" in page


def test_the_twelve_parts_are_there_and_the_links_lead_to_them(page: str) -> None:
    assert re.findall(r'<h2 id="[a-z]+">\d+\. ([^<]+)</h2>', page) == list(TITLES)
    assert re.findall(r'<a href="#([a-z]+)">', page) == re.findall(r'<h2 id="([a-z]+)">', page)


def test_ids_in_the_page_are_unique(page: str) -> None:
    ids = [a["id"] for _, a in Page(page).seen if "id" in a]
    clashing = {i for i in ids if ids.count(i) > 1}
    referenced = set(re.findall(r'(?:href="#|url\(#)([^")]+)', page))
    bodies = {i: set(re.findall(rf'<(?:path|clipPath|rect)[^>]*id="{i}"[^>]*>.*?</', page)) for i in clashing & referenced}
    assert all(len(body) <= 1 for body in bodies.values()), "one id names two drawings"


def test_every_color_of_a_drawing_is_the_pages(page: str) -> None:
    drawn = "".join(re.findall(r"<svg.*?</svg>", page, re.DOTALL))
    assert set(re.findall(r"var\(--(\w+)\)", drawn)) <= set(re.findall(r"--(\w+):", page))
    assert set(re.findall(r"#[0-9a-f]{6}\b", drawn)) <= {"#000000"}


def test_a_page_without_a_result_gives_its_reasons(tmp_path: Path) -> None:
    failed = [row("native", status="failed", error="no"), row("naive", status="missing")]
    text = to_html(document(view(tmp_path, *failed)))
    Page(text)
    assert "No job finished" in text
    assert text.count("No job is done.") == len(TITLES) - 4  # verdict, configurations, failures and commands still speak


def test_legends_are_beside_the_lines(page: str) -> None:
    assert "fewest possible" in page
    assert "fewest possible" not in "".join(re.findall(r"<svg.*?</svg>", page, re.DOTALL))


def test_thinning_keeps_peaks_and_ends() -> None:
    x = np.arange(100_000.0)
    y = np.sin(x / 1000)
    y[77_777], y[3] = 9.0, np.nan
    few_x, few_y = thin(x, y)
    assert len(few_x) <= POINTS + 2
    assert np.nanmax(few_y) == 9.0
    assert (few_x[0], few_x[-1]) == (0, 99_999)
