"""Runs that differ in the seed alone, under a label that tells them from the others."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from sgrpo_lightning.report.runs import Run

SECTIONS = ("objective", "loss", "model")
SHORT = {"samples_per_group": "M"}

Settings = Mapping[str, Any]


def grouped(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """Label -> the runs that differ in the seed alone, in the natural order of the labels.

    A label is the objective and those settings by which the runs of that objective differ, such as
    `softmax_grpo M=128 tau=0.3`. A run without settings has the objective for its label.
    """
    groups: dict[str, list[Run]] = defaultdict(list)
    for objective, same in by_objective(runs).items():
        names = short_names([run.settings for run in same if run.settings])
        for run in same:
            parts = [f"{name}={_text(run.settings[key])}" for key, name in names.items() if key in run.settings]
            groups[" ".join([objective, *parts])].append(run)
    return dict(sorted(groups.items(), key=lambda item: natural(item[0])))


def by_objective(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """The runs of each objective, in the order of the names."""
    found: dict[str, list[Run]] = defaultdict(list)
    for run in runs:
        found[run.objective].append(run)
    return dict(sorted(found.items()))


def distinguishing(settings: Sequence[Settings]) -> list[str]:
    """The keys by which runs differ.

    Of the main ones (top-level values; everything below SECTIONS) that all runs have: each that differs. Of the
    rest those that tell runs apart which the keys before them do not: most are copies of a main one, or follow
    from the choice of another task, model or kind of data.
    """
    keys = sorted(dict.fromkeys(key for each in settings for key in each), key=_rank)
    differing = [key for key in keys if len({each.get(key) for each in settings}) > 1]
    chosen = [key for key in differing if _is_main(key) and all(key in each for each in settings)]
    for key in differing:
        if key not in chosen and _kinds(settings, [*chosen, key]) > _kinds(settings, chosen):
            chosen.append(key)
    return chosen


def short_names(settings: Sequence[Settings]) -> dict[str, str]:
    """Distinguishing key -> its last part, or all of it where an earlier one with other values has that part.

    A key with the last part and the values of an earlier one is a copy, and left out.
    """
    names: dict[str, str] = {}
    for key in distinguishing(settings):
        whole = key.removesuffix("._target_")
        last = whole.rpartition(".")[2]
        earlier = [other for other in names if other.removesuffix("._target_").rpartition(".")[2] == last]
        if not any(all(each.get(key) == each.get(other) for each in settings) for other in earlier):
            names[key] = whole if earlier else SHORT.get(last, last)
    return names


def natural(label: str) -> list[str | float]:
    """A sort key by which numbers count as numbers.

    >>> sorted(["M=128", "M=16", "tau=0.1", "tau=0.05"], key=natural)
    ['M=16', 'M=128', 'tau=0.05', 'tau=0.1']
    """
    pieces = re.split(r"(\d+(?:\.\d+)?(?:e[+-]?\d+)?)", label)
    return [float(piece) if index % 2 else piece for index, piece in enumerate(pieces)]


def _rank(key: str) -> int:
    """Top-level values first, then SECTIONS in their order, then the rest; equal ranks keep the order of the file."""
    section = key.partition(".")[0]
    if section in SECTIONS:
        return 1 + SECTIONS.index(section)
    return 1 + len(SECTIONS) if "." in key else 0


def _is_main(key: str) -> bool:
    return _rank(key) <= len(SECTIONS)


def _kinds(settings: Sequence[Settings], keys: Sequence[str]) -> int:
    return len({tuple(each.get(key) for key in keys) for each in settings})


def _text(value: Any) -> str:
    return f"{value:.12g}" if isinstance(value, float) else str(value)
