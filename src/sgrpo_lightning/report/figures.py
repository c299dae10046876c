"""Figures as files."""

from __future__ import annotations

from pathlib import Path

from matplotlib.figure import Figure


def save_figure(figure: Figure, path: Path) -> None:
    """Writes a PNG, with the folders above it; nothing of a figure without panels."""
    if figure.axes:
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=120)
