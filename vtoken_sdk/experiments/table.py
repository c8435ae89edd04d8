"""An experiment's findings on the terminal and as a file."""

from __future__ import annotations

from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from .finding import Outcome
from .runs import Runs

WIDE = 110  # characters
COLORS = {"within": "green", "better": "green", "missed": "red", "open": "yellow", "not measured": "yellow", "no figure": ""}


def print_outcome(console: Console, name: str, outcome: Outcome, runs: Runs) -> None:
    """Measured beside the paper's; misses are shown as such. Where the width is short, the notes follow the table."""
    wide = console.width >= WIDE
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), show_edge=False)
    for head in ("metric", "setting"):
        table.add_column(head, overflow="fold")
    for head in ("measured", "paper", "verdict"):
        table.add_column(head, justify="left" if head == "verdict" else "right", no_wrap=True)
    if wide:
        table.add_column("note", overflow="fold")
    for finding in outcome.findings:
        verdict = Text(finding.verdict, style=COLORS[finding.verdict])
        note = [finding.note] if wide else []
        table.add_row(finding.metric, finding.setting, finding.shown, finding.paper_shown, verdict, *note)
    console.print()
    console.print(Text(f"Experiment {name}: {outcome.question}", style="bold"))
    console.print(table)
    for finding in outcome.findings:
        if finding.note and not wide:
            console.print(Text(f"{finding.metric}, {finding.setting}: {finding.note}"))
    for line in (*outcome.notes, *caveats(runs)):
        console.print(Text(line, style="yellow"))


def caveats(runs: Runs) -> list[str]:
    """What sets this sweep apart from the paper's setting, which is one of 7B to 8B models on a GPU."""
    models = sorted({str(run["model"]) for run in runs.runs})
    devices, weights = {run["device"] for run in runs.runs}, {run["weights"] for run in runs.runs}
    said = []
    if runs.missing:
        said.append(f"{runs.missing} jobs of the experiment failed or did not run.")
    if runs.runs:
        with_weights = " with random weights" if weights == {"dummy"} else ""
        what = f"{', '.join(models)}{with_weights}, {', '.join(sorted(devices))}"
        said.append(f"Measured on {what}; the paper's figures are of 7B to 8B models on a GPU.")
    if "cpu" in devices:
        said.append("CPU times compare the runtimes of one sweep on one machine; memory figures do not depend on the device.")
    return said


def as_json(name: str, outcome: Outcome, runs: Runs) -> dict[str, Any]:
    """experiment.json."""
    return {
        "experiment": name,
        "question": outcome.question,
        "caveats": [*outcome.notes, *caveats(runs)],
        "findings": [finding.as_json() for finding in outcome.findings],
        "detail": outcome.detail,
    }
