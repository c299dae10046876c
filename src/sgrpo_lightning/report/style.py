"""How every figure of this library looks, in a run's folder and in the notebooks.

Colours are those of Okabe and Ito, and a wine red, which people with any colour blindness tell apart. An objective
keeps its colour in all figures. Lines differ by dashes too, so that a grey print is enough.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from typing import Any

import matplotlib as mpl
import numpy as np
from cycler import cycler
from matplotlib.axes import Axes
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure

Look = dict[str, Any]
"""Keywords of `Axes.plot`."""

BLUE, VERMILLION, GREEN, ORANGE = "#0072B2", "#D55E00", "#009E73", "#E69F00"
SKY, PURPLE, BLACK, WINE = "#56B4E9", "#CC79A7", "#000000", "#882255"
PALETTE = (BLUE, VERMILLION, GREEN, ORANGE, PURPLE, SKY, WINE, BLACK)

STYLE: dict[Any, Any] = {
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.labelsize": 16,
    "axes.prop_cycle": cycler(color=PALETTE),
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlelocation": "left",
    "axes.titlepad": 14,
    "axes.titlesize": 19,
    "axes.titleweight": "bold",
    "figure.dpi": 100,
    "font.size": 15,
    "grid.alpha": 0.3,
    "image.cmap": "cividis",
    "legend.fontsize": 14,
    "legend.frameon": False,
    "lines.linewidth": 3,
    "lines.markersize": 7,
    "xtick.labelsize": 14,
    "ytick.labelsize": 14,
}

_LOOKS: dict[str, tuple[str, str, Any, str]] = {  # name to show, colour, dashes, marker
    "reinforce": ("REINFORCE", ORANGE, "-", "s"),
    "exact_reinforce": ("REINFORCE, exact", ORANGE, "--", "8"),
    "rloo": ("RLOO", ORANGE, "-.", "p"),
    "dr_grpo": ("Dr. GRPO", ORANGE, ":", "h"),
    "grpo": ("GRPO", VERMILLION, "--", "^"),
    "softmax_grpo": ("SoftmaxGRPO", BLUE, "-", "o"),
    "exact_softmax_grpo": ("SoftmaxGRPO, exact", BLUE, "--", "d"),
    "softmax_grpo_adaptive": ("SoftmaxGRPO, adaptive", WINE, "-", "D"),
    "maxrl": ("MaxRL", GREEN, "-.", "v"),
    "pass_at_k": ("pass@k", SKY, (0, (5, 1, 1, 1, 1, 1)), "P"),
    "cross_entropy": ("cross-entropy", BLACK, ":", "*"),
    "ml": ("maximum likelihood", BLACK, ":", "*"),
}
_DASHES, _MARKERS = ("-", "--", "-.", ":"), "XD^sovp*"
_STRANGERS = (PURPLE, "#7F7F7F", SKY, WINE)


@contextmanager
def figure_style() -> Iterator[None]:
    """The style as a context manager, and as a decorator of functions that draw."""
    with mpl.rc_context(STYLE):
        yield


def use_style() -> None:
    """The style for everything that is drawn from here on: the first line of a notebook."""
    mpl.rcParams.update(STYLE)


def name_of(objective: str) -> str:
    """The name to show of an objective; a name that is not known is shown as it is."""
    return _LOOKS[objective][0] if objective in _LOOKS else objective


def look(objective: str) -> Look:
    """Colour and dashes of an objective's line. Objectives of your own share purple.

    >>> look("softmax_grpo")
    {'color': '#0072B2', 'linestyle': '-'}
    """
    _, colour, dashes, _ = _LOOKS.get(objective, ("", PURPLE, "-", ""))
    return {"color": colour, "linestyle": dashes}


def shades(objective: str, number: int) -> list[Look]:
    """Looks for `number` settings of one objective, such as temperatures: its colour from light to dark.

    One hue that grows darker is told apart by everyone; dashes help beyond that.
    """
    if number == 1:
        return [look(objective)]
    colour, looks = np.array(to_rgb(look(objective)["color"])), []
    for index, tone in enumerate(np.linspace(-0.5, 0.5, number)):
        mixed = colour * (1 - tone) if tone > 0 else colour + (1 - colour) * -tone
        looks.append({"color": to_hex(mixed), "linestyle": _DASHES[(number - 1 - index) % len(_DASHES)]})
    return looks


def looks_of(objectives: Sequence[str]) -> list[Look]:
    """A look with a marker for each of several lines, of which some may share an objective.

    Lines of one objective get its shades. Objectives that are not of this library share the colours that are left.
    """
    ramps = {objective: iter(shades(objective, times)) for objective, times in Counter(objectives).items()}
    looks: list[Look] = []
    strangers = count()
    for objective in objectives:
        if objective in _LOOKS:
            looks.append({**next(ramps[objective]), "marker": _LOOKS[objective][3]})
            continue
        turn, colour = divmod(place := next(strangers), len(_STRANGERS))
        marker = _MARKERS[(place + turn // len(_DASHES)) % len(_MARKERS)]
        looks.append({"color": _STRANGERS[colour], "linestyle": _DASHES[turn % len(_DASHES)], "marker": marker})
    return looks


def headline(figure: Figure, message: str) -> None:
    """Write the message of a figure above it."""
    figure.suptitle(message, x=0.01, ha="left", fontsize=STYLE["axes.titlesize"], fontweight="bold")


def slide(
    message: str, *, xlabel: str = "", ylabel: str | Sequence[str] = "", panels: int = 1, height: float = 5.6
) -> tuple[Figure, Any]:
    """A figure of one message, which is its title, with a row of panels.

    Args:
        message: what the figure shows, as a sentence.
        xlabel, ylabel: of the axes; a sequence gives each panel its own ylabel.
        panels: side by side; with one, its axes are returned alone, with more an array of them.
        height: in inches; the width is 10.5, or 12 with two panels, or 13.5 with more.

    Returns:
        (figure, axes). The figure, as the last line of a cell, shows itself.
    """
    with figure_style():
        figure = Figure(figsize=({1: 10.5, 2: 12}.get(panels, 13.5), height), layout="constrained")
        axes = figure.subplots(1, panels, squeeze=False)[0]
        headline(figure, message)
        for each, label in zip(axes, [ylabel] * panels if isinstance(ylabel, str) else ylabel, strict=True):
            each.set(xlabel=xlabel, ylabel=label)
    return figure, axes[0] if panels == 1 else axes


def label_lines(axes: Axes, *, size: float = 14) -> None:
    """Writes the label of each line beside its right end, in its colour, without one covering another.

    Call it last, when the limits of the axes are what they will be.
    """
    axes.autoscale_view()  # matplotlib would do so only when it draws
    lines = [line for line in axes.lines if not str(line.get_label()).startswith("_")]
    ends = np.array([[np.asarray(line.get_xdata())[-1], np.asarray(line.get_ydata())[-1]] for line in lines])
    to_axes = axes.transData + axes.transAxes.inverted()
    heights = to_axes.transform(ends.reshape(-1, 2))[:, 1].clip(0, 1)
    gap = 1.25 * size / 72 / (axes.get_position().height * axes.figure.get_size_inches()[1])  # type: ignore[union-attr]
    order = np.argsort(heights)
    for index, height in zip(order, spread(heights[order], gap), strict=True):
        line = lines[index]
        axes.annotate(
            str(line.get_label()),
            (1, height),
            xycoords="axes fraction",
            xytext=(8, 0),
            textcoords="offset points",
            va="center",
            color=line.get_color(),
            fontsize=size,
            fontweight="bold",
            annotation_clip=False,
        )


def spread(heights: np.ndarray, gap: float) -> np.ndarray:
    """Ascending heights moved as little as needed to be `gap` apart: blocks of neighbours around their mean.

    >>> spread(np.array([0.5, 0.5, 0.9]), 0.1).round(3).tolist()
    [0.45, 0.55, 0.9]
    """
    steps = gap * np.arange(len(heights))
    blocks: list[list[float]] = []  # sum and count of what stays together, once the steps are taken off
    for value in heights - steps:
        blocks.append([value, 1])
        while len(blocks) > 1 and blocks[-2][0] / blocks[-2][1] > blocks[-1][0] / blocks[-1][1]:
            total, count = blocks.pop()
            blocks[-1][0] += total
            blocks[-1][1] += count
    means = [total / count for total, count in blocks]
    return np.repeat(means, [int(count) for _, count in blocks]) + steps
