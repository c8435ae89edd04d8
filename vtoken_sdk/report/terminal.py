"""The comparison on a terminal: one row a job, figures in as few tables as the width allows. Without colors it says the same."""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from .compare import Row, fixed_label, grouped, key_of, label, show, trimmed, varying
from .figures import Figure, block_unit, figures
from .verdict import caveats, verdict

TITLE_KEYS = ("policy", "option", "budget", "model", "weights", "dtype", "device", "workload", "requests", "ctx")
LOAD = {"lengths": "fixed", "length_scale": 1.0, "arrivals": "rate", "request_rate": None, "burstiness": None, "max_concurrency": None}
PADDING = 2  # characters between two columns
WIDE = 100  # characters: what a pager, a mail or a page of text has room for


def width_of_output() -> int | None:
    """None: the terminal's own, or $COLUMNS. Whoever wants one wide table for a program has results.csv."""
    return None if sys.stdout.isatty() or "COLUMNS" in os.environ else WIDE


def print_comparison(console: Console, rows: Sequence[Row]) -> None:
    """The tables, failed jobs, the verdict and the caveats."""
    done = [r for r in rows if r["status"] == "done"]
    if done:
        console.print()
        unusual = [key for key, usual in LOAD.items() if any(row.get(key) not in (None, usual) for row in done)]
        console.print(Text(fixed_label(done, [*TITLE_KEYS, *unusual]), style="bold"))
        if any(row["judged"] is not None for row in done):
            console.print("Quality is judged on text of its own, apart from this workload.")
        unit = block_unit(done)
        console.print(f"Blocks of {unit} held, mean over the steps; ideal: the fewest for the live tokens. Times in ms.", highlight=False)
        for table in tables(rows, console.width, figures(rows)):
            console.print()
            console.print(table)
        console.print()
    missing = sum(row["status"] == "missing" for row in rows)
    if missing:
        console.print(Text(f"{missing} job{'s' if missing > 1 else ''} did not run", style="red"))
    short = trimmed(rows)
    for row in short:
        if row["status"] == "failed":
            name = ", ".join(filter(None, (row["runtime"], label(row, varying(short)))))
            console.print(Text(f"failed: {name} (jobs/{row['job']}): {row['error']}", style="red"))
    for sentence in verdict(rows):
        console.print(Text(sentence))
    if len({row["seed"] for row in done}) > 1:
        console.print(Text("Each seed has a row of its own here; means over the seeds, with intervals, are in the report."))
    if done and caveats(done):
        console.print(Text(f"Note: {'; '.join(caveats(done))}.", style="yellow"))


def tables(rows: Sequence[Row], width: int, shown: Sequence[Figure]) -> list[Table]:
    """The figures to be shown in as few tables as fit in `width` characters; those of one part stay together where they can.

    Where the names of the rows leave no room for figures, rows have numbers, and a first table says their names.
    """
    groups = grouped(r for r in trimmed(rows) if r["status"] == "done")
    named = [_Names(key, [[show(key, key_of(r, key)) for r in g] for g in groups]) for key in varying(trimmed(rows))]
    runtimes = _Names("runtime", [[r["runtime"] for r in g] for g in groups])
    room = width - sum(n.width for n in named) - runtimes.width
    if room >= min(width // 3, max((_width([column], groups) for column in shown), default=0) * 2):
        return [_table(part, [*named, runtimes], groups) for part in _packed(shown, groups, room)]
    counted = itertools.count(1)
    numbers = _Names("#", [[str(next(counted)) for _ in g] for g in groups])
    room = width - numbers.width - runtimes.width
    parts = [_table(part, [numbers, runtimes], groups) for part in _packed(shown, groups, room)]
    return [_table([], [numbers, runtimes, *named], groups), *parts]


def _packed(shown: Sequence[Figure], groups: Sequence[Sequence[Row]], room: int) -> list[list[Figure]]:
    """room: characters for figures in a table."""
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
    return packed


class _Names:
    """A leading column: its head and its cells, by groups. width: characters, with the space to the next column."""

    def __init__(self, head: str, cells: Sequence[Sequence[str]]) -> None:
        self.head, self.cells = head, cells
        self.width = max([len(head), *(len(cell) for group in cells for cell in group)]) + PADDING


def _width(part: Sequence[Figure], groups: Sequence[Sequence[Row]]) -> int:
    heads = [max(map(len, c.head.splitlines())) for c in part]
    cells = [max(len(c.cell(r)) for g in groups for r in g) for c in part]
    return sum(max(pair) + PADDING for pair in zip(heads, cells, strict=True))


def _table(part: Sequence[Figure], names: Sequence[_Names], groups: Sequence[Sequence[Row]]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), show_edge=False)
    for name in names:
        table.add_column(name.head if part else name.head.replace("_", " "), no_wrap=bool(part), overflow="fold")
    for column in part:
        table.add_column(column.head, justify="right", no_wrap=True)
    for i, group in enumerate(groups):
        for j, row in enumerate(group):
            table.add_row(*(name.cells[i][j] for name in names), *(column.cell(row) for column in part))
        if len(groups) > 2 and max(map(len, groups)) > 1:
            table.add_section()
    return table
