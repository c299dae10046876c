"""Pictures and tables of runs, and the style that all figures share."""

from sgrpo_lightning.report.compare import write_report
from sgrpo_lightning.report.curves import comparison_figure, plot_comparison
from sgrpo_lightning.report.interactive import explore
from sgrpo_lightning.report.rows import Row, read_rows
from sgrpo_lightning.report.runs import Run, find_runs, read_run, what_to_show
from sgrpo_lightning.report.samples import by_group, read_samples
from sgrpo_lightning.report.simplex import (
    circle_path,
    plot_curl,
    plot_field,
    plot_path,
    simplex_axes,
    simplex_lattice,
    to_plane,
)
from sgrpo_lightning.report.style import (
    figure_style,
    headline,
    label_lines,
    look,
    name_of,
    shades,
    slide,
    use_style,
)
from sgrpo_lightning.report.tables import table
from sgrpo_lightning.report.training import plot_training, training_figure

__all__ = [
    "Row",
    "Run",
    "by_group",
    "circle_path",
    "comparison_figure",
    "explore",
    "figure_style",
    "find_runs",
    "headline",
    "label_lines",
    "look",
    "name_of",
    "plot_comparison",
    "plot_curl",
    "plot_field",
    "plot_path",
    "plot_training",
    "read_rows",
    "read_run",
    "read_samples",
    "shades",
    "simplex_axes",
    "simplex_lattice",
    "slide",
    "table",
    "to_plane",
    "training_figure",
    "use_style",
    "what_to_show",
    "write_report",
]
