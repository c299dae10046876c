"""The picture of one run: what its panels hold."""

import numpy as np
import pytest

from sgrpo_lightning.report import plot_training
from sgrpo_lightning.report.training import training_figure

ROWS = [{"iteration": n, "step": 2 * n, "reward/mean": n / 10, "kl/mean": n / 100} for n in range(1, 6)]
ROWS[0]["eval/pass@1"], ROWS[4]["eval/pass@1"] = 0.3, 0.4
PANELS = [{"reward/mean": "reward", "eval/pass@1": "held-out"}, {"length/mean": "tokens"}, {"kl/mean": "KL", "x": "no"}]


def lines(axes):
    return {line.get_label(): line.get_xydata().tolist() for line in axes.lines}


def places(figure):
    return [(axes.get_subplotspec().rowspan.start, axes.get_subplotspec().colspan.start) for axes in figure.axes]


def test_panels_hold_the_metrics_that_were_measured():
    figure = training_figure(ROWS, panels=PANELS)
    reward, kl = figure.axes
    assert lines(reward) == {
        "reward": [[n, n / 10] for n in range(1, 6)],
        "held-out": [[1, 0.3], [5, 0.4]],
    }
    assert lines(kl) == {"KL": [[n, n / 100] for n in range(1, 6)]}
    assert [text.get_text() for text in reward.get_legend().get_texts()] == ["reward", "held-out"]
    assert {axes.get_xlabel() for axes in figure.axes} == {"iteration"}
    assert places(figure) == [(0, 0), (0, 1)]


def test_a_metric_of_few_rows_shows_its_points():
    """2 of 5 rows are fewer than half; 2 of 4 are not."""
    for rows, marker in ((ROWS, "o"), ([ROWS[0], *ROWS[2:]], "None")):
        held_out = training_figure(rows, panels=PANELS).axes[0].lines[1]
        assert held_out.get_marker() == marker
        assert held_out.get_linestyle() == "-"


def test_another_x():
    figure = training_figure(ROWS, panels=PANELS, x="step")
    assert lines(figure.axes[1]) == {"KL": [[2 * n, n / 100] for n in range(1, 6)]}
    assert figure.axes[0].get_xlabel() == "step"
    assert not training_figure(ROWS, panels=PANELS, x="epoch").axes


@pytest.mark.parametrize(
    ("count", "grid"),
    [(1, [(0, 0)]), (2, [(0, 0), (0, 1)]), (3, [(0, 0), (0, 1), (1, 0)]), (4, [(0, 0), (0, 1), (1, 0), (1, 1)])],
)
def test_two_columns(count, grid):
    figure = training_figure(ROWS, panels=[{"kl/mean": "KL"}] * count)
    assert places(figure) == grid
    assert figure.axes[0].get_subplotspec().get_gridspec().get_geometry() == (1 + count // 3, min(count, 2))
    assert figure.get_size_inches().tolist() == [14, 4.6 * (1 + count // 3)]


def test_the_pass_rates_come_last_as_a_histogram():
    """Ten bins of a tenth: 0.05 and 0.08 in the first, 0.55 in the sixth, 0.85 in the ninth."""
    figure = training_figure(ROWS, panels=PANELS[:1] * 2, histogram=np.array([0.05, 0.08, 0.55, 0.85]))
    assert places(figure) == [(0, 0), (0, 1), (1, 0)]
    bars = figure.axes[2].patches
    assert [bar.get_height() for bar in bars] == [2, 0, 0, 0, 0, 1, 0, 0, 1, 0]
    np.testing.assert_allclose([bar.get_x() for bar in bars], np.arange(10) / 10, atol=1e-12)
    assert figure.axes[2].get_xlabel() == "pass rate of a prompt"
    assert [axes.get_xlabel() for axes in figure.axes[:2]] == ["iteration"] * 2
    assert len(training_figure([], panels=PANELS, histogram=np.zeros(1)).axes) == 1


def test_few_samples_have_a_bar_for_each_number_of_passes():
    """Eighths: 0, 3, 3 and 8 passes. More than 16 samples have bars of a tenth again."""
    rates = np.array([0.0, 3 / 8, 3 / 8, 1.0])
    for samples, heights in ((8, [1, 0, 0, 2, 0, 0, 0, 0, 1]), (17, [1, 0, 0, 2, 0, 0, 0, 0, 0, 1])):
        (axes,) = training_figure([], panels=[], histogram=rates, samples_per_group=samples).axes
        assert [bar.get_height() for bar in axes.patches] == heights


def test_the_file(tmp_path):
    plot_training([], tmp_path / "plots" / "a.png", panels=PANELS)
    assert not (tmp_path / "plots").exists()  # nothing was measured
    plot_training(ROWS, tmp_path / "plots" / "a.png", panels=PANELS)
    assert (tmp_path / "plots" / "a.png").read_bytes().startswith(b"\x89PNG")
