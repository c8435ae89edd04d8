"""The comparison on a terminal: one row a job, figures in as few tables as the width allows. Without colors it says the same."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from .compare import Row, fixed_label, grouped, key_of, label, show, varying
from .figures import Figure, block_unit, figures
from .verdict import caveats, verdict

TITLE_KEYS = ("policy", "option", "budget", "model", "weights", "dtype", "device", "workload", "requests", "ctx")
PADDING = 2  # characters between two columns
WIDE = 200  # characters


def width_of_output() -> int | None:
    """None: the terminal's own, or $COLUMNS. Piped, there is no screen to fit: one wide table is easier to read, and to cut."""
    return None if sys.stdout.isatty() or "COLUMNS" in os.environ else WIDE


def print_comparison(console: Console, rows: Sequence[Row]) -> None:
    """The tables, failed jobs, the verdict and the caveats."""
    done = [r for r in rows if r["status"] == "done"]
    if done:
        console.print()
        console.print(Text(fixed_label(done, TITLE_KEYS), style="bold"))
        unit = block_unit(done)
        console.print(f"Blocks of {unit} held, mean over the steps; ideal: the fewest for the live tokens. Times in ms.", highlight=False)
        for table in tables(rows, console.width, figures(rows)):
            console.print()
            console.print(table)
        console.print()
    missing = sum(row["status"] == "missing" for row in rows)
    if missing:
        console.print(Text(f"{missing} job{'s' if missing > 1 else ''} did not run", style="red"))
    for row in rows:
        if row["status"] == "failed":
            name = ", ".join(filter(None, (row["runtime"], label(row, varying(rows)))))
            console.print(Text(f"failed: {name} (jobs/{row['job']}): {row['error']}", style="red"))
    for sentence in verdict(rows):
        console.print(Text(sentence))
    if done and caveats(done):
        console.print(Text(f"Note: {'; '.join(caveats(done))}.", style="yellow"))


def tables(rows: Sequence[Row], width: int, shown: Sequence[Figure]) -> list[Table]:
    """The figures to be shown in as few tables as fit in `width` characters; those of one part stay together where they can."""
    groups = grouped(r for r in rows if r["status"] == "done")
    names = [_Names(key, groups) for key in varying(rows)]
    room = width - sum(n.width + PADDING for n in names) - len("runtime")
    parts: dict[str, list[Figure]] = {}
    for column in shown:
        parts.setdefault(column.part, []).append(column)
    packed: list[list[Figure]] = [[]]
    left = room
    for part in parts.values():
        if _width(part, groups) > left and packed[-1] and _width(part, groups) <= room:
            packed.append([])
            left = room
        for column in part:
            if _width([column], groups) > left and packed[-1]:
                packed.append([])
                left = room
            packed[-1].append(column)
            left -= _width([column], groups)
    return [_table(part, names, groups) for part in packed]


class _Names:
    """A leading column: one key of the rows."""

    def __init__(self, key: str, groups: Sequence[Sequence[Row]]) -> None:
        self.key = key
        self.width = max((len(self.cell(r)) for g in groups for r in g), default=0)
        self.width = max(self.width, len(key))

    def cell(self, row: Row) -> str:
        return show(self.key, key_of(row, self.key))


def _width(part: Sequence[Figure], groups: Sequence[Sequence[Row]]) -> int:
    heads = [max(map(len, c.head.splitlines())) for c in part]
    cells = [max(len(c.cell(r)) for g in groups for r in g) for c in part]
    return sum(max(pair) + PADDING for pair in zip(heads, cells, strict=True))


def _table(part: Sequence[Figure], names: Sequence[_Names], groups: Sequence[Sequence[Row]]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), show_edge=False)
    for name in names:
        table.add_column(name.key, no_wrap=True)
    table.add_column("runtime", no_wrap=True)
    for column in part:
        table.add_column(column.head, justify="right", no_wrap=True)
    for group in groups:
        for row in group:
            table.add_row(*(n.cell(row) for n in names), row["runtime"], *(c.cell(row) for c in part))
        if len(groups) > 2:
            table.add_section()
    return table
