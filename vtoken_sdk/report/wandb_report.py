"""The report on W&B, by its Reports API: first as a specification in a file, which needs no account and no network, then sent."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vtoken_sdk.paper import ADMITS, ADMITS_SMALLER
from vtoken_sdk.tracking.files import read_json, write_json

from .document import Document, Part
from .figures import quality_figures
from .markdown import part_lines
from .parts import View, document

FILE = "wandb_report.json"
# Panels beside a part's text, over the runs of the sweep: (kind, title, x, y). Names are those of steps.parquet and results.parquet.
PANELS: dict[str, Sequence[tuple[str, str, str, Sequence[str]]]] = {
    "throughput": [("scatter", "Throughput against p95 ITL", "itl_ms_p95", ["output_tok_s"])],
    "steps": [
        ("line", "Blocks held", "step", ["blocks_held"]),
        ("line", "Utilization", "step", ["utilization"]),
        ("line", "Waste", "step", ["waste"]),
        ("line", "Concurrency", "step", ["running"]),
    ],
    "capacity": [
        ("bar", "Requests at once, measured", "", ["concurrency_peak"]),
        ("bar", f"Estimate: in {ADMITS[ADMITS_SMALLER]:,} blocks", "", [ADMITS_SMALLER]),
    ],
    "compaction": [("scatter", "Moved against held", "bytes_moved", ["blocks_held"])],
    "overhead": [("bar", "Host ms a step", "", ["model_ms", "policy_ms", "table_ms", "plan_ms", "copy_ms"])],
}


def share(view: View, folder: Path, mode: str, project: str, timeout: float) -> str:
    """Writes the specification and, if mode is "online", sends it: at most `timeout` seconds. One line on how it went. Raises OSError."""
    path = folder / FILE
    sent = {key: value for key, value in read_json(path).items() if key in ("id", "url")}
    write_json(path, specification(view, document(view), project) | sent)
    shown = os.path.relpath(path)
    if mode != "online":
        return f"W&B report: {shown}; to send it: the same command with WANDB_MODE=online"
    if importlib.util.find_spec("wandb_workspaces") is None:
        return f"W&B report: {shown}; not sent: pip install 'vtoken-sdk[wandb-reports]', and the same command sends it"
    answer = _send(path, timeout)
    if "url" not in answer:
        return f"warning: W&B report not sent ({answer['problem']}); {shown} is whole, and the same command sends it"
    write_json(path, read_json(path) | answer)
    return f"W&B report: {answer['url']}"


def specification(view: View, report: Document, project: str) -> dict[str, Any]:
    """Title, the groups that the runs are in, and blocks: headings, Markdown, code and panels."""
    blocks: list[dict[str, Any]] = [{"kind": "markdown", "text": "\n".join(f"> {sentence}\n" for sentence in report.verdict)}]
    blocks += [{"kind": "callout", "text": f"{caveat}."} for caveat in report.caveats]
    for number, part in enumerate(report.parts, start=1):
        blocks.append({"kind": "heading", "text": f"{number}. {part.title}"})
        blocks += _blocks(view, part)
    return {
        "title": f"vtoken-sdk: {report.name}"[:128],
        "description": report.subtitle,
        "project": project,
        "groups": list(dict.fromkeys(sweep.name for sweep in view.record.sweeps)),
        "blocks": blocks,
    }


def _blocks(view: View, part: Part) -> list[dict[str, Any]]:
    text = "\n".join(line for line in part_lines(part) if not line.startswith("Plots, in the HTML report")).strip()
    blocks: list[dict[str, Any]] = [{"kind": "markdown", "text": text}] if text else []
    panels = list(PANELS.get(part.id, ()))
    if part.id == "quality":
        columns = [name for f in quality_figures(view.rows) if (name := f.column)]
        panels = [("scatter", f"{name} against the budget", "config:budget", [name]) for name in columns]
    if panels and not part.reason:
        blocks.append({"kind": "panels", "panels": [{"kind": kind, "title": title, "x": x, "y": list(y)} for kind, title, x, y in panels]})
    return blocks


def _send(path: Path, timeout: float) -> dict[str, str]:
    """{"id", "url"} or {"problem"}. In a process of its own, which is ended if it hangs."""
    command = [sys.executable, "-m", "vtoken_sdk.report.wandb_push", str(path)]
    pipes: Any = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    process = subprocess.Popen(command, text=True, start_new_session=True, **pipes)
    try:
        said, _ = process.communicate(timeout=timeout)
        answer: dict[str, str] = json.loads(said.splitlines()[-1])
    except subprocess.TimeoutExpired:
        return {"problem": f"no answer in {timeout:g} s"}
    except (IndexError, ValueError):
        return {"problem": f"the process that sends it ended with {process.returncode}"}
    finally:
        with contextlib.suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
    return answer
