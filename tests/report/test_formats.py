"""The same report in every format: what the page says is in the others, and each is what its readers expect."""

from __future__ import annotations

import csv
import io
import json
import re
import shutil
import subprocess
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from vtoken_sdk.metrics import COLUMNS
from vtoken_sdk.report.data import to_json, to_table
from vtoken_sdk.report.document import Document
from vtoken_sdk.report.latex import escape, to_latex
from vtoken_sdk.report.markdown import to_markdown
from vtoken_sdk.report.parts import View, document
from vtoken_sdk.report.write import write_reports

from .made import FIVE, row, view

AWKWARD = r"100% of $5 & #1_a {b} \c ~d ^e <f> |g| *h* `i` [j] -- é ± 你"


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> View:
    rows = [
        *FIVE,
        row("vtoken", "random", needle_acc=0.5),
        row("vtoken", AWKWARD, status="failed", error=f"ValueError: {AWKWARD} {'x' * 90}"),
    ]
    return view(tmp_path_factory.mktemp("formats"), *rows)


@pytest.fixture(scope="module")
def said(shown: View) -> Document:
    return document(shown)


def test_markdown_holds_every_part_and_table(said: Document) -> None:
    text = to_markdown(said)
    assert re.findall(r"^## (.*)$", text, re.MULTILINE) == [f"{n}. {part.title}" for n, part in enumerate(said.parts, start=1)]
    unescaped = re.sub(r"\\(.)", r"\1", text).replace("&lt;", "<")
    for part in said.parts:
        for table in part.tables:
            for line in table.rows:
                assert all(c.text in unescaped for c in line)
    tables = re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE)
    assert len(tables) == sum(len(part.tables) for part in said.parts)
    for table in tables:  # a bar in a cell would make another column
        assert len({len(re.findall(r"(?<!\\)\|", line)) for line in table.splitlines()}) == 1


def test_json_has_the_rows_the_tables_and_the_gates(shown: View, said: Document) -> None:
    value = json.loads(to_json(shown, said))
    assert [r["job"] for r in value["rows"]] == [r["job"] for r in shown.rows]
    assert [part["id"] for part in value["parts"]] == [part.id for part in said.parts]
    assert {gate["name"] for gate in value["gates"]} >= {"same victims", "budget kept"}
    assert value["sweeps"][0]["command"].startswith("vtoken-sweep")


def test_tables_have_the_columns_of_the_contract_first(shown: View, tmp_path: Path) -> None:
    table = to_table(shown)
    assert table.column_names[: len(COLUMNS)] == list(COLUMNS)
    assert {"needle_acc", "sweep"} <= set(table.column_names)
    write_reports(shown, tmp_path, ["csv", "parquet"])
    assert pq.read_table(tmp_path / "report.parquet").to_pylist() == table.to_pylist()
    rows = list(csv.DictReader(io.StringIO((tmp_path / "report.csv").read_text())))
    assert [float(r["blocks_held"]) for r in rows[:5]] == [r["blocks_held"] for r in FIVE]
    assert rows[0]["policy"] == ""


def test_what_latex_takes_for_a_command_is_escaped() -> None:
    assert escape("a_b & 5% $x {y}") == r"a\_b \& 5\% \$x \{y\}"
    assert escape("你") == "?"
    assert re.sub(r"\\allowbreak\{\}", "", escape("x" * 40)) == "x" * 40


def test_latex_is_balanced_and_holds_every_table(said: Document) -> None:
    """Where no LaTeX is installed: environments, braces, and as many cells in each row as columns."""
    text = to_latex(said)
    opened, closed = (re.findall(rf"\\{word}{{(\w+\*?)}}", text) for word in ("begin", "end"))
    assert sorted(opened) == sorted(closed)
    bare = re.sub(r"\\[\\{}]", "", text)
    assert bare.count("{") == bare.count("}")
    bodies = re.findall(r"\\begin\{longtable\}(.*?)\\end\{longtable\}", text, re.DOTALL)
    assert len(bodies) >= sum(len(part.tables) for part in said.parts)
    for body in bodies:
        rows = [line for line in body.splitlines() if line.endswith(r"\\")]
        assert len({len(re.findall(r"(?<!\\)&", line)) for line in rows}) == 1
    assert text.count(r"\toprule") == text.count(r"\bottomrule") == len(bodies)


def test_latex_compiles(said: Document, tmp_path: Path) -> None:
    program = shutil.which("pdflatex")
    if program is None:
        pytest.skip("no pdflatex on this machine")
    (tmp_path / "report.tex").write_text(to_latex(said))
    command = [program, "-interaction=nonstopmode", "-halt-on-error", "report.tex"]
    done = subprocess.run(command, cwd=tmp_path, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", check=False)
    if "booktabs.sty' not found" in done.stdout:
        pytest.skip("LaTeX lacks booktabs here")
    assert done.returncode == 0, done.stdout[-2000:]
    wide = [float(pt) for pt in re.findall(r"Overfull \\hbox \(([\d.]+)pt", (tmp_path / "report.log").read_text(errors="replace"))]
    assert max(wide, default=0) < 60  # points: no table runs off the page
