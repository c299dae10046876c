"""The samples of a run, as they lie in its folder."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from sgrpo_lightning.report.rows import read_whole_lines

Sample = dict[str, Any]
"""A line of `samples/`: prompt, completion, answer, status, reward, its parts, advantage, weights_version."""

_NAME = re.compile(r"iteration-(\d+)-rank-(\d+)\.jsonl")


def read_samples(run_dir: str | Path, *, iteration: int | None = None) -> list[Sample]:
    """The samples of an iteration, rank by rank, each rank's in the order in which it wrote them.

    A last line that a kill cut short is left out.

    Args:
        run_dir: the run's folder.
        iteration: one of those written, as the callback `SampleFiles` chose them; None takes the last.

    Raises:
        ValueError: no samples there, or none of this iteration; the message names the iterations that exist.
    """
    folder = Path(run_dir) / "samples"
    files = sorted(
        (int(name[1]), int(name[2]), path) for path in folder.glob("*") if (name := _NAME.fullmatch(path.name))
    )
    there = sorted({number for number, _, _ in files})
    if not there:
        raise ValueError(f"{folder}: no samples there; callbacks.sample_files.every_n_iterations writes them")
    wanted = there[-1] if iteration is None else iteration
    if wanted not in there:
        raise ValueError(f"iteration={iteration}: {folder} has none of it; there are {', '.join(map(str, there))}")
    return [sample for number, _, path in files if number == wanted for sample in read_whole_lines(path)]


def by_group(samples: Sequence[Sample], key: str = "reward", *, samples_per_group: int) -> np.ndarray:
    """A number of each sample, such as its `reward` or `advantage`, in its group.

    Args:
        samples: as `read_samples` gives them: the samples of a group stand together.
        key: of the number.
        samples_per_group: M, a setting of the run. Two groups of one prompt may stand side by side.

    Returns:
        [G, M], in float64.

    Raises:
        ValueError: samples of a prompt that do not fill whole groups, as after a kill or with another M.

    >>> samples = [{"prompt": "a", "reward": 1.0}, {"prompt": "a", "reward": 0.0}]
    >>> by_group(samples, samples_per_group=2).tolist()
    [[1.0, 0.0]]
    """
    for prompt, some in groupby(samples, key=lambda sample: sample["prompt"]):
        if (count := sum(1 for _ in some)) % samples_per_group:
            raise ValueError(
                f"samples_per_group={samples_per_group} does not divide the {count} samples of {prompt!r}: "
                "give the M of the run, and leave out a group that is cut short"
            )
    return np.array([sample[key] for sample in samples], dtype=float).reshape(-1, samples_per_group)
