"""Which targets a multiset of integers reaches with + - * /, and how: the Countdown solver.

Every step gives a non-negative integer, so a solution reads as a chain of whole-number sums. A multiset
is a sorted tuple; the values that it reaches are found once and kept.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, lru_cache

Multiset = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Node:
    """An expression: a leaf (`op` empty) or two expressions joined by `op`."""

    value: int
    op: str = ""
    left: Node | None = None
    right: Node | None = None

    def steps(self) -> list[str]:
        """The sums in the order of evaluation: `["8-2=6", "6*4=24"]`."""
        if self.left is None or self.right is None:
            return []
        own = f"{self.left.value}{self.op}{self.right.value}={self.value}"
        return [*self.left.steps(), *self.right.steps(), own]

    def __str__(self) -> str:
        """The expression with no more parentheses than its value needs."""
        if self.left is None or self.right is None:
            return str(self.value)
        rank = _RANK[self.op]
        left, right = str(self.left), str(self.right)
        if self.left.op and _RANK[self.left.op] < rank:
            left = f"({left})"
        if self.right.op and (_RANK[self.right.op] < rank or (self.op in "-/" and _RANK[self.right.op] == rank)):
            right = f"({right})"
        return f"{left}{self.op}{right}"


_RANK = {"+": 1, "-": 1, "*": 2, "/": 2}


@cache
def splits(numbers: Multiset) -> tuple[tuple[Multiset, Multiset], ...]:
    """All ways to part a multiset in two non-empty ones, each unordered pair once."""
    found = set()
    for size in range(1, len(numbers) // 2 + 1):
        for chosen in itertools.combinations(range(len(numbers)), size):
            part = tuple(numbers[i] for i in chosen)
            rest = tuple(numbers[i] for i in range(len(numbers)) if i not in chosen)
            found.add((part, rest) if (size, part) <= (len(rest), rest) else (rest, part))
    return tuple(sorted(found))


@lru_cache(maxsize=200_000)
def reachable(numbers: Multiset) -> frozenset[int]:
    """Every value that uses each integer of the sorted tuple `numbers` exactly once."""
    if len(numbers) == 1:
        return frozenset(numbers)
    values: set[int] = set()
    for part, rest in splits(numbers):
        for a, b in itertools.product(reachable(part), reachable(rest)):
            high, low = max(a, b), min(a, b)
            values.update((a + b, a * b, high - low))
            if low and high % low == 0:
                values.add(high // low)
            elif high and low == 0:
                values.add(0)
    return frozenset(values)


def _joins(part: Multiset, rest: Multiset, target: int) -> Iterator[tuple[str, int, int, bool]]:
    """Every last step `a op b = target` (or `b op a` where the flag is set), a from `part`, b from `rest`."""
    if target < 0:
        return
    others = reachable(rest)
    for a in reachable(part):
        candidates = [("+", target - a, False), ("-", a - target, False), ("-", target + a, True)]
        if a:
            candidates.append(("/", target * a, True))
            if target % a == 0:
                candidates.append(("*", target // a, False))
            if target and a % target == 0:
                candidates.append(("/", a // target, False))
        elif target == 0:
            candidates += [("*", b, False) for b in others] + [("/", b, False) for b in others if b]
        yield from ((op, a, b, flipped) for op, b, flipped in candidates if b in others)


def can_reach(numbers: Multiset, target: int) -> bool:
    """Whether some expression over all of `numbers` equals `target`, without listing every value."""
    if len(numbers) == 1:
        return numbers[0] == target
    return any(True for part, rest in splits(numbers) for _ in _joins(part, rest, target))


def solve(numbers: Multiset, target: int, rng: random.Random) -> Node | None:
    """One solution, drawn at random over the last steps that lead to one; None if there is none."""
    if len(numbers) == 1:
        return Node(target) if numbers[0] == target else None
    joins = [(part, rest, join) for part, rest in splits(numbers) for join in _joins(part, rest, target)]
    if not joins:
        return None
    part, rest, (op, a, b, flipped) = rng.choice(joins)
    one, other = solve(part, a, rng), solve(rest, b, rng)
    assert one is not None, f"{part} does not reach {a}"
    assert other is not None, f"{rest} does not reach {b}"
    if flipped or (op in "+*" and rng.random() < 0.5):
        one, other = other, one
    return Node(target, op, one, other)
