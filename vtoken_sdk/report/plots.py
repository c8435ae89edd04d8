"""Plots as inline SVG whose colors and fonts are the page's: one drawing serves light and dark."""

from __future__ import annotations

import io
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from .compare import RUNTIMES, Row
from .figures import Value

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from numpy.typing import NDArray

Steps = Mapping[str, Mapping[str, Any]]  # job -> column -> values, one a step
WIDTH, TOP = 4.2, 0.08  # of a plot and of its upper margin, inches
POINTS = 240  # a line has at most so many: enough for the page's width
# matplotlib writes these; `_svg` puts the page's variables in their place.
COLORS = {name: f"#0000{number:02x}" for number, name in enumerate((*RUNTIMES, "ink", "soft", "grid"), start=1)}
DASHES = {"native": (0, (1, 1)), "naive": (0, (5, 2)), "refill": (0, (3, 1, 1, 1)), "vtoken": "solid", "page1": (0, (7, 1))}
STYLE: Any = {
    "svg.fonttype": "none",
    "path.simplify": True,
    "font.size": 9,
    "font.family": "DejaVu Sans",
    "text.color": COLORS["ink"],
    "axes.labelcolor": COLORS["soft"],
    "axes.edgecolor": COLORS["grid"],
    "xtick.color": COLORS["soft"],
    "ytick.color": COLORS["soft"],
    "grid.color": COLORS["grid"],
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
}


@dataclass(frozen=True)
class Plot:
    title: str
    about: str
    svg: str


def bars(title: str, about: str, groups: Sequence[tuple[str, Sequence[Row]]], value: Value, digits: int = 0) -> Plot | None:
    """A bar a row, with its number; groups under their names. None where no row has the value."""
    if not any(value(row) for _, rows in groups for row in rows):
        return None

    def draw(axes: Axes) -> None:
        y, bars_at, shown = 0.0, [], []
        most = max(value(row) or 0.0 for _, rows in groups for row in rows)
        for name, rows in groups:
            if name:
                axes.text(0, y, name, va="center", fontsize=8, color=COLORS["soft"])
                y += 1
            for row in rows:
                if (number := value(row)) is not None:
                    axes.text(number + most * 0.015, y, f"{number:,.{digits}f}", va="center", fontsize=8)
                    axes.text(-most * 0.02, y, row["runtime"], va="center", ha="right", fontsize=9, color=COLORS["soft"])
                    bars_at.append(y)
                    shown.append((number, COLORS[row["runtime"]]))
                    y += 1
            y += 0.4
        axes.barh(bars_at, [number for number, _ in shown], height=0.7, color=[color for _, color in shown])
        axes.set_yticks([])
        axes.set_xlim(0, most * 1.18)
        axes.set_ylim(y - 0.7, -0.7)
        axes.locator_params(axis="x", nbins=5)

    lines = sum(len(rows) + bool(name) + 0.4 for name, rows in groups)
    return Plot(title, about, _svg(draw, height=0.45 + 0.21 * lines, left=0.58, bottom=0.25))


def over_steps(title: str, about: str, rows: Sequence[Row], steps: Steps, name: str, *, scale: float = 1.0, ideal: bool = False) -> Plot:
    """A line a row: column `name` of its steps, times `scale` and, for blocks, in blocks of one size. ideal: the fewest possible, too."""

    from matplotlib.ticker import MaxNLocator

    def draw(axes: Axes) -> None:
        for row in rows:
            columns = steps[row["job"]]
            factor = scale * (row["block_size"] if ideal else 1)
            x, y = thin(np.asarray(columns["step"], float), np.asarray([np.nan if v is None else v for v in columns[name]], float) * factor)
            width = 2.2 if row["runtime"] == "vtoken" else 1.4
            axes.plot(x, y, color=COLORS[row["runtime"]], linestyle=DASHES[row["runtime"]], linewidth=width)
        evicting = [r for r in rows if r["runtime"] not in ("native", "page1")]
        if ideal and evicting:
            columns = steps[evicting[-1]["job"]]
            x, y = thin(np.asarray(columns["step"], float), np.asarray(columns["blocks_ideal"], float) * scale * evicting[-1]["block_size"])
            axes.plot(x, y, color=COLORS["ink"], linewidth=0.8)
            at = x[len(x) // 2], y[len(x) // 2]
            axes.annotate("fewest possible", at, ha="center", va="top", xytext=(0, -4), textcoords="offset points", fontsize=8)
        axes.set_xlabel("step")
        axes.xaxis.set_major_locator(MaxNLocator("auto", integer=True))
        axes.set_ylim(bottom=0)
        axes.margins(x=0.01)
        if name == "running":
            axes.yaxis.set_major_locator(MaxNLocator("auto", integer=True))
        if name == "utilization":
            axes.set_ylim(0, 103)
            axes.set_ylabel("utilization, %")
            right = axes.secondary_yaxis("right", functions=(_rest, _rest))
            right.set_ylabel("waste, %")
            right.spines["right"].set_visible(False)

    return Plot(title, about, _svg(draw, height=2.3, left=0.58, right=0.55 if name == "utilization" else 0.1, bottom=0.45))


def _rest(percent: Any) -> Any:
    return 100 - percent


def thin(x: NDArray[np.float64], y: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """At most about POINTS points: the lowest and the highest of each stretch, so that peaks stay."""
    if len(x) <= POINTS:
        return x, y
    keep = [0, len(x) - 1]
    for part in np.array_split(np.arange(len(x)), POINTS // 2):
        if not np.isnan(y[part]).all():
            keep += [part[np.nanargmin(y[part])], part[np.nanargmax(y[part])]]
    order = np.unique(keep)
    return x[order], y[order]


def _svg(draw: Callable[[Axes], None], *, height: float, left: float, right: float = 0.1, bottom: float) -> str:
    """height and margins: inches; the page scales the width. Without ids that two drawings on one page would share."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    logging.getLogger("matplotlib").setLevel(logging.ERROR)
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(WIDTH, height))
        draw(figure.add_axes((left / WIDTH, bottom / height, 1 - (left + right) / WIDTH, 1 - (bottom + TOP) / height)))
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r'<g id="[a-zA-Z_0-9]+">', "<g>", text)
    text = re.sub(r' (?:width|height)="[\d.]+pt"', "", text, count=2)
    text = re.sub(r'="[^"]*"', lambda attribute: re.sub(r"(\d\.\d)\d+", r"\1", attribute[0]), text)
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = text.replace("'DejaVu Sans'", "system-ui, sans-serif").replace("'Bitstream Vera Sans'", "sans-serif")
    text = re.sub(r"fill: #ffffff(?=[;\"])", "fill: none", text)
    for name, color in COLORS.items():
        text = text.replace(color, f"var(--{'line' if name == 'grid' else name})")
    return re.sub(r">\s+<", "><", text)
