"""The process that sends a report's specification to W&B.

`python -m vtoken_sdk.report.wandb_push FILE` prints {"id", "url"} or {"problem"}.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vtoken_sdk.tracking.home import writable_home


def main() -> None:
    writable_home()
    try:
        answer = push(json.loads(Path(sys.argv[1]).read_text()))
    except Exception as error:  # whatever W&B raises is a line for the user
        answer = {"problem": f"{type(error).__name__}: {error}".partition("\n")[0]}
    print(json.dumps(answer))


def push(specification: Mapping[str, Any]) -> dict[str, str]:
    """Creates the report, or replaces the one that the specification names. Raises what W&B raises."""
    import wandb
    import wandb_workspaces.reports.v2 as wr

    entity = wandb.Api().default_entity
    project = specification["project"]
    runs = wr.Runset(entity=entity, project=project, name="runs of the sweep", filters=_of_groups(specification["groups"]))
    report = wr.Report(
        project=project,
        entity=entity,
        title=specification["title"],
        description=specification["description"],
        blocks=[_block(block, runs) for block in specification["blocks"]],
        width="fluid",
    )
    report.id = specification.get("id", "")
    report.save()
    return {"id": report.id, "url": report.url}


def _of_groups(groups: list[str]) -> Any:
    from wandb_workspaces import expr

    return [expr.Metric("Group").isin(groups)]


def _block(block: Mapping[str, Any], runs: Any) -> Any:
    import wandb_workspaces.reports.v2 as wr

    match block["kind"]:
        case "heading":
            return wr.H2(text=block["text"])
        case "markdown":
            return wr.MarkdownBlock(text=block["text"])
        case "callout":
            return wr.CalloutBlock(text=block["text"])
        case "panels":
            return wr.PanelGrid(runsets=[runs], panels=[_panel(panel, n) for n, panel in enumerate(block["panels"])])
    raise ValueError(f"a block of the unknown kind {block['kind']}")


def _panel(panel: Mapping[str, Any], number: int) -> Any:
    import wandb_workspaces.reports.v2 as wr

    layout = wr.Layout(x=8 * (number % 3), y=6 * (number // 3), w=8, h=6)
    match panel["kind"]:
        case "line":
            return wr.LinePlot(title=panel["title"], x=panel["x"], y=panel["y"], layout=layout)
        case "scatter":
            return wr.ScatterPlot(title=panel["title"], x=_axis(panel["x"]), y=_axis(panel["y"][0]), layout=layout)
        case "bar":
            return wr.BarPlot(title=panel["title"], metrics=[_axis(name) for name in panel["y"]], layout=layout)
    raise ValueError(f"a panel of the unknown kind {panel['kind']}")


def _axis(name: str) -> Any:
    import wandb_workspaces.reports.v2 as wr

    return wr.Config(name.removeprefix("config:")) if name.startswith("config:") else wr.SummaryMetric(name)


if __name__ == "__main__":
    main()
