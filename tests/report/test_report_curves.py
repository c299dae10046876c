"""The figure of runs side by side: what its lines, bands and legend hold."""

import numpy as np
import pytest
from matplotlib.colors import to_rgb
from report_runs import made

from sgrpo_lightning.report import plot_comparison
from sgrpo_lightning.report.curves import comparison_figure

T1, T2 = 12.7062, 4.30265  # Student's 0.975 quantiles, of 1 and of 2 degrees of freedom


def run(objective, seed, top1, *, M=None, **others):
    """Rows at steps 0, 10, ... of top-1 and the other metrics."""
    curves = {"eval/top1": top1, **{f"eval/{name}": values for name, values in others.items()}}
    rows = [
        {"step": 10 * index, "iteration": index}
        | {name: values[index] for name, values in curves.items() if index < len(values)}
        for index in range(max(len(values) for values in curves.values()))
    ]
    return made(objective, seed, rows=rows, settings={"samples_per_group": M} if M else None)


def figure(runs, metrics=("eval/top1",), x="step", **more):
    return comparison_figure(runs, metrics=metrics, x=x, **more)


def legend(figure):
    return [text.get_text() for text in figure.legends[0].get_texts()]


def band(axes, index=0):
    """x -> (low, high) of a band."""
    corners = axes.collections[index].get_paths()[0].vertices
    return {x: (min(y), max(y)) for x in np.unique(corners[:, 0]) for y in [corners[corners[:, 0] == x, 1]]}


def test_the_line_is_the_mean_and_the_band_is_students_interval():
    """At 10: 0.2, 0.3, 0.4, half the width 4.30265 * 0.1 / sqrt(3); at 20 all agree."""
    drawn = figure([run("grpo", seed, [0, last, 0.5]) for seed, last in enumerate((0.2, 0.3, 0.4))])
    (axes,) = drawn.axes
    (line,) = axes.lines
    np.testing.assert_allclose(line.get_xydata(), [[0, 0], [10, 0.3], [20, 0.5]], atol=1e-12)
    half = T2 * 0.1 / np.sqrt(3)
    expected = {0: (0, 0), 10: (0.3 - half, 0.3 + half), 20: (0.5, 0.5)}
    for x, (low, high) in band(axes).items():
        assert (low, high) == pytest.approx(expected.pop(x), abs=1e-5)
    assert not expected
    assert legend(drawn) == ["grpo (3 seeds)"]
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("step", "held-out top-1")


def test_one_seed_is_a_line_alone():
    drawn = figure([run("grpo", 0, [0.1, 0.2])])
    assert not drawn.axes[0].collections
    assert legend(drawn) == ["grpo (1 seed)"]


def test_two_runs_of_a_seed_count_once():
    """Seed 0 is 0.1 and 0.3, so 0.2; seed 1 is 0.4: mean 0.3, half 12.7062 * 0.141421 / sqrt(2) = 1.27062."""
    drawn = figure([run("grpo", 0, [0.1]), run("grpo", 0, [0.3]), run("grpo", 1, [0.4])])
    assert drawn.axes[0].lines[0].get_ydata() == pytest.approx([0.3])
    assert band(drawn.axes[0])[0] == pytest.approx((0.3 - T1 * 0.1, 0.3 + T1 * 0.1), abs=1e-5)
    assert legend(drawn) == ["grpo (2 seeds)"]


def test_a_line_ends_where_one_of_its_seeds_does():
    drawn = figure([run("grpo", 0, [0.1, 0.2, 0.3]), run("grpo", 1, [0.1, 0.4])])
    np.testing.assert_allclose(drawn.axes[0].lines[0].get_xydata(), [[0, 0.1], [10, 0.3]])


def test_panels_and_styles():
    """A panel per metric, one look per group: black, vermillion, two shades of blue."""
    runs = [run("softmax_grpo", 0, [0.1], M=M, **{"pass@1": [0.2]}) for M in (128, 16)]
    runs += [run("grpo", 0, [0.3]), run("cross_entropy", 0, [0.4], **{"pass@1": [0.5]})]
    drawn = figure(runs, ["eval/pass@1", "eval/top1", "eval/pass@128"], x="iteration")
    assert [axes.get_ylabel() for axes in drawn.axes] == ["held-out pass@1", "held-out top-1"]
    assert len({axes.get_subplotspec().rowspan.start for axes in drawn.axes}) == 1  # side by side
    assert {axes.get_xlabel() for axes in drawn.axes} == {"iteration"}
    names = ["cross_entropy (1 seed)", "grpo (1 seed)", "softmax_grpo M=16 (1 seed)", "softmax_grpo M=128 (1 seed)"]
    lines = [{line.get_label(): line for line in axes.lines} for axes in drawn.axes]
    assert [list(some) for some in lines] == [[names[0], *names[2:]], names]
    assert sorted(legend(drawn)) == sorted(names)
    for some in lines:
        assert (some[names[0]].get_color(), some[names[0]].get_linestyle()) == ("#000000", ":")
        blues = [to_rgb(some[name].get_color()) for name in names[2:]]
        for red, green, blue in blues:
            assert blue > green > red
        assert sum(blues[0]) > sum(blues[1])
        assert some[names[2]].get_linestyle() != some[names[3]].get_linestyle()
        for name in names[2:]:
            assert some[name].get_color() == lines[1][name].get_color()
    assert lines[1]["grpo (1 seed)"].get_color() == "#D55E00"


def test_a_legend_tells_of_panels_with_fewer_seeds():
    drawn = figure([run("grpo", 0, [0.1], kl=[0.1]), run("grpo", 1, [0.3])], ["eval/top1", "eval/kl"])
    assert legend(drawn) == ["grpo (2 seeds)", "grpo (1 seed)"]
    assert len({line.get_color() for axes in drawn.axes for line in axes.lines}) == 1


def test_many_groups_are_told_apart():
    drawn = figure([run(f"head_{index}", 0, [0.1]) for index in range(25)])
    looks = {(line.get_color(), line.get_linestyle(), line.get_marker()) for line in drawn.axes[0].lines}
    assert len(looks) == 25
    assert not {line.get_color() for line in drawn.axes[0].lines} & {"#0072B2", "#D55E00", "#000000"}
    exact = figure([run("cross_entropy", 0, [0.1], M=M) for M in (1, 2, 3)]).axes[0].lines
    assert len({(line.get_color(), line.get_linestyle()) for line in exact}) == 3


def test_points_are_marked_where_they_are_few():
    few, many = (figure([run("grpo", 0, [0.1] * count)]).axes[0].lines[0] for count in (40, 41))
    assert (few.get_marker(), many.get_marker()) == ("^", "")


def test_names_to_show():
    labels = {"eval/top1": "accuracy", "softmax_grpo": "SoftmaxGRPO", "grpo M=8": "GRPO of old", "grpo": "GRPO"}
    runs = [run("softmax_grpo", 0, [0.1], M=M) for M in (8, 16)] + [run("grpo", 0, [0.1], M=M) for M in (8, 9)]
    drawn = figure([*runs, run("maxrl", 0, [0.1])], labels=labels)
    names = ["GRPO of old", "GRPO M=9", "maxrl", "SoftmaxGRPO M=8", "SoftmaxGRPO M=16"]
    assert legend(drawn) == [f"{name} (1 seed)" for name in names]
    assert drawn.axes[0].get_ylabel() == "accuracy"
    own = figure([made("grpo", rows=[{"step": 1, "reward/mean": 0.5}])], ["reward/mean"])
    assert own.axes[0].get_ylabel() == "reward/mean"


def test_runs_without_rows_are_left_out():
    """Nor is a group drawn whose seeds share no step."""
    apart = [made("maxrl", seed, rows=[{"step": seed, "eval/top1": 0.1}]) for seed in (1, 2)]
    drawn = figure([run("grpo", 0, [0.2]), made("grpo", 1, top1=0.3), made("rloo", 0, top1=0.3), *apart])
    assert legend(drawn) == ["grpo (1 seed)"]


def test_the_file(tmp_path):
    path = tmp_path / "new" / "curves.png"
    plot_comparison([made("grpo", top1=0.1)], path, metrics=["eval/top1"], x="step")
    assert not path.parent.exists()  # nothing to draw
    plot_comparison([run("grpo", 0, [0.1, 0.2])], path, metrics=["eval/top1", "eval/pass@1"], x="step")
    assert path.read_bytes().startswith(b"\x89PNG")
