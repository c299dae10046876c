"""What a head does to groups of rewards, found by asking it, and whether that is what it declares."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from sgrpo_lightning.geometry.groups import Head
from sgrpo_lightning.geometry.integrability import curl, one_form

LARGEST_M = 128  # about a second of enumeration at three levels
SHIFTS, SCALES = (1.0, -3.0), (2.0**-20, 3.0, 2.0**20)
EQUAL = torch.tensor([0.0, 0.1, 0.3, 1.0, 100.0, -0.7], dtype=torch.float64)
LEVELS, PROBS = (0.1, 0.4, 1.0), ((0.2, 0.5, 0.3), (0.6, 0.3, 0.1))
NEGLIGIBLE = 1e-6  # of the largest advantage: smaller ones are judged as if they had this size

Violation = tuple[Tensor, float, Tensor]  # rewards [M], the size of the advantages at hand, what should be 0


@dataclass(frozen=True, slots=True)
class Check:
    """Whether a head has a property; true or false as `holds` is.

    Args:
        violation: the worst, relative to the advantages at hand; nan where nothing could be judged.
        rewards: the group it was found in; of `conservative` the three levels.
    """

    holds: bool
    violation: float
    rewards: tuple[float, ...]

    def __bool__(self) -> bool:
        return self.holds


def head_properties(head: Head, *, M: int = 8, seed: int = 0) -> dict[str, Check]:
    """Which properties a head has, as far as groups of rewards can tell.

    The head is asked about 36 groups, one at a time and in float64: graded, right or wrong, three levels, nearly
    equal, one winner, up to 10; half of them with negative rewards. A property holds if nothing violates it by more
    than the square root of the machine epsilon of the head's answers (1.5e-8 in float64), relative to the largest
    advantage of the group. So a no is proved, by the group that comes with it; a yes is not.

    A group that the head refuses with a ValueError, as some refuse negative rewards, is left out: a property is
    judged where the head answers. One that could be judged nowhere does not hold.

    Args:
        head: rewards [..., M] -> advantages [..., M]; any callable, `functools.partial` included.
        M: samples per group, from 3 to 128.
        seed: of the groups.

    Returns:
        Name -> `Check`:

        - `zero_sum`: the advantages of a group sum to 0
        - `shift_invariant`, `scale_invariant`: A(r + s) = A(r); A(s r) = A(r) for s > 0
        - `scale_equivariant`: A(s r) = s A(r) for s > 0
        - `permutation_equivariant`: advantages move with their rewards, so equal rewards have equal ones
        - `groupwise`: a group has the same advantages alone and beside other groups
        - `silent_on_equal_rewards`: equal rewards have no advantage
        - `monotone`: in a group, a higher reward never has a smaller advantage
        - `bounded`: no advantage is larger than M, not even of rewards a million times as large
        - `conservative`: at two points of three reward levels the curl is 0, as it is where an objective exists

    Raises:
        ValueError: M out of range; a head that changes the shape, or refuses every group.

    >>> checks = head_properties(lambda r: r - r.median(-1, keepdim=True).values)
    >>> [name for name, check in checks.items() if not check]
    ['zero_sum', 'scale_invariant', 'bounded']
    """
    if not 3 <= M <= LARGEST_M:
        raise ValueError(f"M must be from 3 to {LARGEST_M}, to hold three reward levels, got {M}")
    groups = [(rewards, _ask(head, rewards)) for rewards in _groups(M, seed)]
    answers = [(rewards, advantages) for rewards, advantages in groups if advantages is not None]
    raw = head(answers[0][0] if answers else groups[0][0])  # where it refuses all groups, its own error says why
    tolerance = torch.finfo(raw.dtype if raw.is_floating_point() else torch.float64).eps ** 0.5
    checks = {name: _check(found, tolerance) for name, found in _violations(head, answers, M).items()}
    return checks | {"conservative": _conservative(head, M, tolerance)}


def breaches(head: Head, *, M: int = 8, seed: int = 0) -> dict[str, Check]:
    """The properties that a head declares, as `heads.advantage_head` has it, and does not have.

    Args:
        head, M, seed: as for `head_properties`. A `functools.partial` declares what its function does; a head
            without `declares` breaks no promise.

    >>> breaches(lambda r: r.sort().values)
    {}
    """
    function: Any = head
    while not hasattr(function, "declares") and hasattr(function, "func"):
        function = function.func
    declared = getattr(function, "declares", ())
    checks = head_properties(head, M=M, seed=seed)
    return {name: check for name, check in checks.items() if name in declared and not check}


def _violations(head: Head, answers: list[tuple[Tensor, Tensor]], M: int) -> dict[str, list[Violation]]:
    largest = max((size for _, a in answers if math.isfinite(size := _size(a))), default=0.0)
    floor = max(NEGLIGIBLE * largest, torch.finfo(torch.float64).tiny)
    sized = [(r, max(_size(a), floor), a) for r, a in answers]

    def twins(change: Callable[..., Tensor], undo: Callable[..., Tensor], amounts: Sequence[Any]) -> list[Violation]:
        """Of advantages to those of changed rewards, once the change is undone."""
        asked = [(r, size, a, s, _ask(head, change(r, s))) for r, size, a in sized for s in amounts]
        return [(r, size, undo(other, s) - a) for r, size, a, s, other in asked if other is not None]

    generators = [torch.tensor([1, 0, *range(2, M)]), torch.arange(M).roll(1)]  # of all permutations
    together = _ask(head, torch.stack([r for r, _ in answers]))
    scaled = [(r, size, _ask(head, r * s)) for r, size, _ in sized for s in (1.0, *SCALES)]
    equal = [(r, max(largest, floor), _ask(head, r)) for r in EQUAL[:, None].expand(-1, M)]
    return {
        "zero_sum": [(r, size, a.sum()) for r, size, a in sized],
        "shift_invariant": twins(torch.add, lambda a, s: a, SHIFTS),
        "scale_invariant": twins(torch.mul, lambda a, s: a, SCALES),
        "scale_equivariant": twins(torch.mul, torch.div, SCALES),
        "permutation_equivariant": twins(lambda r, o: r[o], lambda a, o: a[o.argsort()], generators),
        "groupwise": [(*group[:2], b - group[2]) for group, b in zip(sized, together, strict=True)]
        if together is not None
        else [],
        "silent_on_equal_rewards": [(r, size, a) for r, size, a in equal if a is not None],
        "monotone": [(r, size, ((r[:, None] > r) * (a - a[:, None])).clamp(min=0)) for r, size, a in sized],
        "bounded": [(r, size, (a.abs() - M).clamp(min=0)) for r, size, a in scaled if a is not None],
    }


def _check(found: list[Violation], tolerance: float) -> Check:
    shares = [(_size(wrong / size), tuple(rewards.tolist())) for rewards, size, wrong in found]
    violation, rewards = max(shares, default=(math.nan, ()))
    return Check(violation <= tolerance, violation, rewards)


def _conservative(head: Head, M: int, tolerance: float) -> Check:
    """Not judged where equal rewards have different advantages: then there is no one-form."""
    try:
        forms = [(abs(one_form(head, LEVELS, at, M=M)), abs(curl(head, LEVELS, at, M=M))) for at in PROBS]
    except ValueError:
        return Check(False, math.nan, LEVELS)
    violation = max(float(turn.max() / max(form.max(), torch.finfo(torch.float64).tiny)) for form, turn in forms)
    return Check(violation <= tolerance, violation, LEVELS)


def _groups(M: int, seed: int) -> Tensor:
    """[36, M], none with equal rewards; few digits, so that a person can read them."""
    kinds = torch.rand(6, 3, M, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    kinds[..., :2] = torch.tensor([0.0, 0.99])
    kinds[1] = (kinds[1] > 0.6).double()
    kinds[2] = (kinds[2] * 3).floor() / 2
    kinds[3] = 0.5 + kinds[3] / 100
    kinds[4] = 0.7 * (kinds[4] == kinds[4].amax(-1, keepdim=True))
    kinds[5] *= 10
    groups = kinds.flatten(0, 1)
    return torch.cat([groups, 2 * groups - 1]).round(decimals=4)


def _ask(head: Head, rewards: Tensor) -> Tensor | None:
    """Advantages in float64; None where the head refuses the rewards."""
    try:
        with torch.no_grad():
            advantages = head(rewards.clone())
    except ValueError:
        return None
    if getattr(advantages, "shape", None) != rewards.shape:
        got = list(getattr(advantages, "shape", [])) or type(advantages).__name__
        raise ValueError(f"head must map rewards {list(rewards.shape)} to advantages of that shape, got {got}")
    return advantages.detach().cpu().double()


def _size(values: Tensor) -> float:
    """The largest absolute value; infinite where one is not a number."""
    return values.abs().max().nan_to_num(math.inf, math.inf).item()
