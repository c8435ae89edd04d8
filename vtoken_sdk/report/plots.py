"""Plots as inline SVG whose colors and fonts are the page's: one drawing serves light and dark. So are legends: none covers a line."""

from __future__ import annotations

import io
import logging
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import fmean
from typing import TYPE_CHECKING, Any

import numpy as np

from .compare import RUNTIMES
from .document import Key, Plot

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from numpy.typing import NDArray

WIDTH, TOP = 4.2, 0.08  # of a plot and of its upper margin, inches
POINTS = 240  # a line has at most so many: enough for the page's width
SERIES = tuple(f"s{n}" for n in range(1, 9))  # colors of what has no color of its own, such as policies
PARTS_OF_A_STEP = ("model", "policy", "table", "plan", "copy")
# matplotlib writes these; `_svg` puts the page's variables in their place.
COLORS = {name: f"#0000{number:02x}" for number, name in enumerate((*RUNTIMES, *SERIES, "ink", "soft", "grid"), start=1)}
DASHES: dict[str, Any] = {
    **{"native": (0, (1, 1)), "naive": (0, (5, 2)), "refill": (0, (3, 1, 1, 1)), "vtoken": "solid", "page1": (0, (7, 1))},
    **{"solid": "solid", "dashed": (0, (5, 2)), "dotted": (0, (1, 1.5))},
}
MARKERS = {"native": "D", "naive": "v", "refill": "s", "vtoken": "o", "page1": "^"}
SIGNS = {"D": "◆", "v": "▼", "s": "■", "o": "●", "^": "▲"}  # of these markers, in a legend
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
}


NOTES = 12  # of a plot, at most: more would hide each other


@dataclass(frozen=True)
class Curve:
    """x, y: one point each; half: of its interval, 0 where there is none. marker: of its points; a line of one point needs it.

    notes: what to write beside each point, where there are few enough to read.
    """

    name: str
    color: str
    x: Sequence[float]
    y: Sequence[float]
    half: Sequence[float] = ()
    dash: str = "solid"
    marker: str = ""
    line: bool = True
    notes: Sequence[str] = ()


@dataclass(frozen=True)
class Bar:
    """parts: (color, length), one after the other. half: of the interval of their sum."""

    name: str
    parts: Sequence[tuple[str, float]]
    half: float = 0.0

    @property
    def length(self) -> float:
        return sum(length for _, length in self.parts)


def bars(title: str, about: str, groups: Sequence[tuple[str, Sequence[Bar]]], digits: int = 0, keys: Sequence[Key] = ()) -> Plot | None:
    """A bar a line, with its number; groups under their names. None where there are no bars, or all are 0."""
    groups = [(name, group) for name, group in groups if group]
    if not any(bar.length for _, group in groups for bar in group):
        return None
    most = max(bar.length + bar.half for _, group in groups for bar in group)

    def draw(axes: Axes) -> None:
        y = 0.0
        for name, group in groups:
            if name:
                axes.text(0, y, name, va="center", fontsize=8, color=COLORS["soft"])
                y += 1
            for bar in group:
                axes.text(bar.length + bar.half + most * 0.015, y, f"{bar.length:,.{digits}f}", va="center", fontsize=8)
                axes.text(-most * 0.02, y, bar.name, va="center", ha="right", fontsize=9, color=COLORS["soft"])
                left = 0.0
                for color, length in bar.parts:
                    axes.barh(y, length, left=left, height=0.7, color=COLORS[color])
                    left += length
                if bar.half:
                    axes.plot([bar.length - bar.half, bar.length + bar.half], [y, y], color=COLORS["ink"], linewidth=1)
                y += 1
            y += 0.4
        axes.set_yticks([])
        axes.set_xlim(0, most * 1.18)
        axes.set_ylim(y - 0.7, -0.7)
        axes.locator_params(axis="x", nbins=5)

    rows = sum(len(group) + bool(name) + 0.4 for name, group in groups)
    return Plot(title, about, partial(_svg, draw, height=0.45 + 0.21 * rows, left=0.58, bottom=0.25), keys)


def curves(
    title: str,
    about: str,
    shown: Sequence[Curve],
    x_label: str,
    y_label: str,
    *,
    zero: tuple[bool, bool] = (False, True),
    whole: tuple[bool, bool] = (False, False),
    limits: Sequence[tuple[float, str]] = (),
    bins: bool = False,
) -> Plot | None:
    """Lines and points. zero, whole: of x and y, whether the axis begins at 0, and has whole numbers only. limits: (x, name) of vertical
    lines. bins: y are counts between x - 0.5 and x + 0.5. None where no curve has a point.
    """
    shown = [curve for curve in shown if len(curve.x)]
    if not shown:
        return None

    def draw(axes: Axes) -> None:
        from matplotlib.ticker import MaxNLocator

        for curve in shown:
            x, y = np.asarray(curve.x, float), np.asarray(curve.y, float)
            width = 2.2 if curve.color == "vtoken" else 1.4
            style: Any = {"color": COLORS[curve.color], "linestyle": DASHES[curve.dash] if curve.line else "none", "linewidth": width}
            axes.plot(x, y, marker=curve.marker or None, markersize=5, drawstyle="steps-mid" if bins else "default", **style)
            if any(curve.half):
                axes.errorbar(x, y, yerr=np.asarray(curve.half, float), fmt="none", ecolor=COLORS[curve.color], elinewidth=1, capsize=2)
        _annotate(axes, shown)
        for at, _ in limits:
            axes.axvline(at, color=COLORS["ink"], linewidth=1, linestyle=DASHES["dashed"])
        axes.set_xlabel(x_label)
        axes.set_ylabel(y_label)
        axes.margins(x=0.01 if max(len(curve.x) for curve in shown) > 20 else 0.06)
        if any(half for curve in shown for half in curve.half):
            axes.set_ylim(_room(shown))
        if zero[0]:
            axes.set_xlim(left=0)
        if zero[1]:
            axes.set_ylim(0, axes.get_ylim()[1] * (1.04 if any(curve.marker for curve in shown) else 1))
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=whole[0]))
        axes.yaxis.set_major_locator(MaxNLocator(6, integer=whole[1]))

    keys = [_key(curve) for curve in shown if curve.name] + [Key(name, "ink", "dashed") for _, name in limits]
    return Plot(title, about, partial(_svg, draw, height=2.4, left=0.62, bottom=0.45), tuple(dict.fromkeys(keys)))


def _annotate(axes: Axes, shown: Sequence[Curve]) -> None:
    """Beside each point, on the side of the middle, where there is room."""
    notes = [note for curve in shown for note in zip(curve.x, curve.y, curve.notes, strict=False) if note[2]]
    if len(notes) > NOTES:
        return
    middle = fmean(axes.get_xlim())
    for x, y, note in notes:
        side, offset = ("right", -6) if x > middle else ("left", 6)
        axes.annotate(note, (x, y), (offset, 6), textcoords="offset points", ha=side, fontsize=8)


def _room(shown: Sequence[Curve]) -> tuple[float, float]:
    """Limits of y by the means: a wide interval is cut rather than flattening what is measured."""
    means = [y for curve in shown for y in curve.y]
    low, high = min(means), max(means)
    span = (high - low) or abs(high) or 1.0
    widest = max(half for curve in shown for half in curve.half)
    return low - min(0.5 * span, widest) - 0.05 * span, high + min(0.5 * span, widest) + 0.05 * span


def _key(curve: Curve) -> Key:
    dash = {"vtoken": "solid", "solid": "solid", "native": "dotted", "dotted": "dotted"}.get(curve.dash, "dashed")
    return Key(curve.name, curve.color, dash if curve.line else "", SIGNS.get(curve.marker, ""))


def shares(title: str, about: str, shown: Sequence[Curve], x_label: str) -> Plot | None:
    """Utilization in percent, and on the right what it leaves: waste."""
    shown = [curve for curve in shown if len(curve.x)]
    if not shown:
        return None

    def draw(axes: Axes) -> None:
        from matplotlib.ticker import MaxNLocator

        for curve in shown:
            axes.plot(
                curve.x, curve.y, color=COLORS[curve.color], linestyle=DASHES[curve.dash], linewidth=2.2 if curve.color == "vtoken" else 1.4
            )
        axes.set_xlabel(x_label)
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
        axes.margins(x=0.01)
        axes.set_ylim(0, 103)
        axes.set_ylabel("utilization, %")
        right = axes.secondary_yaxis("right", functions=(_rest, _rest))
        right.set_ylabel("waste F, %")
        right.spines["right"].set_visible(False)

    return Plot(title, about, partial(_svg, draw, height=2.4, left=0.62, right=0.55, bottom=0.45), [_key(curve) for curve in shown])


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
