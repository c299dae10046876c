r"""Hostile answers through the reward of every task: none may raise, stall a run or leave memory behind.

    python benchmarks/hostile.py [--tasks gsm8k deepmath] [--answers 100000]

Linux. Each task has the reward that conf/task names. Most grade one answer at a time, so that the slowest is known;
mathematics goes to one worker per CPU, in batches of 512, with 1 s for an answer. Of a thousand answers one is a power
tower or the like, which never ends, and a few more run out of time by what they hold. Memory is what a process holds
(VmRSS), after a tenth of the answers and at the end; by then the memory of pairs, set to 500, is full.
"""

import argparse
import os
import random
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, get_args

from hydra.utils import instantiate
from omegaconf import OmegaConf

from sgrpo_lightning.rewards import Answers, Grader, Outcome, Status
from sgrpo_lightning.tasks.countdown import Problem

CONF = Path(__file__).parents[1] / "conf"
MEBIBYTE = 2**20
BATCH = 512  # for rewards with workers


class Asked(NamedTuple):
    """What an answer is graded by, a right answer, and the form in which it is asked for."""

    gold: Any
    reference: str
    answer: str
    form: str

    @property
    def right(self) -> str:
        return self.form.format(self.answer)


def _texts(*texts: str) -> list[Asked]:
    return [Asked(text, f"<think>Hm.</think>{text}", text, "<think>Hm.</think>{}") for text in texts]


_MATRIX = r"\begin{pmatrix} 1 & 0 \\ 0 & 1 \end{pmatrix}"
_NUMBERS = ("18", "-3", "1250000", "0.5")
_MATHS = (
    *(r"\frac{1}{2}", r"\{1, 2, 3\}", r"(-\infty, 3]", "x^2 + 2x + 1", _MATRIX, "Yes", r"2\sqrt{3} \pi"),
    *("x = 3", r"\infty", r"\frac{\log(2)}{e^{i \pi}}", "10^{100}", r"50\%"),
)
_SUMS = {"8/(3-8/3)": ((3, 3, 8, 8), 24), "1*2*3*4": ((1, 2, 3, 4), 24), "5-7*9": ((5, 7, 9), -58)}

ASKED = {
    "countdown": [
        Asked(Problem(*problem), "", text, "<think>Hm.</think><answer>{}</answer>") for text, problem in _SUMS.items()
    ],
    "gsm8k": [Asked(gold, "", gold, r"<think>Hm.</think>So \boxed{{{}}}.") for gold in _NUMBERS],
    "deepmath": [Asked(gold, "", gold, r"<think>Hm.</think>So \boxed{{{}}}.") for gold in _MATHS],
    "poetry": _texts("Snow falls on the pond;\nthe frog stays in.", "\u843d\u82b1\u6d41\u6c34"),
    "meetingbank": _texts("The council adopted the budget, 5 to 2, and the clerk was asked to report."),
    "openthoughts": _texts("The derivative is 2x, as the limit shows.", "def f(x):\n    return {x: [x]}"),
}

# ---- what an answer may hold: (generator, a right answer) -> text ----

RANGES = (
    *((0x00, 0x1F), (0x20, 0x7E), (0x7F, 0xFF), (0x300, 0x36F), (0x590, 0x6FF), (0xE00, 0xE5B), (0x200B, 0x206F)),
    *((0x2070, 0x209C), (0x2150, 0x218B), (0x2200, 0x22FF), (0x3000, 0x30FF), (0x4E00, 0x4FFF), (0xAC00, 0xD7A3)),
    *((0xD800, 0xDFFF), (0xE000, 0xE0FF), (0xFDD0, 0xFDFF), (0xFF01, 0xFF9F), (0xFFF0, 0xFFFF), (0x1D400, 0x1D7FF)),
    *((0x1F100, 0x1F1FF), (0x1F300, 0x1FAFF), (0xE0001, 0xE007F), (0x10FFF0, 0x10FFFF)),
)
NESTS = (
    *(("{", "}"), ("(", ")"), ("[", "]"), ("|", "|"), ("$", "$"), ("-", ""), ("-(", ")"), ("1+(", ")"), ("x^{", "}")),
    *((r"\left(", r"\right)"), (r"\{", r"\}"), (r"\frac{1}{", "}"), (r"\frac{", "}{2}"), (r"\sqrt{", "}")),
    *((r"\boxed{", "}"), (r"\text{", "}"), (r"\log(", ")"), (r"\sin ", ""), (r"\int_0^1 ", " dx"), ("x_{", "}")),
    *((r"\binom{9}{", "}"), (r"\begin{pmatrix}", r"\end{pmatrix}"), ("<think>", "</think>"), ("<answer>", "</answer>")),
)
_LATEX = r"""
    \frac \dfrac { } ( ) [ ] ^ _ & \\ $ \[ \] \( \) \{ \} % # #### ~ ' ! | < > = , . ; : + - * / 0 1 2 7 x y i e
    \sqrt \sqrt[3] \pi \infty \cup \cap \in \setminus \emptyset \to \cdot \times \div \pm \le \ne \approx 1,000 0.5
    \sum_{n=1} \int_0^1 \prod \lim_{x\to0} \log_2 \ln \sin \arctan \binom \left \right \left( \right] 1/2 3e5 -7 nan inf
    \begin{pmatrix} \end{pmatrix} \begin{cases} \end{cases} \begin{array}{c} \end{align*} \begin \end dollars None
    \text{ \mathrm{ \textbf{ \boxed{ \boxed \fbox{ \overline{ \mathbb{R} \circ \% \$ \# \, \quad \dots
"""
FRAGMENTS = [*_LATEX.split(), " ", "\n", " and ", " or ", "x = 3", r"1 \frac{1}{2}"]
TAGS = ["<think>", "</think>", "<answer>", "</answer>", r"\boxed{", "}", "{", r"\{", "<", "/", "#### 7\n", "7", " "]
HUGE = (
    *("{a}^{{{b}}}", "10^{{-{b}}}", "{a}e{b}", "{a}.{b}", "{a},{b}", "{a}*{b}", "{a}/{b}", "-{a}"),
    *(r"\frac{{{a}}}{{{b}}}", r"\sqrt{{{a}}}", r"\log({a})", "{a}%"),
)
ENDLESS = (
    *("{a}^{{{b}^{{{a}^{{{b}}}}}}}", "{b}{a}{b}{a}{b}{a}!", r"\sqrt[{a}]{{{b}^{{{a}^{{9999999}}}}}}"),
    *(r"\log(\log({a}^{{{b}^{{9999999}}}}))", r"\binom{{{a}{b}99999999}}{{{b}9999999}}"),
)
PLACES = ["{}", "<think>{}", "<think>{}</think>{}", "</think>{}", "<answer>{}</answer>", r"\boxed{{{}}}", "#### {}"]
# Those between the extremes, which are few, take Math-Verify longest; over 512 characters nothing reaches it.
DEPTHS = (*[1, 2] * 60, *[3] * 4, 12, 40, *[600, 5000] * 35)
DIGITS = (*[1, 2, 3] * 30, 18, 200, *[600, 5000] * 3)
OBJECTS: tuple[Any, ...] = (
    None,
    b"<answer>1</answer>",
    24,
    0.5,
    float("nan"),
    True,
    [],
    ["24"],
    {},
    {"answer": 24},
    (),
    object(),
    str,
)


def soup(rng: random.Random, right: str) -> str:
    ranges = rng.sample(RANGES, rng.randint(1, 4))
    return "".join(chr(rng.randint(*rng.choice(ranges))) for _ in range(rng.randint(1, 60)))


def marks(rng: random.Random, right: str) -> str:
    run = rng.choice([1, 29, 31, 3000])
    return right[:9] + "".join(chr(rng.randint(0x300, 0x36F)) for _ in range(run)) + rng.choice(["1", "\uff11", ""])


def nested(rng: random.Random, right: str) -> str:
    (opening, closing), depth = rng.choice(NESTS), rng.choice(DEPTHS)
    return opening * depth + rng.choice(["", "1", "x", right]) + closing * (depth + rng.choice([0, 0, -1, 1]))


def huge(rng: random.Random, right: str) -> str:
    a, b = ("".join(rng.choices("0123456789", k=rng.choice(DIGITS))) for _ in "ab")
    return rng.choice(HUGE).format(a=a, b=b)


def endless(rng: random.Random, right: str) -> str:
    return rng.choice(ENDLESS).format(a=rng.randint(3, 99), b=rng.randint(3, 99))


def collection(rng: random.Random, right: str) -> str:
    numbers = [str(rng.randint(-99, 99)) for _ in range(rng.choice([0, 2, 5, 60, 3000]))]
    opening, separator, closing = rng.choice(
        [(r"\{", ", ", r"\}"), ("(", ",", "]"), ("[", r",\infty)\cup(", ")"), ("", r" \cup ", ""), ("x=", " or x=", "")]
        + [(rf"\begin{{{kind}}}", " & ", rf"\end{{{kind}}}") for kind in ("pmatrix", "bmatrix", "cases", "array")]
    )
    return opening + separator.join(numbers) + closing


def fragments(rng: random.Random, right: str) -> str:
    return rng.choice(["", " "]).join(rng.choices(FRAGMENTS, k=rng.randint(1, 25)))


def tags(rng: random.Random, right: str) -> str:
    return "".join(rng.choices([*TAGS, right], k=rng.randint(1, 20)))


def repeats(rng: random.Random, right: str) -> str:
    piece = rng.choice([*TAGS, *FRAGMENTS, right, "\0", "\ud800", "\u0301", "\uff11", "\ufdfa", "\U0001f600"])
    return piece * (rng.choice([10**4, 10**5, MEBIBYTE]) // len(piece))


def mutated(rng: random.Random, right: str) -> str:
    for _ in range(rng.randint(1, 4)):
        start = rng.randrange(len(right) + 1)
        end = start + rng.choice([0, 0, 1, 5])
        right = right[:start] + rng.choice(["", right[start:end] * 2, rng.choice(FRAGMENTS), chr(0xFF10)]) + right[end:]
    return right


KINDS: dict[Callable[[random.Random, str], str], int] = {
    **{soup: 150, marks: 20, nested: 150, huge: 120, endless: 1, collection: 100},
    **{fragments: 200, tags: 100, repeats: 8, mutated: 140},
}
"""Their shares, in thousandths; what is left are objects that are no text."""
WHOLE = (tags, mutated)
"""Kinds that make a whole completion."""


def hostile_answer(rng: random.Random, asked: Asked) -> Any:
    """One answer, of a kind by chance; every other text stands where the answer is asked for."""
    draw = rng.randrange(1000)
    for kind, share in KINDS.items():
        draw -= share
        if draw < 0:
            text = kind(rng, asked.right if kind in WHOLE else asked.answer)
            return text if kind in WHOLE else rng.choice([asked.form, rng.choice(PLACES)]).format(text, text)
    return rng.choice(OBJECTS)


def reward_of(task: str, **limits: Any) -> Grader:
    """The grader that conf/task/<task>.yaml names; `limits` are for one with workers."""
    defaults = OmegaConf.load(CONF / "task" / f"{task}.yaml").defaults
    (name,) = (default["/reward"] for default in defaults if "/reward" in default)
    node = OmegaConf.load(CONF / "reward" / f"{name}.yaml")
    return instantiate(node, _convert_="all", **(limits if "workers" in node else {}))


def fault(outcome: Outcome) -> str:
    """What is wrong with the outcome of an answer; "" where nothing is."""
    sound = 0 <= outcome.reward <= 1 and outcome.status in get_args(Status)
    return "" if sound else f"{outcome!r:.200}"


# ---- the benchmark ----


def resident() -> tuple[float, float]:
    """MiB of this process, and of the largest of those that descend from it."""
    sizes, parents = {}, {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            lines = (folder / "status").read_text().splitlines()
        except OSError:  # it has ended
            continue
        facts = {name: value.split() for name, _, value in (line.partition(":") for line in lines)}
        parents[int(folder.name)] = int(facts["PPid"][0])
        sizes[int(folder.name)] = int(facts.get("VmRSS", ["0"])[0]) / 1024
    family = {os.getpid()}
    while more := {pid for pid, parent in parents.items() if parent in family} - family:
        family |= more
    return sizes[os.getpid()], max((sizes[pid] for pid in family - {os.getpid()}), default=0.0)


def assail(task: str, count: int, seconds: float) -> str:
    """Grade `count` hostile answers; what was measured, in a few lines."""
    grader, rng = reward_of(task, seconds=seconds, remembered=500), random.Random(f"hostile {task}")
    size = BATCH if hasattr(grader, "close") else 1
    statuses: Counter[str] = Counter()
    faults, slowest, spent, before = [], (0.0, ""), 0.0, (0.0, 0.0)
    for done in range(0, count, size):
        asked = [rng.choice(ASKED[task]) for _ in range(min(size, count - done))]
        answers = [hostile_answer(rng, one) for one in asked]
        start = time.perf_counter()
        outcomes, found = graded(grader, asked, answers)
        elapsed = time.perf_counter() - start
        spent += elapsed
        faults += found
        statuses.update(outcome.status for outcome in outcomes)
        if elapsed > slowest[0] and done:  # the first time starts the workers
            ends = sum(outcome.status == "timeout" for outcome in outcomes)
            slowest = elapsed, f"{answers[0]!a:.80}" if size == 1 else f"{size} answers, {ends} of them stopped"
        if done <= count // 10 < done + size:
            before = resident()
    after = resident()
    getattr(grader, "close", lambda: None)()
    shares = ", ".join(f"{status} {statuses[status] / count:.2%}" for status in get_args(Status) if statuses[status])
    lines = [
        f"{task}: {count:,} answers, {count / spent:,.0f}/s, raised or broke: {len(faults)}",
        f"  {shares}",
        f"  slowest: {slowest[0]:.3f} s, {slowest[1]}",
        f"  memory: {before[0]:.0f} -> {after[0]:.0f} MiB; largest worker {before[1]:.0f} -> {after[1]:.0f} MiB",
    ]
    return "\n".join([*lines, *faults[:10]])


def graded(grader: Grader, asked: list[Asked], answers: list[Any]) -> tuple[list[Outcome], list[str]]:
    """The outcomes, and what is wrong with them."""
    batch = Answers(answers, golds=[one.gold for one in asked], references=[one.reference for one in asked])
    try:
        outcomes = grader(batch)
    except Exception as error:
        return [], [f"  {error!r:.200} from {len(answers)} answers, such as {answers[0]!a:.300} for {asked[0].gold!r}"]
    pairs = zip(outcomes, answers, strict=True)
    return outcomes, [f"  {found} from {answer!a:.300}" for outcome, answer in pairs if (found := fault(outcome))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", nargs="+", choices=list(ASKED), default=list(ASKED))
    parser.add_argument("--answers", type=int, default=100_000)
    parser.add_argument("--seconds", type=float, default=1.0, help="for one answer, where there are workers")
    arguments = parser.parse_args()
    for task in arguments.tasks:
        print(assail(task, arguments.answers, arguments.seconds), flush=True)


if __name__ == "__main__":
    main()
