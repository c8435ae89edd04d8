"""What a report says, apart from how it is written: parts with text, tables and plots. All formats are made of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property


@dataclass(frozen=True)
class Cell:
    """text; below it, small, its interval and its change against the baseline. tone: "good", "bad" or "", of the change, or of the text
    where there is none. color: a runtime or a series of the legend, or "".
    """

    text: str
    small: str = ""
    change: str = ""
    tone: str = ""
    color: str = ""

    @property
    def below(self) -> str:
        return ", ".join(filter(None, (self.small, self.change)))

    @property
    def flat(self) -> str:
        """Where there is one size and one line."""
        return f"{self.text} ({self.below})" if self.below else self.text


@dataclass(frozen=True)
class Column:
    """head: lines, separated by newlines. about: a sentence. text: names stand left, numbers right."""

    head: str
    about: str = ""
    text: bool = False

    @property
    def title(self) -> str:
        return self.head.replace("\n", " ")


@dataclass(frozen=True)
class Table:
    """groups of rows, a line between two groups."""

    columns: Sequence[Column]
    groups: Sequence[Sequence[Sequence[Cell]]]
    title: str = ""

    @property
    def rows(self) -> list[Sequence[Cell]]:
        return [row for group in self.groups for row in group]


@dataclass(frozen=True)
class Key:
    """An entry of a legend. color: the name of one of the page's colors. dash: of its line, "" for none; mark: a sign like its points'."""

    name: str
    color: str
    dash: str = "solid"
    mark: str = ""


@dataclass(frozen=True)
class Plot:
    """draw: gives the SVG; it is called where the drawing is shown, which most formats do not."""

    title: str
    about: str
    draw: Callable[[], str]
    keys: Sequence[Key] = ()

    @cached_property
    def svg(self) -> str:
        return self.draw()


@dataclass(frozen=True)
class Panel:
    """Plots side by side, under a name."""

    plots: Sequence[Plot]
    name: str = ""


@dataclass(frozen=True)
class Part:
    """notes: sentences. reason: why there is nothing to show; a part is never empty without one. code: commands, each as it is typed."""

    id: str
    title: str
    notes: Sequence[str] = ()
    tables: Sequence[Table] = ()
    panels: Sequence[Panel] = ()
    code: Sequence[str] = ()
    reason: str = ""

    def __post_init__(self) -> None:
        assert self.notes or self.tables or self.panels or self.code or self.reason, f"{self.id} shows nothing and does not say why"


@dataclass(frozen=True)
class Document:
    """verdict: sentences; caveats: what a reader must know before quoting a figure, also beside the plots."""

    name: str
    subtitle: str
    verdict: Sequence[str]
    caveats: Sequence[str]
    parts: Sequence[Part] = field(default_factory=tuple)
