"""Folders that tests name."""

from pathlib import Path

ROOT = Path(__file__).parents[1]
TOYS = Path(__file__).parent / "run"  # toys.py and the configuration folder that names them
