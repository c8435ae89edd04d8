"""vtoken-report: from the folders of sweeps to a report. Imports nothing heavy: help and errors do not wait."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from vtoken_sdk.nearest import did_you_mean

if TYPE_CHECKING:
    from rich.console import Console

    from .parts import View

USAGE = """A report of one sweep, or of several as one: twelve parts from the verdict to the exact command.
Without --out, report.FORMAT is written into DIR; of several DIRs, into the current folder."""
EXITS = """exit codes: 0 the report is written; 2 usage, nothing is written; with --strict also 3 some jobs failed or are missing,
4 all jobs are done but a gate failed (part 1 of the report lists the gates)"""
FAILED, GATE = 3, 4


def main() -> None:
    try:
        sys.exit(run(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(130)


def run(args: Sequence[str]) -> int:
    """The exit code."""
    parser = _parser()
    given, unknown = parser.parse_known_args(args)
    if unknown:
        known = [option for action in parser._actions for option in action.option_strings]
        parser.error(f"{unknown[0]}: no such option{did_you_mean(unknown[0].partition('=')[0], known)}")
    formats = _formats(parser, given.format)
    from rich.console import Console

    from .compare import BaselineError
    from .record import RecordError, read_record
    from .terminal import width_of_output
    from .write import view_of, write_reports

    folder = given.out or (given.dirs[0] if len(given.dirs) == 1 else Path())
    try:
        record = read_record(given.dirs)
        view = view_of(record, given.baseline, shlex.join(["vtoken-report", *args]))
        folder.mkdir(parents=True, exist_ok=True)
        written = write_reports(view, folder, formats)
    except (RecordError, BaselineError) as error:
        _refuse(str(error))
    except OSError as error:
        _refuse(f"{folder}: {error.strerror or error}; name a folder that can be written, --out PATH")
    console = Console(width=width_of_output(), highlight=False, markup=False, soft_wrap=True)
    for path in written:
        console.print(f"Report: {os.path.relpath(path)}")
    if given.wandb:
        from .wandb_report import share

        console.print(share(view, folder, _wandb_mode(), given.project, given.timeout))
    return _judge(console, view) if given.strict else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "vtoken-report", description=USAGE, epilog=EXITS, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("dirs", metavar="DIR", nargs="+", type=Path, help="folder of a sweep (its dir=)")
    parser.add_argument("--format", default="html", help="one or more of html, md, csv, json, parquet, tex, with commas (html)")
    parser.add_argument("--baseline", default="native", help="runtime or policy that differences are to (native)")
    parser.add_argument("--out", type=Path, help="folder for the report")
    parser.add_argument("--strict", action="store_true", help="fail if jobs or gates did")
    parser.add_argument("--wandb", action="store_true", help="a W&B report as well: written as a file, and sent where WANDB_MODE=online")
    parser.add_argument("--project", default="vtoken-sdk", help="W&B project of the sweeps' runs (vtoken-sdk)")
    parser.add_argument("--timeout", type=float, default=30, help="seconds that W&B may take (30)")
    return parser


def _formats(parser: argparse.ArgumentParser, text: str) -> list[str]:
    from .write import FORMATS

    formats = list(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    for form in formats:
        if form not in FORMATS:
            parser.error(f"--format {form}: use {', '.join(FORMATS)}, one or more with commas{did_you_mean(form, FORMATS)}")
    if not formats:
        parser.error(f"--format: name at least one of {', '.join(FORMATS)}")
    return formats


def _wandb_mode() -> str:
    """Nothing is sent unless it was asked for, as in a sweep."""
    return "online" if os.environ.get("WANDB_MODE") in ("online", "run", "shared") else "offline"


def _judge(console: Console, view: View) -> int:
    """3 goes before 4: gates of half the jobs say little."""
    from .gates import gates

    without = sum(row["status"] != "done" for row in view.rows)
    failed = [gate for gate in gates(view.rows, view.baselines, view.record) if gate.state == "failed"]
    if without:
        console.print(f"strict: {without} of {len(view.rows)} jobs failed or are missing")
    for gate in failed:
        console.print(f"strict: {gate.name}: {gate.detail}")
    return FAILED if without else GATE if failed else 0


def _refuse(message: str) -> NoReturn:
    print(f"vtoken-report: {message}", file=sys.stderr)
    sys.exit(2)


if __name__ == "__main__":
    main()
