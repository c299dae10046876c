"""Answers graded per second by `MathGrader`, against plain Math-Verify in one process.

    python benchmarks/math_grading.py [--answers 200] [--seconds 5] [--workers 1 2] [--laps 3]

Both grade the same distinct completions, half of them right: fractions, decimals, surds, polynomials, intervals, sets
and matrices; no plain integers, which `MathGrader` compares by itself, and no percentages, which Math-Verify cannot
read beside Hydra. Then 1% of them are powers that take minutes to expand. Plain Math-Verify parses both sides and stops
with its own alarm after as many seconds as a worker is given. Its alarm stops Python only: it would never return from a
power tower such as 9^{9^{9^9}}, so there is none here. The rounds alternate, and a ratio is of neighbours. Every
process has graded some answers before the time is taken.
"""

from __future__ import annotations

import argparse
import logging
import random
import time
from collections.abc import Callable
from statistics import median

from math_verify import parse, verify

from sgrpo_lightning.rewards.answers import Answers
from sgrpo_lightning.rewards.math_grading import MathGrader

WARM = 42
KINDS: tuple[Callable[[int, int], tuple[str, str]], ...] = (
    lambda a, b: (rf"\frac{{{a}}}{{{b}}}", rf"\dfrac{{{2 * a}}}{{{2 * b}}}"),
    lambda a, b: (f"{a}.{b}", f"{a}.{b}0"),
    lambda a, b: (rf"{2 * a}\sqrt{{{b}}}", rf"\sqrt{{{4 * a * a * b}}}"),
    lambda a, b: (f"(x+{a})(x-{b})", f"x^2+{a - b}x-{a * b}".replace("+-", "-")),
    lambda a, b: (f"[{a}, {a + b})", rf"\left[{a}, {a + b}\right)"),
    lambda a, b: (rf"\{{{a}, {b}, -1\}}", rf"\{{-1, {b}, {a}\}}"),
    lambda a, b: (
        rf"\begin{{pmatrix}} {a} & {b} \\ 0 & 1 \end{{pmatrix}}",
        rf"\begin{{bmatrix}}{a}&{b}\\0&1\end{{bmatrix}}",
    ),
)


def make_answers(count: int, hanging: float, seed: int) -> Answers:
    """Completions and their gold answers, none of them twice."""
    rng = random.Random(seed)
    pairs = []
    for number in range(count):
        gold, right = KINDS[number % len(KINDS)](1000 + number, rng.randrange(11, 99))
        _, wrong = KINDS[number % len(KINDS)](3000 + number, rng.randrange(11, 99))
        pairs.append((gold, rng.choice([right, wrong])))
    for number in rng.sample(range(count), round(hanging * count)):
        pairs[number] = (f"x^2+{number}", rf"(x+y+z+{number})^{{300}}")
    golds, texts = zip(*pairs, strict=True)
    return Answers([rf"<think>Let me see.</think> The answer is $\boxed{{{text}}}$." for text in texts], golds)


def plain(answers: Answers, seconds: int) -> list[bool]:
    return [
        verify(
            parse(rf"\boxed{{{gold}}}", parsing_timeout=seconds),
            parse(completion, parsing_timeout=seconds),
            timeout_seconds=seconds,
        )
        for completion, gold in zip(answers.completions, answers.golds, strict=True)
    ]


def rate(grade: Callable[[Answers], list], answers: Answers) -> tuple[float, list]:
    """Answers per second of the clock."""
    start = time.perf_counter()
    graded = grade(answers)
    return len(answers) / (time.perf_counter() - start), graded


def race(arguments: argparse.Namespace, hanging: float) -> None:
    """Medians over the laps, each of which has answers of its own."""
    rates: dict[int, list[tuple[float, float]]] = {workers: [] for workers in arguments.workers}
    for lap in range(arguments.laps):
        answers = make_answers(arguments.answers, hanging, seed=lap)
        usual, expected = rate(lambda answers: plain(answers, arguments.seconds), answers)
        for workers in arguments.workers:
            with MathGrader(workers=workers, seconds=arguments.seconds) as grader:
                grader(make_answers(WARM, 0.0, seed=-1))
                ours, outcomes = rate(grader, answers)
            rates[workers].append((ours, ours / usual))
            differ = sum(outcome.reward != value for outcome, value in zip(outcomes, expected, strict=True))
            stopped = sum(outcome.status == "timeout" for outcome in outcomes)
            print(f"  lap {lap}, {workers} workers: plain {usual:6.1f}/s, {stopped} stopped, {differ} rewards differ")
    for workers, measured in rates.items():
        ours, ratio = map(median, zip(*measured, strict=True))
        print(f"{hanging:4.0%} hanging, {workers} workers: {ours:7.1f} answers/s, {ratio:5.2f}x of plain Math-Verify")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--answers", type=int, default=200)
    parser.add_argument("--seconds", type=int, default=5)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--laps", type=int, default=3)
    arguments = parser.parse_args()
    logging.getLogger("math_verify").setLevel(logging.ERROR)
    plain(make_answers(WARM, 0.0, seed=-1), arguments.seconds)
    for hanging in (0.0, 0.01):
        race(arguments, hanging)


if __name__ == "__main__":
    main()
