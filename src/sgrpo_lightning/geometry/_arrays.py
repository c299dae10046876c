"""float64 inside, the caller's container outside; and the argument checks of the package."""

import functools
from collections.abc import Callable
from typing import Any, ParamSpec

import numpy as np
import numpy.typing as npt
import torch

P = ParamSpec("P")
Real = npt.ArrayLike | torch.Tensor  # what a caller may pass
Result = float | np.ndarray | torch.Tensor  # what comes back: see `in_float64`


def in_float64(function: Callable[P, Any]) -> Callable[P, Any]:
    """Pass tensors as arrays; return float64 tensors if any argument was one, else a float or an array."""

    @functools.wraps(function)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> Any:
        tensor = next((x for x in (*args, *kwargs.values()) if isinstance(x, torch.Tensor)), None)
        arrays = {name: _to_numpy(value) for name, value in kwargs.items()}
        result = function(*map(_to_numpy, args), **arrays)
        if isinstance(result, tuple):
            return tuple(_to_container(part, tensor) for part in result)
        return _to_container(result, tensor)

    return wrapper


def _to_numpy(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    value = value.detach().cpu()
    return (value.double() if value.is_floating_point() else value).numpy()


def _to_container(array: np.ndarray, tensor: torch.Tensor | None) -> Result:
    if tensor is not None:
        return torch.as_tensor(array, dtype=torch.float64, device=tensor.device)
    return array if array.ndim else array.item()


def require(ok: np.ndarray, name: str, rule: str, values: np.ndarray) -> None:
    """Raise a ValueError with the first of `values` that is not `ok`."""
    if not ok.all():
        raise ValueError(f"{name} must {rule}, got {values[~ok].flat[0].item()}")


def as_probability(p: Real, name: str = "p") -> np.ndarray:
    """`p` as float64, refused outside [0, 1]."""
    values = np.asarray(p, dtype=np.float64)
    require((values >= 0) & (values <= 1), name, "lie in [0, 1]", values)
    return values


def as_positive(name: str, x: Real) -> np.ndarray:
    """`x` as float64, refused unless > 0."""
    values = np.asarray(x, dtype=np.float64)
    require(values > 0, name, "be > 0", values)
    return values


def as_finite(name: str, x: Real) -> np.ndarray:
    """`x` as float64, refused where infinite or NaN."""
    values = np.asarray(x, dtype=np.float64)
    require(np.isfinite(values), name, "be finite", values)
    return values


def as_count(name: str, n: Real) -> np.ndarray:
    """`n` as int64, refused unless an integer >= 1; 8.0 counts as 8."""
    values = np.asarray(n)
    require((values >= 1) & (values == np.floor(values)) & np.isfinite(values), name, "be an integer >= 1", values)
    return values.astype(np.int64)


def as_distribution(probs: Real) -> np.ndarray:
    """`probs` [..., K] as float64, refused unless non-negative with sum 1 within 1e-6, then normalised."""
    values = as_probability(probs, "probs")
    totals = values.sum(axis=-1, keepdims=True)
    require(np.abs(totals - 1) <= 1e-6, "probs", "sum to 1", totals)
    return values / totals
