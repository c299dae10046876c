"""A figure with sliders, and the same figure without them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import Any

from matplotlib.figure import Figure


def explore(draw: Callable[..., Figure], **knobs: Sequence[Any]) -> None:
    """Shows `draw(**values)` with a slider for each knob, where ipywidgets is installed and a notebook runs.

    Without ipywidgets it shows still figures instead: the first knob at its first, middle and last value, the others
    in the middle, where the sliders would begin.

    Args:
        draw: a value of each knob, by name -> figure.
        knobs: name -> the values that its slider goes through, in their order.
    """
    from IPython.display import display

    if empty := [name for name, values in knobs.items() if not len(values)]:
        raise ValueError(f"{empty[0]} must have a value to show, got none")

    def show(**values: Any) -> None:  # `interactive` drops what its function returns
        display(draw(**values))

    if find_spec("ipywidgets"):
        from ipywidgets import Layout, SelectionSlider, interactive

        sliders = {
            name: SelectionSlider(options=list(values), value=middle(values), layout=Layout(width="32em"))
            for name, values in knobs.items()
        }
        display(interactive(show, **sliders))
        return
    print("pip install ipywidgets brings sliders for", ", ".join(knobs))
    for values in still(knobs):
        show(**values)


def still(knobs: dict[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """The values of the still figures.

    >>> still({"tau": [0.1, 0.3, 1.0, 3.0], "M": [4, 8, 16]})
    [{'tau': 0.1, 'M': 8}, {'tau': 1.0, 'M': 8}, {'tau': 3.0, 'M': 8}]
    """
    start = {name: middle(values) for name, values in knobs.items()}
    first, values = next(iter(knobs.items()))
    return [{**start, first: value} for value in dict.fromkeys([values[0], middle(values), values[-1]])]


def middle(values: Sequence[Any]) -> Any:
    return values[len(values) // 2]
