"""The report as Markdown: text and tables. Plots are in the HTML file."""

from __future__ import annotations

from collections.abc import Iterable

from .document import Document, Part, Table


def to_markdown(document: Document) -> str:
    lines = [f"# {_plain(document.name)}", "", _plain(document.subtitle), ""]
    lines += [*(f"> {_plain(sentence)}" for sentence in document.verdict), ""]
    lines += [*(f"- Note: {_plain(caveat)}" for caveat in document.caveats), ""]
    for number, part in enumerate(document.parts, start=1):
        lines += [f"## {number}. {part.title}", "", *part_lines(part)]
    return "\n".join(lines).rstrip() + "\n"


def part_lines(part: Part) -> list[str]:
    """Without its heading."""
    lines: list[str] = []
    for sentence in (*part.notes, part.reason):
        lines += [_plain(sentence), ""] if sentence else []
    for table in part.tables:
        lines += [*([f"**{table.title}**", ""] if table.title else []), *table_lines(table), ""]
    if part.panels:
        titles = dict.fromkeys(plot.title for panel in part.panels for plot in panel.plots)
        lines += [f"Plots, in the HTML report: {', '.join(titles)}.", ""]
    for command in part.code:
        lines += ["```console", f"$ {command}", "```", ""]
    return lines


def table_lines(table: Table) -> list[str]:
    rule = [":--" if column.text else "--:" for column in table.columns]
    return [_row(column.title for column in table.columns), _row(rule), *(_row(_plain(cell.flat) for cell in row) for row in table.rows)]


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _plain(text: str) -> str:
    """Nothing in a name or an error is taken for markup."""
    for mark in ("\\", "|", "`", "*", "_", "<", "[", "]"):
        text = text.replace(mark, f"\\{mark}" if mark != "<" else "&lt;")
    return " ".join(text.split())
