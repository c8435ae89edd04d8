"""The exact commands: what made the figures, what runs them again, what made this report."""

from __future__ import annotations

import shlex

from vtoken_sdk.report.document import Part

from .view import View

TITLE = "Commands"


def part(view: View) -> Part:
    swept = [sweep.command for sweep in view.record.sweeps]
    notes = ["The command of each sweep, as it was typed."]
    if not all(swept):
        notes.append("A folder without plan.json does not say its command.")
    code = list(dict.fromkeys(command for command in swept if command))
    if any(row["status"] != "done" for row in view.rows):
        notes.append("The same command with dir= runs what is failed or missing, and nothing else.")
    if any(sweep.configs.get(row["job"]) for sweep in view.record.sweeps for row in sweep.rows):
        notes.append("One job alone, from its record:")
        home = view.record.sweeps[0]
        job = next((row["job"] for row in home.rows), "JOB")
        code.append(shlex.join(["vtoken-sweep", f"from={home.path / 'jobs' / str(job)}"]))
    return Part("commands", TITLE, notes, code=[*code, *([view.again] if view.again else [])])
