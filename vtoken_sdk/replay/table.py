"""Replays on the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from vtoken_sdk.sweep.job import Job

COLUMNS = ("policy", "budget", "runtime", "kept", "held", "ideal", "held /\nideal", "waste", "moves", "ms")


def print_replays(path: Path, about: Mapping[str, Any], rows: Sequence[tuple[Job, Mapping[str, Any]]], notes: Sequence[str]) -> None:
    console = Console()
    facts = ", ".join(f"{key}={about[key]}" for key in ("model", "weights", "workload", "requests", "ctx", "output_tokens", "chunk"))
    console.print(f"Open-loop replay of {path.name}: {facts}", highlight=False, markup=False)
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for number, name in enumerate(COLUMNS):
        table.add_column(name, justify="left" if number < 3 else "right", no_wrap=True)
    for job, row in rows:
        if "error" not in row:
            kept, slots = row["attention_kept"], job.engine_config().slots_per_block
            held, ideal = (row[name] * slots / job.block_size for name in ("blocks_held", "blocks_ideal"))
            table.add_row(
                str(job.policy),
                f"{job.budget}",
                job.runtime,
                "-" if kept is None else f"{kept:.1%}",
                f"{held:,.1f}",
                f"{ideal:,.1f}",
                f"{held / ideal:.2f}",
                f"{row['waste']:.1%}",
                f"{row['moves']:,}",
                f"{row['seconds'] * 1e3:,.0f}",
            )
    console.print(table)
    for job, row in rows:
        if "error" in row:
            console.print(f"{job.label}: {row['error']}", style="red", highlight=False, markup=False, soft_wrap=True)
    for note in notes:
        console.print(f"Note: {note}", highlight=False, markup=False)
    console.print(
        "kept: the share of the full cache's attention, once something was evicted, that fell on live tokens. held, ideal: blocks, "
        "mean over the steps. Open-loop: evictions do not change later queries, so real runs differ; blocks, moves and waste are exact "
        "for these victims.",
        highlight=False,
    )
