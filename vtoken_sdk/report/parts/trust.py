"""Verdict and provenance: whether the figures may be trusted and compared, and where they come from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vtoken_sdk.report.document import Cell, Column, Part, Table
from vtoken_sdk.report.gates import gates

from .view import View

HIDDEN = ("command", "policy_source", "policy_sha256")  # told elsewhere
TONES = {"passed": "good", "failed": "bad"}


def part(view: View) -> Part:
    jobs = Counter(row["status"] for row in view.rows)
    counts = ", ".join(f"{n} {status}" for status, n in jobs.items())
    notes = [f"{len(view.rows)} jobs: {counts}. {measured(view)}", *view.record.notes]
    return Part("verdict", "Verdict and provenance", notes, [gate_table(view), *policy_table(view), provenance_table(view)])


def measured(view: View) -> str:
    """What kind of figures these are."""
    real = {row["weights"] for row in view.done} - {"auto"}
    weights = " and ".join(f"{kind} weights" for kind in sorted(map(str, real))) or "nothing run"
    return f"Measured on a real engine, {weights}; nothing is simulated, except the columns called estimates."


def gate_table(view: View) -> Table:
    rows = [
        [Cell(g.name), Cell(g.state, tone=TONES.get(g.state, "")), Cell(g.detail)] for g in gates(view.rows, view.baselines, view.record)
    ]
    return Table([Column("gate", text=True), Column("state", text=True), Column("what was found", text=True)], [rows], "Gates")


def policy_table(view: View) -> list[Table]:
    """Each policy with the hash of the source that ran."""
    found: dict[tuple[str, str], str] = {}
    for row in view.rows:
        if row["policy"] is not None:
            facts = view.record.provenance(row["job"])
            digest = facts.get("policy_sha256") or view.record.config(row["job"]).get("policy_sha256")
            name = Path(str(facts["policy_source"])).name if facts.get("policy_source") else ""
            key = (str(row["policy"]), str(digest or "not recorded"))
            found[key] = name or found.get(key, "")
    columns = [Column("policy", text=True), Column("source", text=True), Column("SHA-256 of the source", text=True)]
    rows = [[Cell(policy), Cell(source or "-"), Cell(digest)] for (policy, digest), source in found.items()]
    return [Table(columns, [rows], "Policies")] if rows else []


def _with_versions(facts: Mapping[str, Any]) -> dict[str, Any]:
    """All versions as one fact."""
    versions = {key.removeprefix("version_"): value for key, value in facts.items() if key.startswith("version_") and value is not None}
    others = {key: value for key, value in facts.items() if not key.startswith("version_")}
    return others | ({"versions": ", ".join(f"{name.replace('_', '-')} {value}" for name, value in versions.items())} if versions else {})


def provenance_table(view: View) -> Table:
    """Every fact; where jobs differ, each value with its number of jobs."""
    values: dict[str, Counter[str]] = {}
    for row in view.rows:
        facts = _with_versions(view.record.provenance(row["job"]))
        for key, value in facts.items():
            if key not in HIDDEN and value is not None:
                values.setdefault(key, Counter())[str(value)] += 1
    rows = []
    for key, counted in values.items():
        several = [f"{value} ({n} job{'s' * (n != 1)})" for value, n in counted.items()]
        rows.append([Cell(key.replace("_", " ")), Cell("; ".join(several) if len(counted) > 1 else next(iter(counted)))])
    return Table([Column("fact", text=True), Column("value", text=True)], [rows], "Provenance")
