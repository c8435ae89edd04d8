"""python -m vtoken_sdk.quality DIR [--against POLICY]: the quality of a sweep's jobs over its seeds, with 95 % intervals."""

from __future__ import annotations

import argparse
from pathlib import Path

from rich.console import Console
from rich.table import Table

from vtoken_sdk.bootstrap import DRAWS, Interval
from vtoken_sdk.tracking.files import read_json

from .table import read_cases, table

SMALL_MODELS = "small model"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m vtoken_sdk.quality", description=__doc__)
    parser.add_argument("dir", type=Path, metavar="DIR", help="folder of a sweep that judged quality")
    parser.add_argument("--against", metavar="POLICY", help="pair with this policy's jobs, item by item, instead of with the full cache")
    args = parser.parse_args()
    cases = read_cases(args.dir)
    if not cases:
        parser.error(f"{args.dir}: no finished job has a quality.parquet; run vtoken-sweep with real weights and quality.mode=on")
    policies = sorted({str(case.config["policy"]) for case in cases if case.config["policy"] is not None})
    if args.against is not None and args.against not in policies:
        parser.error(f"--against {args.against}: no finished job has this policy; use one of {', '.join(policies)}")
    lines = table(cases, args.against)
    shown = Table(box=None, pad_edge=False, header_style="")
    for head in ("suite", "figure", "of", "mean", f"less {args.against or 'full cache'}", "seeds", "items", "dropped"):
        shown.add_column(head, justify="left" if head in ("suite", "figure", "of") else "right", overflow="fold")
    for line in lines:
        counts = (line.mean.seeds, line.mean.items, line.dropped)
        shown.add_row(line.suite, line.figure, line.label, _text(line.mean), _text(line.difference), *map(str, counts))
    console = Console(highlight=False, markup=False)
    console.print(shown)
    console.print(
        f"In brackets: 95 % intervals, bootstrap over the seeds and over the items within each, {DRAWS:,} draws; differences are paired "
        "item by item. Few seeds give intervals that are too narrow. Items that the full cache fails are dropped."
    )
    for note in read_json(args.dir / "plan.json").get("notes", []):
        if SMALL_MODELS in note:
            console.print(f"Note: {note}.")


def _text(value: Interval | None) -> str:
    if value is None:
        return "-"
    return f"{value.mean:.3f}" + (f" [{value.low:.3f}, {value.high:.3f}]" if value.low is not None else "")


if __name__ == "__main__":
    main()
