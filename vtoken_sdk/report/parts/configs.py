"""What differs between the jobs' configurations, and what they share."""

from __future__ import annotations

from typing import Any

from vtoken_sdk.report.document import Cell, Column, Part, Table

from .view import View

TITLE = "Configurations"
VALUES = 6  # of a key, spelled out


def part(view: View) -> Part:
    configs = {row["job"]: view.record.config(row["job"]) for row in view.rows}
    known = [config for config in configs.values() if config]
    if not known:
        return Part("configs", TITLE, reason="Not recorded: these folders hold results without their jobs' configurations.")
    keys = list(dict.fromkeys(key for config in known for key in config))
    differing = [key for key in keys if len(_values(known, key)) > 1]
    shared = [key for key in keys if key not in differing and _values(known, key)]
    notes = [] if differing else ["All jobs have the same configuration."]
    notes.append("What does not apply to a runtime is left out for it.")
    tables = [_axes(known, differing), _jobs(view, differing)] if differing else []
    rows = [[Cell(key), Cell(_values(known, key)[0])] for key in shared]
    return Part("configs", TITLE, notes, [*tables, Table(_columns("key", "value"), [rows], "Shared by all")])


def _columns(*heads: str) -> list[Column]:
    return [Column(head, text=True) for head in heads]


def _values(configs: list[Any], key: str) -> list[str]:
    """As text, so that 1 and 1.0 differ; None does not apply."""
    return list(dict.fromkeys(str(config[key]) for config in configs if config.get(key) is not None))


def _axes(configs: list[Any], keys: list[str]) -> Table:
    rows = []
    for key in keys:
        values = _values(configs, key)
        more = f", and {len(values) - VALUES} more" if len(values) > VALUES else ""
        rows.append([Cell(key), Cell(str(len(values))), Cell(", ".join(v[:40] for v in values[:VALUES]) + more)])
    return Table([Column("key", text=True), Column("values"), Column("which", text=True)], [rows], "What differs")


def _jobs(view: View, keys: list[str]) -> Table:
    rows = []
    for row in view.rows:
        config = view.record.config(row["job"])
        rows.append([Cell(row["job"]), *(Cell("-" if config.get(key) is None else str(config[key])[:24]) for key in keys)])
    return Table(_columns("job", *keys), [rows], "Job by job")
