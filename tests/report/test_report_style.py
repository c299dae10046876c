"""The style that all figures share: colours that everyone tells apart, labels that do not cover one another."""

import itertools

import matplotlib as mpl
import numpy as np
import pytest
from colorspacious import cspace_convert, deltaE
from matplotlib.colors import to_rgb

from sgrpo_lightning.report import figure_style, label_lines, look, name_of, shades, slide, style, use_style
from sgrpo_lightning.report.style import PALETTE, STYLE, looks_of, spread

EYES = ["deuteranomaly", "protanomaly", "tritanomaly", None]
CLEAR = 10  # CAM02-UCS; 1 is about what the eye notices side by side
OBJECTIVES = [
    "reinforce",
    "grpo",
    "softmax_grpo",
    "softmax_grpo_adaptive",
    "maxrl",
    "pass_at_k",
    "cross_entropy",
    "my_own",
]


def seen(colour, eye):
    """As a person sees it who lacks one kind of cones entirely (Machado et al., 2009)."""
    rgb = np.array(to_rgb(colour))
    space = {"name": "sRGB1+CVD", "cvd_type": eye, "severity": 100}
    return rgb if eye is None else np.clip(cspace_convert(rgb, space, "sRGB1"), 0, 1)


def distance(colours, eye):
    return deltaE(*(seen(colour, eye) for colour in colours), input_space="sRGB1")


@pytest.mark.parametrize("eye", EYES)
def test_everyone_tells_the_colours_apart(eye):
    for pair in itertools.combinations(PALETTE, 2):
        assert distance(pair, eye) > CLEAR, pair
        assert distance((pair[0], "white"), eye) > 2 * CLEAR, pair[0]
    assert distance(("#2ca02c", "#d62728"), "deuteranomaly") < CLEAR  # matplotlib's own green and red


def test_objectives_have_a_colour_or_dashes_of_their_own():
    assert len({look(name)["color"] for name in OBJECTIVES}) == len(OBJECTIVES)
    assert {look(name)["color"] for name in OBJECTIVES} == set(PALETTE)
    assert len({tuple(map(str, look(name).values())) for name in style._LOOKS}) == len(style._LOOKS) - 1  # ml is CE
    assert (look("grpo")["linestyle"], look("softmax_grpo")["linestyle"]) == ("--", "-")  # on a grey print too
    assert (name_of("maxrl"), name_of("mine")) == ("MaxRL", "mine")


@pytest.mark.parametrize("eye", EYES)
def test_shades_go_from_light_to_dark(eye):
    ramp = [seen(one["color"], eye) for one in shades("softmax_grpo", 4)]
    lightness = [cspace_convert(rgb, "sRGB1", "CAM02-UCS")[0] for rgb in ramp]
    assert (np.diff(lightness) < -CLEAR).all()
    assert shades("grpo", 1) == [look("grpo")]
    assert len({one["linestyle"] for one in shades("grpo", 4)}) == 4


def test_one_look_for_each_line():
    looks = looks_of(["grpo", "softmax_grpo", "mine", "softmax_grpo", "yours"])
    assert looks[0] == {**look("grpo"), "marker": "^"}
    assert [looks[1]["color"], looks[3]["color"]] == [one["color"] for one in shades("softmax_grpo", 2)]
    assert looks[2]["color"] != looks[4]["color"]
    every = looks_of([name for name in style._LOOKS if name != "ml"] * 3)
    assert len({tuple(map(str, look.values())) for look in every}) == len(every)


def test_the_style_ends_where_it_should():
    before = mpl.rcParams["axes.labelsize"]
    with figure_style():
        assert mpl.rcParams["axes.labelsize"] == STYLE["axes.labelsize"] != before
    assert mpl.rcParams["axes.labelsize"] == before
    with mpl.rc_context():
        use_style()
        assert mpl.rcParams["lines.linewidth"] == STYLE["lines.linewidth"]
    assert mpl.rcParams["axes.labelsize"] == before


def test_a_slide_is_legible_from_the_back_row():
    """A line of text is at least a 40th of the height of a slide."""
    figure, axes = slide("A message", xlabel="p", ylabel="weight")
    texts = [axes.xaxis.label, axes.yaxis.label, *axes.get_xticklabels(), figure._suptitle]
    assert min(text.get_fontsize() for text in texts) / 72 >= figure.get_figheight() / 40
    assert (axes.get_xlabel(), axes.get_ylabel(), figure._suptitle.get_text()) == ("p", "weight", "A message")
    figure, (left, right) = slide("Two", xlabel="x", ylabel=["a", "b"], panels=2)
    assert (left.get_ylabel(), right.get_ylabel()) == ("a", "b")
    with pytest.raises(ValueError, match="argument"):
        slide("Two", ylabel=["a", "b", "c"], panels=2)


@pytest.mark.parametrize("scale", ["linear", "log"])
def test_labels_stand_at_the_ends_of_their_lines(scale):
    figure, axes = slide("Labels")
    axes.set_yscale(scale)
    for name, end in [("low", 1.0), ("near", 99.0), ("top", 100.0)]:
        axes.plot([0, 1], [10.0, end], label=name, **look("grpo"))
    axes.plot([0, 1], [50, 50])  # without a label
    label_lines(axes)
    figure.canvas.draw()
    labels = {text.get_text(): text for text in axes.texts}
    boxes = {name: text.get_window_extent() for name, text in labels.items()}
    assert list(labels) == ["low", "near", "top"]
    assert boxes["near"].y1 <= boxes["top"].y0
    assert min(box.x0 for box in boxes.values()) > axes.bbox.x1
    end = axes.transData.transform((1, 1.0))[1]
    assert boxes["low"].y0 < end < boxes["low"].y1
    assert {text.get_color() for text in labels.values()} == {look("grpo")["color"]}


def test_no_lines_have_no_labels():
    _, axes = slide("Nothing")
    label_lines(axes)
    assert not axes.texts


def test_spreading_by_hand():
    """Three at 0.2, 0.25, 0.3 need 0.1: they stay around 0.25. What has room does not move; a push can reach on."""
    assert spread(np.array([0.2, 0.25, 0.3, 0.9]), 0.1) == pytest.approx([0.15, 0.25, 0.35, 0.9])
    assert spread(np.array([0.5, 0.5, 0.61]), 0.1) == pytest.approx([0.4366667, 0.5366667, 0.6366667])
    assert spread(np.array([]), 0.1).tolist() == []


def test_spreading_moves_as_little_as_can_be():
    """Against a quadratic programme."""
    from scipy.optimize import minimize

    rng, gap = np.random.default_rng(0), 0.15
    for _ in range(20):
        heights = np.sort(rng.random(6))
        apart = [{"type": "ineq", "fun": lambda x, i=i: x[i + 1] - x[i] - gap} for i in range(5)]
        found = minimize(lambda x, h=heights: ((x - h) ** 2).sum(), gap * np.arange(6), constraints=apart, tol=1e-12)
        np.testing.assert_allclose(spread(heights, gap), found.x, atol=1e-5)
