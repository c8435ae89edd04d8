"""The report: one HTML file with everything in it, no scripts, nothing loaded from elsewhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import Any

from .compare import RUNTIMES, Row, baseline, fixed_label, grouped, key_of, label, show, sort_key, varying
from .figures import Figure, block_unit, figures
from .plots import Plot, Steps, bars, over_steps
from .verdict import caveats, verdict

GROUPS_DRAWN = 8  # groups of runtimes with plots over the steps


def render(name: str, rows: Sequence[Row], steps: Steps, command: str, provenance: Mapping[str, Any]) -> str:
    """The page. rows: one a job, failed ones too. steps: of the jobs that are done."""
    import jinja2

    loader = jinja2.PackageLoader("vtoken_sdk.templates", "")
    environment = jinja2.Environment(loader=loader, autoescape=True, trim_blocks=True, undefined=jinja2.StrictUndefined)
    done = sorted((r for r in rows if r["status"] == "done"), key=sort_key)
    keys = varying(rows)
    groups = grouped(done)
    columns = figures(rows)
    drawn, left_out = line_plots(groups, done, steps, keys)
    return environment.get_template("report.html").render(
        name=name,
        subtitle=fixed_label(done) if done else "",
        verdict=verdict(rows),
        caveats=caveats(done),
        unit=block_unit(done),
        differences=any(baseline(row, done) is not None for row in done),
        keys=keys,
        columns=columns,
        groups=[[table_row(row, done, keys, columns) for row in group] for group in groups],
        failed=[{**row, "label": label(row, keys)} for row in rows if row["status"] != "done"],
        runtimes=[name for name in RUNTIMES if any(r["runtime"] == name for r in done)],
        labels="; ".join(caveats(done)),
        bars=bar_plots(groups, keys),
        lines=drawn,
        left_out=left_out,
        command=command,
        provenance={key: value for key, value in provenance.items() if value is not None and key != "command"},
    )


def table_row(row: Row, done: Sequence[Row], keys: Sequence[str], columns: Sequence[Figure]) -> dict[str, Any]:
    base = baseline(row, done)
    return {
        "runtime": row["runtime"],
        "names": [show(key, key_of(row, key)) for key in keys],
        "cells": [cell(column, row, base) for column in columns],
    }


def cell(figure: Figure, row: Row, base: Row | None) -> dict[str, str]:
    change = figure.difference(row, base)
    if change is None:
        return {"text": figure.cell(row), "difference": "", "tone": ""}
    if abs(change) < 0.005:
        return {"text": figure.cell(row), "difference": "=", "tone": ""}
    shown = f"{change:+.0%}" if change < 9 else f"{change + 1:,.0f}x"
    return {"text": figure.cell(row), "difference": shown, "tone": "good" if (change > 0) == (figure.better == "more") else "bad"}


def bar_plots(groups: Sequence[Sequence[Row]], keys: Sequence[str]) -> list[Plot]:
    named = [(label(group[0], keys) if keys else "", group) for group in groups]
    drawn = [
        bars("Concurrency, measured", "most requests that held blocks at once, in this pool", named, itemgetter("concurrency_peak")),
        bars("Concurrency in 5,427 blocks", "estimate: such requests that the pool holds at once", named, itemgetter("admits_5427")),
        bars("Concurrency in 11,519 blocks", "estimate: such requests that the pool holds at once", named, itemgetter("admits_11519")),
        bars("Throughput", "output tokens a second", named, itemgetter("output_tok_s"), 1),
        bars("Latency: ITL p50", "ms between tokens, median", named, itemgetter("itl_ms_p50"), 1),
        bars("Latency: ITL p95", "ms between tokens, 95th percentile", named, itemgetter("itl_ms_p95"), 1),
        bars("Quality: KL", "divergence from the full cache, nats a token", named, itemgetter("kl"), 4),
        bars("Quality: NLL", "of the real continuation, nats a token", named, itemgetter("nll"), 3),
    ]
    return [plot for plot in drawn if plot is not None]


def line_plots(groups: Sequence[Sequence[Row]], done: Sequence[Row], steps: Steps, keys: Sequence[str]) -> tuple[list[dict[str, Any]], str]:
    """Utilization, blocks and concurrency over the steps, for each group with its native baseline; and what was left out."""
    evicting = [g for g in groups if g[0]["runtime"] != "native"] or list(groups)
    unit = block_unit(done)
    drawn = []
    for group in evicting[:GROUPS_DRAWN]:
        base = baseline(group[0], done)
        rows = [r for r in ([base] if base and base not in group else []) + list(group) if r["job"] in steps]
        plots = [
            over_steps("Blocks held", f"blocks of {unit} tokens retained", rows, steps, "blocks_held", scale=1 / unit, ideal=True),
            over_steps("Utilization and waste", "live slots of all slots in held blocks", rows, steps, "utilization", scale=100),
            over_steps("Concurrency", "requests running", rows, steps, "running"),
        ]
        drawn.append({"name": label(group[0], keys), "figures": plots})
    more = len(evicting) - GROUPS_DRAWN
    return drawn, f"{more} more combinations are not drawn; their steps are in jobs/*/steps.parquet." if more > 0 else ""
