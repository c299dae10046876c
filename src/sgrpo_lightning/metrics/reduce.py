"""Adding up metrics over micro-batches, by the suffix of their names."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping

import torch
from torch import Tensor

REDUCERS: dict[str, Callable[[Tensor], Tensor]] = {
    "sum": torch.sum,
    "mean": torch.sum,
    "frac": torch.sum,
    "max": torch.amax,
    "min": torch.amin,
}
"""A mean adds because each part is a weighted sum whose weights sum to 1 over the global batch."""


def accumulate(metrics: Iterable[Mapping[str, Tensor | float]]) -> dict[str, Tensor]:
    """Combine the metrics of the parts of one batch.

    `/sum`, `/mean` and `/frac` add, `/max` and `/min` take the extreme. The loss functions weigh their means
    by global token weights and `group_metrics` divides by a global group count: that is what makes adding
    them right.

    Args:
        metrics: one mapping per part, name -> 0-dim value; a name may be missing from some parts.

    Returns:
        name -> 0-dim tensor, in order of first appearance.

    Edge cases: no parts give {}; a name without one of these suffixes is a ValueError.

    >>> accumulate([{"a/mean": 0.25, "b/max": 3.0}, {"a/mean": 0.5, "b/max": 1.0}])
    {'a/mean': tensor(0.7500), 'b/max': tensor(3.)}
    """
    columns: dict[str, list[Tensor]] = defaultdict(list)
    for part in metrics:
        for name, value in part.items():
            columns[name].append(torch.as_tensor(value))
    return {name: _reducer(name)(torch.stack(values)) for name, values in columns.items()}


def _reducer(name: str) -> Callable[[Tensor], Tensor]:
    suffix = name.rpartition("/")[2]
    if "/" not in name or suffix not in REDUCERS:
        raise ValueError(f"metric names must end in one of {['/' + s for s in REDUCERS]}, got {name!r}")
    return REDUCERS[suffix]
