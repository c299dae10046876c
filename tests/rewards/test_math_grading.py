"""Grades of answers: a table reasoned out by hand, one value from every thread and process, and answers that hang."""

import doctest
import logging
import multiprocessing
import os
import signal
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sgrpo_lightning.rewards import Answers, Outcome, math_grading
from sgrpo_lightning.rewards.math_grading import MAX_LENGTH, MathGrader, grade_math, math_reward

FUZZ = settings(derandomize=True, max_examples=300, deadline=None)

# (gold answer, answer in the box, status)
TABLE = [
    # Integers: signs, thousands, dollars.
    ("18", "18", "ok"),
    ("18", "19", "wrong"),
    ("-5", "-5", "ok"),
    ("5", "-5", "wrong"),
    ("5", "+5", "ok"),
    ("0", "-0", "ok"),
    ("7", "007", "ok"),
    ("1,000", "1000", "ok"),
    ("1000", "1{,}000", "ok"),
    ("1000", r"1\,000", "ok"),
    ("1000", "1 000", "ok"),
    ("1234567", r"1\ 234\ 567", "ok"),
    ("1234567", "1,234,567", "ok"),
    ("1234567", "1,234,568", "wrong"),
    ("18", "$18", "ok"),
    ("18", r"\$18", "ok"),
    ("-18", "-$18", "ok"),
    ("-18", r"\$-18", "ok"),
    ("18", "18.", "ok"),
    ("18", "1 8", "wrong"),
    ("9" * 60, "9" * 59 + "8", "wrong"),
    # Decimals; Math-Verify compares them to six places.
    ("18", "18.00", "ok"),
    ("18.00", "18", "ok"),
    ("18", r"\$18.00", "ok"),
    ("0.5", ".5", "ok"),
    ("-0.25", "-0.250", "ok"),
    ("72", "72.5", "wrong"),
    ("1,000.99", "1000.99", "ok"),
    ("1/3", "0.333333", "ok"),
    ("1/3", "0.33", "wrong"),
    (r"\pi", "3.14", "wrong"),
    (r"\frac{\pi}{2}", "1.570796", "ok"),
    # Percentages: as the number in front, or as its hundredth.
    ("18", "18%", "ok"),
    ("18", r"18\%", "ok"),
    (r"18\%", "18", "ok"),
    ("28", "28 percent", "ok"),
    (r"28\%", r"28\text{ percent}", "ok"),
    ("0.28", r"28\%", "ok"),
    ("0.28", "28", "wrong"),
    (r"28\%", r"29\%", "wrong"),
    # Units, in text or known to Math-Verify.
    ("18", r"18\text{ dollars}", "ok"),
    ("18", "18 dollars", "wrong"),
    ("7", r"7\text{ cm}^2", "ok"),
    ("7", "7 cm", "ok"),
    ("90", r"90^\circ", "ok"),
    ("12", r"13\text{ apples}", "wrong"),
    # Fractions and mixed numbers.
    (r"\dfrac{1}{2}", r"\frac12", "ok"),
    (r"\frac{1}{2}", "1/2", "ok"),
    (r"\frac{1}{2}", r"\frac{-1}{-2}", "ok"),
    (r"-\frac{1}{2}", r"\frac{-1}{2}", "ok"),
    (r"\frac{1}{2}", r"\frac{1}{3}", "wrong"),
    ("2.5", r"2\frac{1}{2}", "ok"),
    ("2.5", "2 1/2", "ok"),
    ("-2.5", "-2 1/2", "ok"),
    ("10.5", "2 1/2", "wrong"),
    # Powers, roots, constants.
    ("100000", r"1 \times 10^{5}", "ok"),
    (r"\sqrt{8}", r"2\sqrt{2}", "ok"),
    (r"\frac{1}{\sqrt{2}}", r"\frac{\sqrt{2}}{2}", "ok"),
    ("e", "2.718281828", "ok"),
    (r"\infty", "inf", "ok"),
    (r"\infty", r"-\infty", "wrong"),
    ("6", "3!", "ok"),
    (r"\ln 4", r"2\ln 2", "ok"),
    # Expressions.
    ("x^2+2x+1", "(x+1)^2", "ok"),
    ("x^2+1", "1+x^2", "ok"),
    ("x^2+1", "x^2+2", "wrong"),
    ("x", "y", "wrong"),
    # Equations; which side is the gold answer matters in some.
    ("5", "x = 5", "ok"),
    ("x = 5", "5", "ok"),
    ("x = 5", "y = 5", "wrong"),
    ("y = 2x + 1", "y - 2x = 1", "ok"),
    ("x > 3", "3 < x", "ok"),
    ("1", "2x + z = 1", "ok"),
    ("2x + z = 1", "1", "wrong"),
    ("1 < x < 2", "(1, 2)", "ok"),
    ("(1, 2)", "1 < x < 2", "wrong"),
    # Intervals, tuples, sets.
    ("[0, 1)", r"\left[0, 1\right)", "ok"),
    ("[0, 1)", "[0, 1]", "wrong"),
    ("[0, 1)", "[0, 2)", "wrong"),
    (r"(-\infty, 1) \cup (2, \infty)", r"(2, \infty) \cup (-\infty, 1)", "ok"),
    ("(1, 2)", "(2, 1)", "wrong"),
    ("(1, 2, 3)", "(1, 2, 3)", "ok"),
    ("(1, 2, 3)", "(1, 3, 2)", "wrong"),
    (r"\{1, 2, 3\}", r"\{3, 1, 2\}", "ok"),
    (r"\{1, 2, 3\}", r"\{1, 2\}", "wrong"),
    (r"\{\frac{1}{2}, 1\}", r"\{1, 0.5\}", "ok"),
    ("2, -2", r"\pm 2", "ok"),
    ("5, 6", r"6\text{ and }5", "ok"),
    (r"\mathbb{Z}", r"\mathbb{Z}", "ok"),
    (r"\mathbb{Z}", r"\mathbb{R}", "wrong"),
    # Matrices.
    (r"\begin{pmatrix} 1 & 2 \\ 3 & 4 \end{pmatrix}", r"\begin{bmatrix}1&2\\3&4\end{bmatrix}", "ok"),
    (r"\begin{pmatrix} 1 & 2 \\ 3 & 4 \end{pmatrix}", r"\begin{bmatrix}1&2\\3&5\end{bmatrix}", "wrong"),
    (r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}", r"\begin{pmatrix} 1 & 2 \end{pmatrix}", "wrong"),
    # Words.
    ("Yes", r"\text{Yes}", "ok"),
    ("Yes", "yes.", "ok"),
    (r"\text{True}", "True", "ok"),
    ("Yes", "No", "wrong"),
    ("No", r"\text{Yes}", "wrong"),
    ("infinite", r"\mathrm{Infinite}", "ok"),
    ("Does not exist", r"\text{does not exist}", "ok"),
    ("A", r"\text{B}", "wrong"),
    # Not mathematics.
    ("5", r"\foo{3}", "unparseable"),
    ("5", r"\frac{", "no_answer"),
    ("5", "]]", "unparseable"),
    ("5", "five 5 5", "wrong"),
    ("5", r"\unknown{5} 5", "unparseable"),
    (r"\mathbb{Z}/2\mathbb{Z}", r"\mathbb{Z}/2\mathbb{Z}", "ok"),
    (r"\mathbb{Z}/2\mathbb{Z}", "5", "error"),
    # Nothing.
    ("5", "", "no_answer"),
]


def boxed(text):
    return f"<think>Is it \\boxed{{0}}?</think> It is $\\boxed{{{text}}}$."


@pytest.mark.parametrize(("gold", "text", "status"), TABLE)
def test_grades(gold, text, status):
    outcome = grade_math(boxed(text), answer=gold)
    assert outcome == Outcome(float(status == "ok"), status, None if status == "no_answer" else text)
    assert math_reward(boxed(text), answer=gold) == outcome.reward


def test_without_an_answer_no_number_in_the_text_counts():
    for completion in ("The answer is 18.", "$18$", "Answer: 18", "<answer>18</answer>", "<think>\\boxed{18}", "18"):
        assert grade_math(completion, answer="18") == Outcome(0.0, "no_answer", None)


def test_a_long_answer_is_not_read():
    assert grade_math(boxed("0" * (MAX_LENGTH - 1) + "7"), answer="7").status == "ok"
    assert grade_math(boxed("0" * MAX_LENGTH + "7"), answer="7").status == "unparseable"
    assert grade_math(boxed("Yes" + " " * MAX_LENGTH + "x"), answer="Yes").status == "unparseable"


def test_integers_with_thousands_agree_with_math_verify(monkeypatch):
    """The short way and Math-Verify's say the same."""
    pairs = [(gold, text) for gold, text, _ in TABLE if math_grading._integer(gold) is not None]
    short = [math_reward(boxed(text), answer=gold) for gold, text in pairs]
    monkeypatch.setattr(math_grading, "_integer", lambda text: None)
    assert [math_reward(boxed(text), answer=gold) for gold, text in pairs] == short


@pytest.mark.parametrize("completion", [None, 5, b"\\boxed{5}", "", "\\boxed{\ud800}", "\\boxed{\x00}", "\\boxed{\\"])
@pytest.mark.parametrize("answer", ["5", 5, "", "\\frac{", "\ud800", None])
def test_nothing_raises(completion, answer):
    assert math_reward(completion, answer=answer) in (0.0, 1.0)


PIECES = ["1", "2", "x", *"+-^_{}(,& =", "\\frac", "\\sqrt", "\\text", "\\%", "\\\\"]


@FUZZ
@given(st.lists(st.sampled_from(PIECES), max_size=8).map("".join))
def test_no_arrangement_of_pieces_raises(text):
    assert 0.0 <= math_reward(boxed(text), answer=r"\frac{1}{2}") <= 1.0


def test_sympy_is_left_with_the_same_random_numbers_whatever_it_was_asked_before():
    from sympy.core.random import rng, seed

    states = []
    for start in (1, 2):
        seed(start)
        assert math_reward(boxed("(x+1)^2"), answer="x^2+2x+1") == 1.0
        states.append(rng.getstate())
    assert states[0] == states[1]


def test_math_verify_is_quiet(caplog):
    with caplog.at_level(logging.DEBUG):
        math_reward(boxed("x+1"), answer="x+2")
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


# ---------------------------------------------------------------------------------------------- in workers


def ask(grader, *pairs):
    golds, texts = zip(*pairs, strict=True)
    return grader(Answers([boxed(text) for text in texts], golds))


def running():
    return [process for process in multiprocessing.active_children() if process.name == "pebble_pool_worker"]


def test_workers_say_what_this_process_says():
    pairs = [(gold, text) for gold, text, _ in TABLE]
    expected = [grade_math(boxed(text), answer=gold) for gold, text in pairs]
    with MathGrader(workers=2, seconds=60.0) as grader:
        assert ask(grader, *pairs) == expected
    with MathGrader(workers=1, seconds=60.0) as grader:
        assert ask(grader, *pairs[::-3]) == expected[::-3]


def test_threads_say_what_this_process_says():
    pairs = [(gold, text) for gold, text, _ in TABLE][::3]
    expected = [grade_math(boxed(text), answer=gold) for gold, text in pairs]
    said = {}

    def work(name):
        shift = name * 7
        turned = [grade_math(boxed(text), answer=gold) for gold, text in pairs[shift:] + pairs[:shift]]
        said[name] = turned[len(pairs) - shift :] + turned[: len(pairs) - shift]

    threads = [threading.Thread(target=work, args=(name,)) for name in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert said == dict.fromkeys(range(4), expected)


HANGING = [
    ("5", "9^{9^{9^{9}}}"),
    ("2.5", r"\ln(\ln(\ln(\ln(9^{9^{9}}))))"),
    ("5", "(((99!)!)!)!"),
    ("x^2+1", "(x+y+z+w)^{300}"),
    ("5", r"\binom{10^{9}}{10^{8}}"),
]


def test_answers_that_hang_cost_their_own_limit_and_the_pool_keeps_its_size():
    easy = [("0.5", rf"\frac{{{n}}}{{{2 * n}}}") for n in range(1, 6)]
    with MathGrader(workers=2, seconds=2.0) as grader:
        outcomes = ask(grader, *HANGING, *easy)
        assert outcomes[:5] == [Outcome(0.0, "timeout", text) for _, text in HANGING]
        assert [outcome.status for outcome in outcomes[5:]] == ["ok"] * 5
        assert ask(grader, *[("1.5", rf"\frac{{{3 * n}}}{{{2 * n}}}") for n in range(1, 9)])[7].status == "ok"
        assert len(running()) == 2


def test_every_distinct_pair_is_graded_once_and_remembered(monkeypatch):
    with MathGrader(workers=1, seconds=2.0, remembered=3) as grader:
        asked, through = [], grader._pool.map

        def count(function, items):
            asked.extend(items)
            return through(function, items)

        monkeypatch.setattr(grader._pool, "map", count)
        tower, half, third = HANGING[0], ("0.5", r"\frac12"), ("0.25", r"\frac14")
        statuses = [outcome.status for outcome in ask(grader, half, tower, half, tower, third)]
        assert statuses == ["ok", "timeout", "ok", "timeout", "ok"]
        assert asked == [(text, gold) for gold, text in (half, tower, third)]
        assert [outcome.status for outcome in ask(grader, tower, half)] == ["timeout", "ok"]
        assert len(asked) == 3
        ask(grader, ("0.5", r"\frac24"))  # the one that was asked for least recently makes room
        ask(grader, tower, half)
        assert len(asked) == 4
        ask(grader, third)
        assert len(asked) == 5


def test_what_needs_no_mathematics_needs_no_worker():
    with MathGrader(workers=2) as grader:
        outcomes = grader(Answers([boxed("18"), "18", boxed("19"), boxed("yes")], ["18", "18", "18", "Yes"]))
        assert [outcome.status for outcome in outcomes] == ["ok", "no_answer", "wrong", "ok"]
        assert grader.audit(["18", "1,000", "-5"]) == [True] * 3
        assert grader(Answers([], [])) == []
        assert not running()


def test_an_answer_whose_worker_is_killed_is_an_error_and_not_remembered(caplog):
    with MathGrader(workers=1, seconds=20.0) as grader:
        assert ask(grader, ("0.5", r"\frac12"))[0].status == "ok"
        timer = threading.Timer(0.5, lambda: os.kill(running()[0].pid, signal.SIGKILL))
        timer.start()
        outcomes = ask(grader, HANGING[0], ("0.25", r"\frac14"))
        timer.join()
        assert [outcome.status for outcome in outcomes] == ["error", "ok"]
        assert "died with exit code -9" in caplog.text
        assert len(running()) == 1
        assert list(grader._known) == [(r"\frac12", "0.5"), (r"\frac14", "0.25")]


def test_an_answer_that_needs_all_memory_is_stopped():
    """Either its memory or its time runs out; the reward is the same and the next answer is graded."""
    with MathGrader(workers=1, seconds=2.0, megabytes=64) as grader:
        outcomes = ask(grader, ("x^2+1", "(x+y+z+w)^{900}"), ("5", "10^{10^{9}}"), ("0.5", r"\frac12"))
        assert [outcome.reward for outcome in outcomes] == [0.0, 0.0, 1.0]


def test_the_audit_finds_gold_answers_that_cannot_be_reached():
    golds = ["18", r"\frac{1}{2}", "Yes", r"\mathbb{Z}/2\mathbb{Z}", "", r"\frac{", "(1, 2)", "9^{9^{9^{9}}} + x", "18"]
    with MathGrader(workers=1, seconds=2.0) as grader:
        sound = dict(zip(golds, grader.audit(golds), strict=True))
        assert len(grader.audit(golds)) == 9
    parses = {"18": True, r"\frac{1}{2}": True, "Yes": True, "(1, 2)": True}
    assert sound == parses | {r"\mathbb{Z}/2\mathbb{Z}": False, "": False, r"\frac{": False, "9^{9^{9^{9}}} + x": True}


@pytest.mark.parametrize(("ranks", "workers"), [("1", 6), ("2", 3), ("4", 1), ("8", 1)])
def test_ranks_of_a_machine_share_its_cpus(monkeypatch, ranks, workers):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(6)))
    monkeypatch.setenv("LOCAL_WORLD_SIZE", ranks)
    assert MathGrader()._pool.workers == workers


def test_a_setting_that_cannot_be_is_refused():
    with pytest.raises(ValueError, match=r"seconds must be > 0, got -1"):
        MathGrader(workers=1, seconds=-1)


def test_doctests():
    assert doctest.testmod(math_grading) == doctest.TestResults(failed=0, attempted=3)
