"""Countdown: reach a target from a few integers, each used exactly once (paper, section 5.1 and B.3).

The default is the paper's variant: four integers from 1..13, target 24.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from operator import index

from sgrpo_lightning.rewards import Answers, CountdownGrader, Grader, Outcome
from sgrpo_lightning.tasks.arithmetic import Multiset, can_reach, reachable, solve
from sgrpo_lightning.tasks.base import Example
from sgrpo_lightning.tasks.files import load_rows

ENUMERABLE = 20_000  # so many multisets are listed in full; of a larger space a sample is drawn


@dataclass(frozen=True, slots=True)
class Problem:
    """The integers in the order in which they are shown, and the target."""

    numbers: tuple[int, ...]
    target: int
    demonstration: str = field(default="", compare=False)  # of the data, where it has one


class CountdownTask:
    """Generated Countdown problems, or those of a file or hub data set.

    The split is by multiset of the integers, whatever their order and target: all problems over one
    multiset lie on one side, so neither a permutation nor another target leaks. Which side depends on
    `split_seed` alone, never on a run's seed, so that all runs and the warm start share it.

    Args:
        numbers, low, high: how many integers, and the range they come from.
        target: an integer, or "any" for every reachable value in [target_low, target_high].
        held_out_fraction: share of the multisets held out.
        train_size, held_out_size: keep a random subset of so many problems; None keeps all.
        data: a .jsonl/.json/.csv/.parquet file, a folder or a hub id with columns `nums` and `target`, perhaps
            `messages` whose last turn is a demonstration; None generates the problems, each solvable with
            non-negative integer steps.  subset: of a hub data set.
        prompt: template with {numbers} and {target}.  instruction: follows it, as it is; empty for a policy
            that already knows the format.
        grader: of the answers; the default evaluates the expression.
        references: also give each example a demonstration to be compared with, for rewards that need one.
    """

    def __init__(
        self,
        *,
        numbers: int = 4,
        low: int = 1,
        high: int = 13,
        target: int | str = 24,
        target_low: int = 1,
        target_high: int = 60,
        held_out_fraction: float = 0.1,
        split_seed: int = 0,
        train_size: int | None = None,
        held_out_size: int | None = None,
        data: str | None = None,
        subset: str | None = None,
        prompt: str = "Make {target} from {numbers}.",
        instruction: str = "",
        grader: Grader | None = None,
        references: bool = False,
    ) -> None:
        if numbers < 2:
            raise ValueError(f"task.numbers must be >= 2, got {numbers}")
        if not 0 <= low <= high:
            raise ValueError(f"task.low and task.high must satisfy 0 <= low <= high, got {low} and {high}")
        if not 0 < held_out_fraction < 1:
            raise ValueError(f"task.held_out_fraction must lie in (0, 1), got {held_out_fraction}")
        if target != "any" and not isinstance(target, int):
            raise ValueError(f"task.target must be an integer or 'any', got {target!r}")
        self.grader = grader or CountdownGrader()
        self._prompt, self._instruction, self._references = prompt, instruction, references
        wanted = range(target_low, target_high + 1) if isinstance(target, str) else range(target, target + 1)
        rng = random.Random(f"countdown problems {split_seed}")
        problems = (
            _read_problems(data, subset)
            if data
            else _generate(numbers, low, high, wanted, rng, (train_size or 10_000) + (held_out_size or 1_000))
        )
        train: list[Problem] = []
        held_out: list[Problem] = []
        for problem in problems:
            held = is_held_out(problem.numbers, fraction=held_out_fraction, seed=split_seed)
            (held_out if held else train).append(problem)
        self.train: Sequence[Example] = self._examples(train, train_size, rng)
        self.held_out: Sequence[Example] = self._examples(held_out, held_out_size, rng)
        if not self.train or not self.held_out:
            raise ValueError(
                f"task=countdown has {len(self.train)} training and {len(self.held_out)} held-out problems; "
                "widen task.low/task.high or the range of task.target, or change task.held_out_fraction"
            )

    def _examples(self, problems: list[Problem], size: int | None, rng: random.Random) -> list[Example]:
        rng.shuffle(problems)
        return [Example(self._ask(problem), problem, self._reference(problem)) for problem in problems[:size]]

    def _reference(self, problem: Problem) -> str:
        if not self._references:
            return ""
        return _solution(problem, random.Random(f"reference {problem.numbers} {problem.target}"))

    def _ask(self, problem: Problem) -> str:
        question = self._prompt.format(numbers=", ".join(map(str, problem.numbers)), target=problem.target)
        return f"{question} {self._instruction}".strip()

    def grade(self, answers: Answers) -> list[Outcome]:
        """The outcomes of the task's grader."""
        return self.grader(answers)

    def demonstrate(self, example: Example, rng: random.Random) -> str:
        """The one of the data, else a random solution: its sums in the thinking, then the expression as the answer."""
        return _solution(example.answer, rng)


def _solution(problem: Problem, rng: random.Random) -> str:
    if problem.demonstration:
        return problem.demonstration
    solution = solve(tuple(sorted(problem.numbers)), problem.target, rng)
    if solution is None:
        raise ValueError(f"no solution in non-negative integer steps: {problem}")
    return f"<think>{';'.join(solution.steps())}</think><answer>{solution}</answer>"


def is_held_out(numbers: Iterable[int], *, fraction: float, seed: int) -> bool:
    """Whether the multiset of `numbers` belongs to the held-out side: a hash of it, so no list is kept."""
    return random.Random(f"countdown split {seed} {sorted(numbers)}").random() < fraction


def _generate(
    numbers: int, low: int, high: int, wanted: range, rng: random.Random, sample_size: int
) -> Iterator[Problem]:
    """Problems with a solution; the integers of each in a random order."""
    for multiset in _multisets(numbers, low, high, rng, sample_size):
        if len(wanted) == 1:
            targets = [wanted[0]] if can_reach(multiset, wanted[0]) else []
        else:
            targets = sorted(value for value in reachable(multiset) if value in wanted)
        for target in targets:
            yield Problem(tuple(rng.sample(multiset, len(multiset))), target)


def _multisets(numbers: int, low: int, high: int, rng: random.Random, sample_size: int) -> Iterable[Multiset]:
    values = range(low, high + 1)
    if math.comb(len(values) + numbers - 1, numbers) <= ENUMERABLE:
        return itertools.combinations_with_replacement(values, numbers)
    return sorted({tuple(sorted(rng.choices(values, k=numbers))) for _ in range(sample_size)})


def _read_problems(data: str, subset: str | None) -> Iterator[Problem]:
    for number, row in enumerate(load_rows(data, columns=("nums", "target"), subset=subset)):
        turns = row.get("messages") or [{}]
        try:
            yield Problem(_integers(row["nums"]), index(row["target"]), turns[-1].get("content") or "")
        except (TypeError, ValueError) as error:
            raise ValueError(f"{data}, row {number}: nums must be integers and target an integer, got {row}") from error


def _integers(values: Iterable[int] | str) -> tuple[int, ...]:
    """A column of lists as it is; from a CSV file comes text such as "[3, 4, 7]" or "3 4 7"."""
    if isinstance(values, str):
        return tuple(map(int, values.strip("[] ").replace(",", " ").split()))
    return tuple(map(index, values))
