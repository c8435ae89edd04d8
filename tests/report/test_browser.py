"""The page in a real browser: nothing on the console, nothing asked for, readable on a phone and a wide screen, light and dark.

Starting a browser takes seconds, so it starts once: the page stands in frames of 400 and 1,600 pixels of both color schemes, beside a copy
with faults, which shows that faults would be seen.
"""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from PIL import Image

from vtoken_sdk.report.compare import RUNTIMES
from vtoken_sdk.report.html import to_html
from vtoken_sdk.report.parts import document

from .made import row, view

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *("--no-first-run", "--hide-scrollbars", "--enable-logging=stderr", "--v=0"),
)
FRAMES = {"narrow light": 400, "narrow dark": 400, "wide light": 1600, "wide dark": 1600, "faulty": 400}
HEIGHT = 1200
MEASURE = """<script>addEventListener("load", () => {
  const seen = {};
  for (const frame of document.querySelectorAll("iframe")) {
    const root = frame.contentDocument.documentElement;
    const small = [...root.querySelectorAll("svg text")].map(text => text.getBoundingClientRect().height);
    seen[frame.name] = {wide: root.scrollWidth, asked: frame.contentWindow.performance.getEntriesByType("resource").map(e => e.name),
      parts: root.querySelectorAll("h2").length,
      cut: [...root.querySelectorAll("figure")].filter(figure => figure.scrollWidth > figure.clientWidth + 1).length,
      text: Math.min(...small), first: getComputedStyle(root.querySelector("tbody td")).position};
  }
  console.log("MEASURED " + JSON.stringify(seen));
})</script>"""
FAULT = '<script>console.error("a fault")</script><img src="http://127.0.0.1:9/x"><div style="width: 3000px">wide</div></main>'


@dataclass
class Seen:
    frames: dict[str, dict[str, Any]]
    console: list[str]
    pictures: dict[str, np.ndarray]  # gray, 0 to 255, [height, width]


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Seen:
    folder = tmp_path_factory.mktemp("browser")
    rows = [row(name, seed=seed, weights="real", nll=3.1, nll_full=3.0, kl=0.1 + seed / 9) for name in RUNTIMES for seed in (0, 1)]
    failed = row("vtoken", "my_policy_of_a_long_name", status="failed", error=f"ValueError: {'a long error ' * 30}", job="deadbeef")
    page = to_html(document(view(folder, *rows, failed, occupancy=True)))
    frames, left, places = [], 0, {}
    for name, width in FRAMES.items():
        text = html.escape(page.replace("</main>", FAULT) if name == "faulty" else page)
        style = f"position:absolute; border:0; left:{left}px; top:0; width:{width}px; height:{HEIGHT}px; color-scheme:{name.split()[-1]}"
        frames.append(f'<iframe name="{name}" style="{style}" srcdoc="{text}"></iframe>')
        places[name] = (left, left + width)
        left += width
    (folder / "frames.html").write_text(f"<!doctype html><meta charset=utf-8><body style='margin:0'>{''.join(frames)}{MEASURE}</body>")
    command = [str(CHROMIUM), *FLAGS, f"--user-data-dir={folder / 'profile'}", f"--window-size={left},{HEIGHT}"]
    command += [f"--screenshot={folder / 'frames.png'}", (folder / "frames.html").as_uri()]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True, timeout=120)
    console = re.findall(r"CONSOLE[^\"]*\"(.*)\", source", done.stderr)
    (measured,) = [line for line in console if line.startswith("MEASURED ")]
    picture = np.asarray(Image.open(folder / "frames.png").convert("L")).astype(float)
    pictures = {name: picture[:, start:end] for name, (start, end) in places.items()}
    return Seen(json.loads(measured.removeprefix("MEASURED ")), [line for line in console if line != measured], pictures)


def test_nothing_is_on_the_console_and_nothing_is_asked_for(seen: Seen) -> None:
    """Of five frames, the faulty one alone says and asks."""
    assert [line for line in seen.console if "a fault" not in line and "ERR_" not in line] == []
    assert sum("a fault" in line for line in seen.console) == 1
    assert seen.frames["faulty"]["asked"] == ["http://127.0.0.1:9/x"]
    assert all(frame["asked"] == [] for name, frame in seen.frames.items() if name != "faulty")
    assert all(frame["parts"] == 12 for frame in seen.frames.values())


def test_the_page_is_no_wider_than_the_screen(seen: Seen) -> None:
    """Tables scroll in their own frames, beside a first column that stays."""
    for name, width in FRAMES.items():
        if name == "faulty":
            assert seen.frames[name]["wide"] > width
        else:
            assert seen.frames[name]["wide"] <= width
            assert seen.frames[name]["cut"] == 0
            assert seen.frames[name]["first"] == "sticky"
            assert seen.frames[name]["text"] > 8  # pixels


@pytest.mark.parametrize("size", ["narrow", "wide"])
def test_light_and_dark_are_readable(seen: Seen, size: str) -> None:
    """Ink stands out from the page in both, and the page is really light or dark."""
    for scheme, bright in (("light", True), ("dark", False)):
        gray = seen.pictures[f"{size} {scheme}"]
        page = float(np.median(gray))
        assert (page > 200) == bright
        assert abs(np.percentile(gray, 0.5 if bright else 99.5) - page) > 120
