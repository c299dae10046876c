"""Precision and overflow rules shared by the losses."""

from __future__ import annotations

import torch
from torch import Tensor

LOG_RATIO_BOUND = 20.0
"""Largest |log ratio| that is exponentiated (exp(20) is 4.9e8); beyond it a ratio is constant."""


def upcast(values: Tensor) -> Tensor:
    """Raise `values` to at least float32; float64 stays float64.

    >>> upcast(torch.zeros(1, dtype=torch.bfloat16)).dtype, upcast(torch.zeros(1, dtype=torch.float64)).dtype
    (torch.float32, torch.float64)
    """
    return values.to(torch.promote_types(values.dtype, torch.float32))
