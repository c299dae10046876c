"""The triangle of three level probabilities: where things land, which way arrows point, which colour curl has."""

import numpy as np
import pytest
import torch
from matplotlib.patches import FancyArrowPatch
from numpy.testing import assert_allclose

from sgrpo_lightning.report import (
    circle_path,
    plot_curl,
    plot_field,
    plot_path,
    simplex_axes,
    simplex_lattice,
    slide,
    to_plane,
)

LEVELS = [0.0, 0.5, 1.0]
ROOT_3 = 3**0.5


def softmax_head(rewards, *, tau=0.5 / np.log(2)):
    return rewards.shape[-1] * torch.softmax(rewards / tau, dim=-1) - 1


def leave_one_out_head(rewards):
    M = rewards.shape[-1]
    return (rewards - rewards.mean(dim=-1, keepdim=True)) * M / (M - 1)


def best_first_head(rewards):
    """As `softmax_head`, with the levels in the opposite order."""
    return softmax_head(1 - rewards)


@pytest.fixture
def axes():
    _, axes = slide("A triangle")
    simplex_axes(axes, LEVELS)
    return axes


def test_points_land_where_they_should():
    assert_allclose(to_plane(np.eye(3)), [[0, 0], [1, 0], [0.5, ROOT_3 / 2]])
    assert_allclose(to_plane([1 / 3, 1 / 3, 1 / 3]), [0.5, ROOT_3 / 6])
    assert to_plane(np.full((2, 5, 3), 1 / 3)).shape == (2, 5, 2)
    with pytest.raises(ValueError, match=r"probs must be \[..., 3\], one for each corner .*, got \[2\]"):
        to_plane([0.5, 0.5])


def test_corners_are_named_by_their_reward():
    _, axes = slide("A triangle")
    simplex_axes(axes, [0.0, 0.25, 2.0])
    assert {text.get_text(): text.xy for text in axes.texts} == {
        "always 0": pytest.approx((0, 0)),
        "always 0.25": pytest.approx((1, 0)),
        "always 2": pytest.approx((0.5, ROOT_3 / 2)),
    }
    axes.figure.canvas.draw()
    boxes = [text.get_window_extent() for text in axes.texts]
    assert boxes[0].x1 < boxes[1].x0
    assert all(box.x0 >= 0 and box.x1 <= axes.figure.bbox.x1 for box in boxes)
    assert boxes[0].y1 < axes.transData.transform((0, 0))[1]
    assert boxes[2].y0 > axes.transData.transform((0.5, ROOT_3 / 2))[1]
    assert axes.get_aspect() == 1
    with pytest.raises(ValueError, match=r"\[..., 3\]"):
        simplex_axes(axes, [0.0, 1.0])


def test_lattice_by_hand():
    points = simplex_lattice(3)  # the corners and the middles of the sides
    expected = [[0, 0, 1], [0, 0.5, 0.5], [0, 1, 0], [0.5, 0, 0.5], [0.5, 0.5, 0], [1, 0, 0]]
    assert_allclose(points, expected)
    # the upright cells of side 1/2 have one corner of the triangle each, and their centre two thirds away from its side
    third = simplex_lattice(3, inside=True)
    assert_allclose(third, [[1 / 6, 1 / 6, 2 / 3], [1 / 6, 2 / 3, 1 / 6], [2 / 3, 1 / 6, 1 / 6]])
    with pytest.raises(ValueError, match="rows must be >= 2, got 1"):
        simplex_lattice(1)


def test_circles_are_round_and_counter_clockwise():
    middle, fits = np.array([0.5, ROOT_3 / 6]), ROOT_3 / 6
    for radius in (0.4, 1.0):
        path = circle_path(radius, legs=12)
        assert path.shape == (13, 3)
        assert path.min() >= 0
        assert (path[0] == path[-1]).all()
        x, y = (to_plane(path) - middle).T
        assert_allclose(np.hypot(x, y), radius * fits)
        assert (x[:-1] * y[1:] > x[1:] * y[:-1]).all()
    assert_allclose(circle_path(1.0, legs=4)[0], [0.5, 0.5, 0], atol=1e-15)
    for bad in ({"radius": 0.0}, {"radius": 1.1}, {"radius": 0.5, "legs": 2}):
        with pytest.raises(ValueError, match=r"radius must lie in \(0, 1\] and legs be >= 3"):
            circle_path(**bad)


def test_arrows_of_rloo_point_from_the_lowest_to_the_highest_reward(axes):
    """The mean reward is p2 / 2 + p3 = x / 2 + y ROOT_3 / 2: its slope has length 1 and stands at 60 degrees."""
    arrows = plot_field(axes, leave_one_out_head, LEVELS, M=4, rows=5)
    assert_allclose(arrows.U, 1 / 2)
    assert_allclose(arrows.V, ROOT_3 / 2)
    assert len(arrows.U) == 10
    assert_allclose(np.hypot(arrows.U, arrows.V) / arrows.scale, 0.085)


def test_arrow_times_move_is_the_claim(axes):
    """Eq. 8 by hand: F1 = -p2/15 - 3/5, F2 = p1/15 - 1/3; rows = 2 has one cell, with the middle of the triangle."""
    arrows = plot_field(axes, softmax_head, LEVELS, M=2, rows=2)
    assert_allclose(arrows.XY, [[0.5, ROOT_3 / 6]])
    v = np.array([arrows.U[0], arrows.V[0]])
    # p1 up and p3 down by d moves by d (-1/2, -ROOT_3/2); p2 up and p3 down by d (1/2, -ROOT_3/2)
    assert_allclose(v @ [-1 / 2, -ROOT_3 / 2], -1 / 45 - 3 / 5)
    assert_allclose(v @ [1 / 2, -ROOT_3 / 2], 1 / 45 - 1 / 3)


def test_arrows_show_at_no_claim_at_all(axes):
    arrows = plot_field(axes, torch.zeros_like, LEVELS, M=2)
    assert 0 < arrows.scale < np.inf
    assert not arrows.U.any()


def test_colours_follow_the_sign_of_the_curl(axes):
    """2/15 counter-clockwise everywhere. The opposite order of the levels mirrors the triangle, so -2/15 there."""
    for head, sign in ((softmax_head, 1), (best_first_head, -1)):
        colours = plot_curl(axes, head, LEVELS, M=2, rows=4)
        assert_allclose(colours.get_array(), sign * 2 / 15)
        assert_allclose(colours.get_clim(), (-2 / 15, 2 / 15))
        red, _, blue, _ = colours.to_rgba(colours.get_array())[0]
        assert (blue > red) == (sign > 0)  # purple, or orange
    white = plot_curl(axes, leave_one_out_head, LEVELS, M=5, rows=4)
    assert white.to_rgba(white.get_array())[:, :3].min() > 0.95
    assert plot_curl(axes, softmax_head, LEVELS, M=2, rows=4, limit=3.0).get_clim() == (-3, 3)


def test_a_path_has_its_arrowhead_halfway(axes):
    before = len(axes.lines)
    plot_path(axes, [[1, 0, 0], [0, 1, 0], [0, 0.5, 0.5]], color="#ff0000", lw=7)  # legs of 1 and 0.5
    assert len(axes.lines) == before + 1
    line = axes.lines[-1]
    assert_allclose(np.array(line.get_data()).T, [[0, 0], [1, 0], [0.75, ROOT_3 / 4]])
    assert (line.get_color(), line.get_linewidth()) == ("#ff0000", 7)
    (arrow,) = (patch for patch in axes.patches if isinstance(patch, FancyArrowPatch))
    (x0, y0), (x1, y1) = arrow._posA_posB
    assert 0.45 < x0 < x1 < 0.76
    assert y0 == pytest.approx(y1) == pytest.approx(0)
