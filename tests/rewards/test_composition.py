"""Composed rewards: what is reported adds up to what is optimised, and faults name the part they are in."""

import doctest
import math
from decimal import Decimal
from fractions import Fraction
from functools import partial

import numpy as np
import pytest
from hydra.utils import instantiate
from hypothesis import given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf

from sgrpo_lightning.rewards import Answers, Outcome, composition
from sgrpo_lightning.rewards.composition import FunctionGrader, WeightedSum

FUZZ = settings(derandomize=True, max_examples=200, deadline=None)


class Fixed:
    """Grades with given outcomes."""

    def __init__(self, *outcomes):
        self.outcomes = list(outcomes)

    def __call__(self, answers):
        return self.outcomes


class Auditor(Fixed):
    """Cannot grade the golds that are in `unfit`."""

    version = "7"

    def __init__(self, unfit):
        super().__init__()
        self.unfit = unfit

    def audit(self, golds):
        return [gold not in self.unfit for gold in golds]


class OtherAuditor(Auditor):
    version = "8"


def answers(*completions):
    return Answers(completions, golds=["gold"] * len(completions))


def scored(*rewards, status="ok"):
    return Fixed(*(Outcome(reward, status, None) for reward in rewards))


def test_the_weighted_sum_of_the_paper():
    """B.5: 0.65 * 0.8 + 0.35 * 1 = 0.87, and 0.65 * 0.5 + 0.35 * 0 = 0.325."""
    similarity = Fixed(Outcome(0.8, "ok", "a", {"f1": 1.0, "rouge_l": 0.5}), Outcome(0.5, "wrong", "b", {"f1": 0.1}))
    parts = {
        "similarity": {"weight": 0.65, "grader": similarity},
        "format": {"weight": 0.35, "grader": scored(1.0, 0.0, status="timeout")},
    }
    first, second = WeightedSum(parts)(answers("x", "y"))
    assert (first.reward, second.reward) == (pytest.approx(0.87), pytest.approx(0.325))
    assert (first.status, first.answer, second.status, second.answer) == ("ok", "a", "wrong", "b")
    assert first.parts == {"similarity": 0.8, "similarity.f1": 1.0, "similarity.rouge_l": 0.5, "format": 1.0}
    assert second.parts == {"similarity": 0.5, "similarity.f1": 0.1, "format": 0.0}


NUMBERS = st.floats(-1e6, 1e6)


@FUZZ
@given(st.lists(st.tuples(NUMBERS, st.lists(NUMBERS, min_size=3, max_size=3)), min_size=1, max_size=5))
def test_what_is_reported_adds_up_exactly(columns):
    weights = {f"part_{number}": weight for number, (weight, _) in enumerate(columns)}
    graders = {f"part_{number}": scored(*rewards) for number, (_, rewards) in enumerate(columns)}
    parts = {name: {"weight": weights[name], "grader": graders[name]} for name in weights}
    for row, outcome in enumerate(WeightedSum(parts)(answers("x", "y", "z"))):
        assert outcome.parts == {name: grader.outcomes[row].reward for name, grader in graders.items()}
        assert outcome.reward == sum(weight * outcome.parts[name] for name, weight in weights.items())


def test_a_sum_of_sums():
    inner = WeightedSum({"a": {"weight": 2, "grader": scored(3.0)}, "b": {"weight": 1, "grader": scored(4.0)}})
    outer = {"inner": {"weight": 0.5, "grader": inner}, "c": {"weight": -1, "grader": scored(7.0)}}
    [outcome] = WeightedSum(outer)(answers("x"))
    assert outcome.reward == -2.0  # 0.5 * (2 * 3 + 4) - 7
    assert outcome.parts == {"inner": 10.0, "inner.a": 3.0, "inner.b": 4.0, "c": 7.0}


def test_a_weight_of_zero_reports_alone():
    parts = {"a": {"weight": 1, "grader": scored(0.25)}, "watched": {"weight": 0, "grader": scored(1.0)}}
    [outcome] = WeightedSum(parts)(answers("x"))
    assert (outcome.reward, outcome.parts) == (0.25, {"a": 0.25, "watched": 1.0})


def test_every_part_sees_every_completion_with_what_belongs_to_it():
    seen = []

    def grade(given):
        seen.append(given)
        return [Outcome(1.0, "ok", None)] * len(given)

    batch = Answers(["x", "y"], golds=[1, 2], references=["r", "s"], prompts=["p", "q"], logprobs=zip)
    assert len(WeightedSum({"a": {"weight": 1, "grader": grade}, "b": {"weight": 1, "grader": grade}})(batch)) == 2
    assert seen == [batch, batch]


def test_no_completions():
    assert WeightedSum({"a": {"weight": 1, "grader": scored()}})(answers()) == []


def test_a_part_that_raises_is_not_caught():
    def fail(_):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        WeightedSum({"a": {"weight": 1, "grader": fail}})(answers("x"))


@pytest.mark.parametrize("found", [(), (1.0,), (1.0, 1.0, 1.0)])
def test_a_part_that_loses_count_is_named(found):
    parts = {"good": {"weight": 1, "grader": scored(1.0, 1.0)}, "bad": {"weight": 1, "grader": scored(*found)}}
    with pytest.raises(ValueError, match=rf"parts\.bad must return 2 outcomes, got {len(found)}"):
        WeightedSum(parts)(answers("x", "y"))


GOOD = {"weight": 1.0, "grader": scored(1.0)}


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({}, "at least one"),
        (None, "at least one"),
        ([GOOD], "at least one"),
        ({"good": GOOD, "bad": {"weight": math.nan, "grader": len}}, r"parts\.bad\.weight .* got nan"),
        ({"bad": {"weight": math.inf, "grader": len}}, r"parts\.bad\.weight .* got inf"),
        ({"bad": {"weight": "1", "grader": len}}, r"parts\.bad\.weight .* got '1'"),
        ({"bad": {"weight": None, "grader": len}}, r"parts\.bad\.weight .* got None"),
        ({"bad": {"weight": True, "grader": len}}, r"parts\.bad\.weight .* got True"),
        ({"bad": {"weight": 1j, "grader": len}}, r"parts\.bad\.weight .* got 1j"),
        ({"bad": {"weight": 1, "grader": "len"}}, r"parts\.bad\.grader .* got 'len'"),
        ({"bad": {"weight": 1}}, r"parts\.bad must have weight and grader"),
        ({"bad": {"grader": len}}, r"parts\.bad must have weight and grader"),
        ({"bad": {"weight": 1, "grader": len, "scale": 2}}, r"parts\.bad must have weight and grader"),
        ({"bad": len}, r"parts\.bad must have weight and grader"),
        ({"bad": ["weight", "grader"]}, r"parts\.bad must have weight and grader"),
        ({"bad.f1": GOOD}, r"got 'bad\.f1'"),
        ({"bad/f1": GOOD}, "got 'bad/f1'"),
        ({"": GOOD}, "got ''"),
        ({1: GOOD}, "got 1"),
    ],
)
def test_refuses_bad_parts(parts, message):
    with pytest.raises(ValueError, match=message):
        WeightedSum(parts)


def test_numbers_of_other_types_are_weights():
    parts = {"a": {"weight": np.float32(0.5), "grader": scored(1.0)}, "b": {"weight": Fraction(1, 4), "grader": len}}
    assert WeightedSum(parts).weights == {"a": 0.5, "b": 0.25}


@pytest.mark.parametrize("convert", ["all", "partial", "none"])
def test_from_a_config(convert):
    config = OmegaConf.create(
        f"""
        _target_: sgrpo_lightning.rewards.composition.WeightedSum
        _convert_: {convert}
        parts:
          starts:
            weight: 0.75
            grader:
              _target_: sgrpo_lightning.rewards.composition.FunctionGrader
              function: {{_target_: hydra.utils.get_method, path: {__name__}.starts_with}}
          exact: {{weight: 1e-1, grader: {{_target_: sgrpo_lightning.rewards.exact.ExactGrader}}}}
        """
    )
    outcomes = instantiate(config)(answers("gold<answer>Gold</answer>", "<answer>gold</answer>", "gold"))
    assert [outcome.reward for outcome in outcomes] == [0.85, 0.1, 0.75]
    assert outcomes[1].parts == {"starts": 0.0, "exact": 1.0}


def starts_with(completion, answer):
    return completion.startswith(answer)


# ---- the audit ----


def test_a_gold_passes_that_every_auditing_part_can_grade():
    auditors = {"a": Auditor({"x"}), "silent": scored(), "b": Auditor({"z"})}
    composed = WeightedSum({name: {"weight": 1, "grader": grader} for name, grader in auditors.items()})
    assert composed.audit(["w", "x", "y", "z"]) == [True, False, True, False]
    assert composed.audit([]) == []
    outer = WeightedSum({"inner": {"weight": 1, "grader": composed}})
    assert outer.audit(["z", "y"]) == [False, True]


def test_there_is_no_audit_where_no_part_audits():
    plain = WeightedSum({"a": {"weight": 1, "grader": scored()}})
    assert getattr(plain, "audit", None) is None
    assert getattr(WeightedSum({"inner": {"weight": 1, "grader": plain}}), "audit", None) is None


def test_the_version_is_that_of_the_auditors_alone():
    def version(**graders):
        return WeightedSum({name: {"weight": 1, "grader": grader} for name, grader in graders.items()}).version

    alone = version(a=Auditor({}))
    assert alone == version(silent=scored(), renamed=Auditor({}))
    assert "7" in alone
    assert len({alone, version(a=OtherAuditor({})), version(a=Auditor({}), b=OtherAuditor({})), version(a=len)}) == 4


# ---- functions ----


@pytest.mark.parametrize(
    ("value", "reward", "status"),
    [
        (True, 1.0, "ok"),
        (False, 0.0, "wrong"),
        (1, 1.0, "ok"),
        (0.5, 0.5, "wrong"),
        (0.51, 0.51, "ok"),
        (-3.0, -3.0, "wrong"),
        (np.bool_(True), 1.0, "ok"),
        (np.float32(0.25), 0.25, "wrong"),
        (np.array(1.0), 1.0, "ok"),
        (Fraction(3, 4), 0.75, "ok"),
    ],
)
def test_a_function_grades(value, reward, status):
    [outcome] = FunctionGrader(lambda completion, answer: value)(answers("<answer> b </answer>"))
    assert outcome == Outcome(reward, status, "b")
    assert type(outcome.reward) is float


def test_a_function_reads_completion_and_gold():
    grader = FunctionGrader(lambda completion, answer: completion == answer)
    outcomes = grader(Answers(["1", "<think>3", "3"], golds=["1", "3", "3"]))
    assert [(outcome.reward, outcome.answer) for outcome in outcomes] == [(1.0, "1"), (0.0, None), (1.0, "3")]


@pytest.mark.parametrize(
    "value",
    [
        math.nan,
        -math.inf,
        None,
        "1.0",
        b"1",
        1j,
        [1.0],
        10**400,
        np.ones(2),
        np.array("x"),
        Decimal("sNaN"),
    ],
    ids=repr,
)
def test_what_is_no_finite_number_is_refused_by_name(value):
    def my_reward(completion, answer):
        return value

    for function in (my_reward, partial(my_reward)):
        with pytest.raises(ValueError, match=r"my_reward.* must return a finite number or a bool, got ") as refused:
            FunctionGrader(function)(answers("x"))
        assert str(refused.value).endswith(repr(value))


def test_tensors_are_numbers_if_they_hold_one():
    import torch

    [outcome] = FunctionGrader(lambda completion, answer: torch.tensor(0.75))(answers("x"))
    assert outcome.reward == 0.75
    with pytest.raises(ValueError, match="finite number"):
        FunctionGrader(lambda completion, answer: torch.ones(2))(answers("x"))


def test_a_function_that_is_none_is_refused():
    with pytest.raises(ValueError, match=r"function must be callable .* got 'my_module\.my_reward'"):
        FunctionGrader("my_module.my_reward")


def test_doctests():
    failed, tried = doctest.testmod(composition)
    assert (failed, tried > 0) == (0, True)
