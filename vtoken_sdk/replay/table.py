"""Replays on the terminal, in the tables of the sweep."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.text import Text

from vtoken_sdk.report.compare import Row, fixed_label
from vtoken_sdk.report.figures import Figure, block_unit, held_ratio, in_blocks_of
from vtoken_sdk.report.terminal import tables, width_of_output
from vtoken_sdk.sweep.results import job_names, job_row

if TYPE_CHECKING:
    from vtoken_sdk.sweep.job import Job


def print_replays(path: Path, about: Mapping[str, Any], replays: Sequence[tuple[Job, Mapping[str, Any]]], notes: Sequence[str]) -> None:
    """replays: each job with its figures, or with {"error": ...}."""
    console = Console(width=width_of_output(), highlight=False, markup=False)
    facts = ", ".join(f"{key}={about[key]}" for key in ("model", "weights", "workload", "requests", "ctx", "output_tokens", "chunk"))
    console.print(f"Open-loop replay of {path.name}: {facts}")
    rows: list[Row] = []
    for job, replay in replays:
        status = "failed" if "error" in replay else "done"
        rows.append({**job_row(job), "status": status, "block_size": job.engine_config().slots_per_block, **replay})
    if any(row["status"] == "done" for row in rows):
        if shared := fixed_label(rows, ("policy", "option", "budget")):
            console.print(Text(shared, style="bold"))
        for table in tables(rows, console.width, figures(block_unit(rows))):
            console.print()
            console.print(table)
        console.print()
    failed: dict[tuple[str | None, str], list[str]] = {}  # of a policy and an error: which replays
    for name, (job, replay) in zip(job_names([job for job, _ in replays]), replays, strict=True):
        if "error" in replay:
            failed.setdefault((job.policy, replay["error"]), []).append(name)
    for (policy, error), names in failed.items():
        console.print(f"failed: {names[0] if len(names) == 1 else f'{policy} ({len(names)} times)'}: {error}", style="red", soft_wrap=True)
    for note in notes:
        console.print(f"Note: {note}")
    console.print(
        "kept: the share of the full cache's attention, once something was evicted, that fell on live tokens. held, ideal: blocks, "
        "mean over the steps. Open-loop: evictions do not change later queries, so real runs differ; blocks, moves and waste are exact "
        "for these victims."
    )


def figures(unit: int) -> list[Figure]:
    """unit: tokens in the blocks that are counted."""
    return [
        Figure("kept", "attention", itemgetter("attention_kept"), ".1%", "share of the full cache's attention on live tokens"),
        Figure("held", "memory", in_blocks_of(unit, "blocks_held"), ",.1f", "blocks held: mean over the steps"),
        Figure("ideal", "memory", in_blocks_of(unit, "blocks_ideal"), ",.1f", "the fewest blocks for the live tokens"),
        Figure("held /\nideal", "memory", held_ratio, ".2f", "1.00: no block is wasted"),
        Figure("waste", "memory", itemgetter("waste"), ".1%", "share of the held slots that no live token uses"),
        Figure("moves", "memory", itemgetter("moves"), ",d", "tokens that the reclaimer moved"),
        Figure("ms", "cost", lambda row: row["seconds"] * 1e3, ",.0f", "ms of the replay"),
    ]
