"""The triangle of three level probabilities: what a head claims about a move on it, its curl, and paths."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.collections import TriMesh
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.patches import FancyArrowPatch
from matplotlib.quiver import Quiver
from matplotlib.tri import Triangulation

from sgrpo_lightning.geometry import curl, one_form
from sgrpo_lightning.geometry.groups import Head

CORNERS = np.array([[0.0, 0.0], [1.0, 0.0], [0.5, 3**0.5 / 2]])  # counter-clockwise, as (p_1, p_2) turn
CURL_COLOURS = LinearSegmentedColormap.from_list("curl", colormaps["PuOr"](np.linspace(0.12, 0.88, 255)))
"""Orange below 0, white at 0, purple above; without the darkest tones, on which no arrow could be seen."""
LONGEST = 0.085  # arrow, in sides of the triangle


def to_plane(probs: npt.ArrayLike) -> np.ndarray:
    """Where level probabilities lie in the triangle with side 1.

    Args:
        probs: of the three levels, [..., 3].

    Returns:
        x and y, [..., 2]: the first level is the left corner, the second the right one, the third is on top.

    >>> to_plane([0.5, 0.5, 0.0])
    array([0.5, 0. ])
    """
    values = np.asarray(probs, dtype=np.float64)
    if values.shape[-1:] != (3,):
        raise ValueError(f"probs must be [..., 3], one for each corner of the triangle, got {list(values.shape)}")
    return values @ CORNERS


def simplex_lattice(rows: int, *, inside: bool = False) -> np.ndarray:
    """Evenly spaced points of the simplex of three levels.

    Args:
        rows: points along each side, >= 2.
        inside: the centres of the upright cells instead of their corners, which leaves out the border.

    Returns:
        Probabilities [N, 3]; N = rows (rows + 1) / 2, with `inside` one row less.

    >>> simplex_lattice(2).tolist()
    [[0.0, 0.0, 1.0], [0.0, 1.0, 0.0], [1.0, 0.0, 0.0]]
    """
    if rows < 2:
        raise ValueError(f"rows must be >= 2, got {rows}")
    last = rows - 1 - inside
    counts = np.array([(i, j, last - i - j) for i in range(last + 1) for j in range(last + 1 - i)], dtype=np.float64)
    return (counts + inside / 3) / (rows - 1)


def circle_path(radius: float, *, legs: int = 36) -> np.ndarray:
    """A closed loop around the middle of the triangle, counter-clockwise as it is drawn.

    Args:
        radius: as a share of the largest circle that fits, in (0, 1].
        legs: straight pieces, >= 3.

    Returns:
        Probabilities [legs + 1, 3]; the last point is the first.

    >>> circle_path(1.0, legs=4)[0].round(6).tolist()  # starts below the middle, on the lower side
    [0.5, 0.5, 0.0]
    """
    if not 0 < radius <= 1 or legs < 3:
        raise ValueError(f"radius must lie in (0, 1] and legs be >= 3, got {radius} and {legs}")
    turns = np.append(np.arange(legs), 0) / legs - 1 / 4  # from straight down
    corners = np.array([7, 11, 3]) / 12  # 210, 330 and 90 degrees: p_k is largest where the loop is nearest to k
    return (1 + radius * np.cos(2 * np.pi * (turns[:, None] - corners))) / 3


def simplex_axes(axes: Axes, levels: Sequence[float]) -> None:
    """Turn axes into the triangle of three level probabilities; each corner is named by its reward.

    Args:
        axes: to be emptied of ticks and spines.
        levels: the rewards of the three levels, in the order of the probabilities.
    """
    to_plane(levels)  # three of them
    axes.set_axis_off()
    axes.set_aspect("equal")
    axes.set(xlim=(-0.12, 1.12), ylim=(-0.14, 1.0))
    axes.plot(*CORNERS[[0, 1, 2, 0]].T, color="black", lw=1.5, zorder=3)
    for corner, level, (dx, dy) in zip(CORNERS, levels, [(0, -10), (0, -10), (0, 8)], strict=True):
        axes.annotate(
            f"always {level:g}",
            corner,
            xytext=(dx, dy),
            textcoords="offset points",
            ha="center",
            va="top" if dy < 0 else "bottom",
        )


def plot_curl(
    axes: Axes, head: Head, levels: Sequence[float], *, M: int, rows: int = 25, limit: float | None = None
) -> TriMesh:
    r"""Colour the triangle by the curl of a head: white where it climbs an objective.

    $$\frac{\partial F_2}{\partial p_1} - \frac{\partial F_1}{\partial p_2} = -C_{12}$$

    is the work around a small counter-clockwise loop, per area in (p_1, p_2), where the triangle has 1/2.

    Args:
        axes: of `simplex_axes`.
        head, levels, M: as for `geometry.curl`.
        rows: points along each side.
        limit: the value of the darkest colours; by default the largest curl, or 1e-9 where that is less.

    Returns:
        What `figure.colorbar` takes.
    """
    probs = simplex_lattice(rows)
    values = -np.asarray(curl(head, levels, probs, M=M))[:, 0, 1]
    limit = max(float(np.abs(values).max()), 1e-9) if limit is None else limit
    cells = Triangulation(*to_plane(probs).T)
    return axes.tripcolor(cells, values, shading="gouraud", cmap=CURL_COLOURS, vmin=-limit, vmax=limit, zorder=0)


def plot_field(axes: Axes, head: Head, levels: Sequence[float], *, M: int, rows: int = 11) -> Quiver:
    r"""Draw what a head claims to gain by a move, as arrows: the gain is arrow times move.

    A one-form has no direction of its own: it takes a small move and gives a number. In the metric of the
    triangle as it is drawn, with sides of 1, that number is the dot product of the move with one arrow. It points
    where the claim rises fastest. Paths along the arrows gain and paths against them lose, and where the head
    climbs an objective the arrows are its slope. (The policy itself moves along another arrow, which depends on
    how it is parametrised; along that one the claim rises too.)

    Args:
        axes: of `simplex_axes`.
        head, levels, M: as for `geometry.one_form`.
        rows: points along each side of the lattice whose cells get an arrow each.

    Returns:
        The arrows, the longest of them `LONGEST` sides long.
    """
    probs = simplex_lattice(rows, inside=True)
    arrows = arrows_of(np.asarray(one_form(head, levels, probs, M=M)))
    longest = float(np.hypot(*arrows.T).max()) or 1.0
    return axes.quiver(
        *to_plane(probs).T,
        *arrows.T,
        angles="xy",
        scale_units="xy",
        scale=longest / LONGEST,
        pivot="mid",
        width=0.006,
        zorder=2,
    )


def arrows_of(form: np.ndarray) -> np.ndarray:
    """Vectors v of the plane with v . dx = F_1 dp_1 + F_2 dp_2 for every move, [..., 2] for [..., 2].

    Moving p_1 by d at the expense of p_3 moves the point by d (corner 1 - corner 3), and so on.
    """
    return np.linalg.solve(CORNERS[:2] - CORNERS[2], form[..., None])[..., 0]


def plot_path(axes: Axes, path: npt.ArrayLike, **look: Any) -> None:
    """Draw a path of level probabilities with an arrowhead halfway.

    Args:
        axes: of `simplex_axes`.
        path: [P, 3].
        look: keywords of `Axes.plot`.
    """
    points = to_plane(path)
    (line,) = axes.plot(*points.T, **{"color": "black", "zorder": 4, **look})
    lengths = np.hypot(*np.diff(points, axis=0).T).cumsum()
    leg = int(np.searchsorted(lengths, lengths[-1] / 2))
    middle, step = points[leg : leg + 2].mean(axis=0), np.diff(points[leg : leg + 2], axis=0)[0]
    head = FancyArrowPatch(
        tuple(middle - 1e-3 * step / np.hypot(*step)),
        tuple(middle + 1e-3 * step / np.hypot(*step)),
        arrowstyle="-|>",
        mutation_scale=28,
        color=line.get_color(),
        zorder=5,
    )
    axes.add_patch(head)
