"""The twelve parts of a report, one a file, each made of a `View` of the record. One with nothing to show says why."""

from __future__ import annotations

from collections.abc import Callable

from vtoken_sdk.report.document import Document, Part
from vtoken_sdk.report.verdict import caveats, verdict

from . import capacity, command, compaction, configs, failures, main_table, occupancy, over_steps, overhead, quality, throughput, trust
from .view import View

PARTS: tuple[Callable[[View], Part], ...] = (
    trust.part,
    main_table.part,
    quality.part,
    throughput.part,
    over_steps.part,
    occupancy.part,
    capacity.part,
    compaction.part,
    overhead.part,
    configs.part,
    failures.part,
    command.part,
)


def document(view: View) -> Document:
    """The report, whatever form it will take."""
    return Document(
        view.record.name, view.subtitle, verdict(view.rows) or ["No job finished."], caveats(view.done), [p(view) for p in PARTS]
    )


__all__ = ["PARTS", "View", "document"]
