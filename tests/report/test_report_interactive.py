"""Sliders where ipywidgets is there, still figures where it is not."""

import doctest
import sys

import pytest

from sgrpo_lightning.report import explore, interactive, slide, style, training


@pytest.fixture
def shown(monkeypatch):
    """What is displayed."""
    shown = []
    monkeypatch.setattr("IPython.display.display", shown.append)
    return shown


def draw(tau, M):
    return slide(f"tau = {tau}, M = {M}")[0]


def test_a_slider_for_each_knob(shown):
    explore(draw, tau=[0.1, 0.3, 1.0], M=(4, 8))
    first, widget = shown
    tau, M = widget.children[:2]
    assert (tau.description, tau.options, tau.value) == ("tau", (0.1, 0.3, 1.0), 0.3)
    assert (M.description, M.options, M.value) == ("M", (4, 8), 8)
    tau.value = 1.0
    assert [figure._suptitle.get_text() for figure in (first, shown[-1])] == ["tau = 0.3, M = 8", "tau = 1.0, M = 8"]


def test_still_figures_without_ipywidgets(shown, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "ipywidgets", None)
    monkeypatch.setattr("sgrpo_lightning.report.interactive.find_spec", lambda name: None)
    explore(draw, tau=[0.1, 0.2, 0.3, 1.0, 3.0], M=[2, 8, 32])
    titles = [figure._suptitle.get_text() for figure in shown]
    assert titles == ["tau = 0.1, M = 8", "tau = 0.3, M = 8", "tau = 3.0, M = 8"]
    assert "pip install ipywidgets" in capsys.readouterr().out
    shown.clear()
    explore(draw, tau=[0.1], M=[2])
    assert [figure._suptitle.get_text() for figure in shown] == ["tau = 0.1, M = 2"]


def test_a_knob_needs_values(shown):
    with pytest.raises(ValueError, match="M must have a value to show, got none"):
        explore(draw, tau=[0.1], M=[])


def test_the_examples():
    assert [doctest.testmod(module) for module in (interactive, style, training)] == [(0, 1), (0, 2), (0, 1)]
