"""docs/objectives.md against the heads and their configuration."""

import itertools
import math
import re
from functools import partial

import numpy as np
import pytest
import torch
import yaml
from docs_pages import CONF, OBJECTIVES, ROOT, code, table, tables
from hydra.utils import instantiate
from omegaconf import OmegaConf

from sgrpo_lightning import heads
from sgrpo_lightning.geometry import population_objective, population_weight, softmax_grpo_weight
from sgrpo_lightning.heads.contract import PROPERTIES

FILES = {path.stem: OmegaConf.load(path) for path in sorted((CONF / "objective").glob("*.yaml"))}
ALL_NODES = {name: node.get("objective", node) for name, node in FILES.items()}
NODES = {name: node for name, node in ALL_NODES.items() if "domains" not in node}
HEADS = {name: instantiate(node) for name, node in NODES.items()}
FORMULAS = table(OBJECTIVES, "Objective", "Advantages")
SHAPES = table(OBJECTIVES, "Objective", "`omega_M(p)`, exact")
NUMBERS = table(OBJECTIVES, "Objective", "p = 0.01")
each_head = pytest.mark.parametrize("name", NODES)


def test_every_objective_has_its_rows():
    assert set(FORMULAS) == set(SHAPES) == set(NUMBERS) == set(NODES)
    exact = {name for name, node in ALL_NODES.items() if node.get("domains") == ["imagenet"]}
    assert exact == set(ALL_NODES) - set(NODES) == set(table(OBJECTIVES, "Image objective"))
    assert set(table(OBJECTIVES, "Property")) == PROPERTIES


@each_head
def test_function_knobs_and_promises(name):
    row, node = FORMULAS[name], NODES[name]
    knobs = dict(knob.split(" = ") for knob in code(row["Knobs and defaults"]))
    assert node["_target_"] == f"sgrpo_lightning.heads.{code(row['Head'])[0]}"
    assert {key: float(value) for key, value in knobs.items()} == {
        key: float(value) for key, value in node.items() if not str(key).startswith("_")
    }
    assert set(code(row["Declares"])) == HEADS[name].func.declares


def best_of(r: list[float], i: int, k: int) -> float:
    """k (E[best of r_i and k - 1 others] - E[best of k others]), over all subsets."""
    others = r[:i] + r[i + 1 :]
    with_i = np.mean([max(r[i], *chosen) for chosen in itertools.combinations(others, k - 1)])
    return k * (with_i - np.mean([max(chosen) for chosen in itertools.combinations(others, k)]))


@each_head
def test_the_formula_is_what_the_head_computes(name):
    rewards = torch.tensor([0.3, 0.9, 0.1, 0.35, 0.9, 0.0], dtype=torch.float64)
    r, knobs, advantages = rewards.numpy(), HEADS[name].keywords, HEADS[name](rewards).numpy()
    scope = {"M": 6, "mean": np.mean, "std": lambda r, ddof: np.std(r, ddof=ddof), **knobs}
    scope["softmax"] = lambda x: np.exp(x) / np.exp(x).sum()
    formula = code(FORMULAS[name]["Advantages"])[0]
    if name == "pass_at_k":
        expected = [best_of(r.tolist(), i, knobs["k"]) for i in range(6)]
    elif name == "softmax_grpo_adaptive":  # the tau of the group, found on a grid of 1e-4
        choices = [eval(formula, {**scope, "r": r, "tau": tau}) for tau in np.arange(0.1, 1.0, 1e-4)]
        expected = min(choices, key=lambda a: abs(6**2 / ((a + 1) ** 2).sum() - 0.5 * 6))
    else:
        expected = eval(formula, {**scope, "r": r})
    tolerance = 2e-3 if name == "softmax_grpo_adaptive" else 1e-12  # the step of the grid
    np.testing.assert_allclose(advantages, expected, atol=tolerance, rtol=0)


def documented_weight(name: str, p: float, M: int) -> float:
    """omega_M(p) by the page's formula; E_s[...] is a sum over the binomial distribution."""
    formula = code(SHAPES[name]["`omega_M(p)`, exact"])[0]
    knobs = HEADS[name].keywords
    scope = {"p": p, "M": M, "sqrt": math.sqrt, "c": math.exp(1 / knobs.get("tau", 1)), **knobs}
    if not formula.startswith("E_s["):
        return eval(formula, scope)
    terms = [eval(formula[4:-1], {**scope, "s": s}) for s in range(M)]
    return sum(math.comb(M - 1, s) * p**s * (1 - p) ** (M - 1 - s) * term for s, term in enumerate(terms))


@pytest.mark.parametrize("name", [name for name in NODES if name != "softmax_grpo_adaptive"])
@pytest.mark.parametrize("M", [4, 8, 16])
def test_the_documented_weight_is_that_of_the_head(name, M):
    for p in (0.001, 0.2, 0.5, 0.97):
        # 1e-5: the weight of GRPO is written without its eps of 1e-6
        assert population_weight(HEADS[name], p, M=M) == pytest.approx(documented_weight(name, p, M), rel=1e-5)


def test_the_adaptive_head_is_grpo_below_the_target_and_softmax_at_the_floor_above():
    """M = 8, ess_fraction = 0.5: sqrt(1 / 0.5 - 1) = 1, and c = exp(1 / 0.05)."""
    groups = torch.ones(9, 8, dtype=torch.float64).tril(-1)  # 0, ..., 8 successes
    grpo = HEADS["grpo"].func(groups, ddof=0, eps=0.0)
    floor = HEADS["softmax_grpo"].func(groups, tau=0.05)
    expected = torch.where(torch.arange(9)[:, None] < 4, grpo, floor)
    torch.testing.assert_close(HEADS["softmax_grpo_adaptive"](groups), expected, rtol=1e-9, atol=1e-12)


@each_head
def test_the_numbers_are_those_of_the_head(name):
    shown = {key.removeprefix("p = "): float(value) for key, value in NUMBERS[name].items() if key != "Objective"}
    mean = shown.pop("mean")
    assert shown == {p: round(population_weight(HEADS[name], float(p), M=8), 3) for p in shown}
    assert mean == round(population_objective(HEADS[name], 1.0, M=8), 3)


def test_the_example_of_a_mix_has_the_mixed_weight():
    node = yaml.safe_load(re.findall(r"```yaml\n(.*?)```", OBJECTIVES, re.DOTALL)[0])
    expected = 0.5 * softmax_grpo_weight(0.3, tau=0.1, M=8) + 0.5  # RLOO's is 1
    assert population_weight(instantiate(node), 0.3, M=8) == pytest.approx(expected, rel=1e-9)


def test_the_weights_of_unsolved_images():
    """The third column of the page on images, from each head itself."""
    page = (ROOT / "docs/imagenet.md").read_text()
    (rows,) = [rows for rows in tables(page) if "Weight at p = 0" in rows[0]]
    for row in rows:
        name, *knobs = code(row["Objective"])
        head = getattr(heads, ALL_NODES[name]._target_.rpartition(".")[2])
        knobs = {key: float(value) for key, _, value in (knob.partition("=") for knob in knobs) if "." not in key}
        weight = population_weight(partial(head, **knobs), 0.0, M=int(row["M"]))
        assert f"{weight:.1f}" == row["Weight at p = 0"], row
