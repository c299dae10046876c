"""What holds for every head of conf/objective, and what each of them declares about itself."""

import math
from importlib import import_module

import pytest
import torch
from heads_catalogue import HEADS, NONNEGATIVE, OBJECTIVES, declaring, head_for, objective_node

DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
EXTREMES = {"wide": (-1e6, 1e6), "tiny": (0.0, 1e-6), "raised": (1e6, 1e6 + 64), "unit": (0.0, 1.0)}

each_head = pytest.mark.parametrize("name", HEADS)


def random_groups(size: int, *, seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """24 groups in [0, 1]: graded, two-level, three-level, nearly flat, one winner, all equal."""
    generator = torch.Generator().manual_seed(seed)
    rewards = torch.rand(6, 4, size, generator=generator, dtype=torch.float64)
    rewards[1] = (rewards[1] < 0.4).double()
    rewards[2] = (rewards[2] * 3).floor() / 2
    rewards[3] = 0.5 + rewards[3] * 1e-4
    rewards[4] = 0.0
    rewards[4, :, size // 2] = 0.7
    rewards[5] = torch.tensor([0.0, 1.0, 0.3, 0.1], dtype=torch.float64)[:, None]
    return rewards.flatten(0, 1).to(dtype)


def test_catalogue_is_complete():
    assert set(HEADS) >= {
        "dr_grpo",
        "grpo",
        "maxrl",
        "pass_at_k",
        "reinforce",
        "rloo",
        "softmax_grpo",
        "softmax_grpo_adaptive",
    }


@each_head
def test_file_function_and_config_share_a_stem(name):
    target = objective_node(OBJECTIVES / f"{name}.yaml")["_target_"].rsplit(".", 1)[1]
    assert getattr(import_module(f"sgrpo_lightning.heads.{name}"), target) is HEADS[name].func


@each_head
def test_permutation_equivariance(name):
    rewards = random_groups(8, dtype=torch.float64)
    order = torch.randperm(8, generator=torch.Generator().manual_seed(1))
    head = HEADS[name]
    torch.testing.assert_close(head(rewards[:, order]), head(rewards)[:, order], rtol=1e-11, atol=1e-13)


@each_head
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("extreme", EXTREMES)
@pytest.mark.parametrize("size", [4, 4096])
def test_finite_at_extremes_in_every_dtype(name, dtype, extreme, size):
    low, high = EXTREMES[extreme]
    limit = torch.finfo(dtype).max
    rewards = (low + (high - low) * random_groups(size, dtype=torch.float64)).clamp(-limit, limit).to(dtype)
    if name in NONNEGATIVE:
        rewards = rewards.clamp(min=0)
    advantages = HEADS[name](rewards)
    assert advantages.dtype == dtype
    assert advantages.shape == rewards.shape
    assert advantages.isfinite().all()


@each_head
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_narrow_dtypes_are_computed_in_float32(name, dtype):
    rewards = random_groups(8, dtype=dtype)
    assert torch.equal(HEADS[name](rewards), HEADS[name](rewards.float()).to(dtype))


@each_head
def test_float32_agrees_with_float64(name):
    rewards = random_groups(8)
    expected = HEADS[name](rewards.double())
    tolerance = 2e-6 * expected.abs().amax(-1, keepdim=True)
    if name == "grpo":  # 1e-4 of spread about 0.5: the deviations have three digits less than the rewards
        tolerance *= 10
    assert ((HEADS[name](rewards) - expected).abs() <= tolerance).all()


@each_head
@pytest.mark.parametrize("shape", [(8,), (1, 8), (3, 8), (2, 3, 8), (0, 8)], ids=str)
def test_leading_shapes(name, shape):
    rewards = torch.rand(shape, generator=torch.Generator().manual_seed(2))
    advantages = HEADS[name](rewards)
    assert advantages.shape == rewards.shape
    flat = HEADS[name](rewards.reshape(-1, 8))
    assert torch.equal(advantages, flat.reshape(shape))


@each_head
def test_memory_layout_does_not_matter(name):
    rewards = random_groups(8, dtype=torch.float64)
    strided = rewards.t().contiguous().t()
    torch.testing.assert_close(HEADS[name](strided), HEADS[name](rewards), rtol=1e-12, atol=1e-14)


@each_head
def test_no_gradient_and_no_side_effect(name):
    rewards = random_groups(8).requires_grad_()
    before = rewards.detach().clone()
    advantages = HEADS[name](rewards)
    assert not advantages.requires_grad
    assert torch.equal(rewards, before)
    assert advantages.data_ptr() != rewards.data_ptr()


@each_head
@pytest.mark.parametrize("size", [4, 6, 7, 41, 300])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_equal_rewards_give_exact_zeros(name, size, dtype):
    """0.3 six times: the float32 mean is not 0.3; and 41 * (1 / 41) - 1 is not 0."""
    levels = torch.tensor([0.0, 0.1, 0.3, 1 / 3, 0.7, 1.0, 12345.678, 1e-30], dtype=dtype)
    rewards = levels[:, None].expand(-1, size)
    assert (HEADS[name](rewards) == 0).all()
    mixed = torch.cat([rewards, random_groups(size, dtype=dtype)])
    assert (HEADS[name](mixed)[: len(levels)] == 0).all()


@each_head
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("scale", [1.0, 2.0**20, 2.0**-20, -1.0])
def test_rewards_that_differ_by_rounding_are_equal(name, dtype, scale):
    if scale < 0 and name in NONNEGATIVE:
        pytest.skip("refuses negative rewards")
    ulp = torch.finfo(dtype).eps / 4  # of numbers in [0.25, 0.5)
    noise = torch.tensor([0, 1, 2, 1, 0, 2, 1, 1], dtype=dtype)
    assert (HEADS[name](scale * (0.3 + noise * ulp)) == 0).all()
    assert (HEADS[name](scale * (0.3 + noise * 16 * ulp)) != 0).any()


@each_head
def test_half_precision_steps_are_a_signal(name):
    """One step of bfloat16 is 2^16 of float32: no rounding of the computation."""
    rewards = torch.tensor([0.5, 0.5 + 2**-8, 0.5, 0.5], dtype=torch.bfloat16)
    assert HEADS[name](rewards)[1] > 0


@each_head
def test_one_sample_has_no_advantage(name):
    rewards = torch.tensor([[0.0], [0.3], [1.0], [1e6]])
    assert (head_for(name, 1)(rewards) == 0).all()


@each_head
@pytest.mark.parametrize("size", [8, 41])
def test_a_group_does_not_see_the_others(name, size):
    rewards = random_groups(size)
    together = HEADS[name](rewards)
    alone = torch.cat([HEADS[name](group[None]) for group in rewards])
    assert torch.equal(together, alone)
    if name in NONNEGATIVE:
        return
    other = torch.cat([rewards[:5], random_groups(size, seed=3) * -1e5])
    assert torch.equal(HEADS[name](other)[:5], together[:5])


@each_head
@pytest.mark.parametrize("wrong", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_non_finite_rewards_are_refused_by_value_and_index(name, wrong, dtype):
    rewards = torch.zeros(3, 5, dtype=dtype)
    rewards[2, 1] = wrong
    with pytest.raises(ValueError, match=rf"rewards must be finite, got {wrong:g} at index \(2, 1\)"):
        HEADS[name](rewards)


@each_head
@pytest.mark.parametrize(
    ("rewards", "message"),
    [
        (torch.zeros(2, 4, dtype=torch.int64), r"rewards must be floating, got torch.int64; call rewards.float"),
        (torch.zeros(2, 4, dtype=torch.bool), "rewards must be floating, got torch.bool"),
        (torch.zeros(2, 0), r"rewards must be \[\.\.\., M\] with M >= 1, got shape \[2, 0\]"),
        (torch.tensor(1.0), r"M >= 1, got shape \[\]"),
        (torch.tensor([3e38, 3e38, -3e38, 0.0]), "rewards must span less than 3.40282e"),
    ],
)
def test_rewards_of_another_kind_are_refused(name, rewards, message):
    with pytest.raises(ValueError, match=message):
        HEADS[name](rewards)


@pytest.mark.parametrize("name", declaring("zero_sum"))
@pytest.mark.parametrize("size", [5, 8, 41, 4096])
def test_zero_sum(name, size):
    advantages = HEADS[name](random_groups(size, dtype=torch.float64))
    scale = advantages.abs().sum(-1)
    assert (advantages.sum(-1).abs() <= 1e-13 * size * scale).all()
    assert (scale > 0).any()


@pytest.mark.parametrize("name", declaring("shift_invariant"))
def test_shift_invariant(name):
    rewards = random_groups(8, dtype=torch.float64)
    rewards = (rewards * 2**30).round() / 2**30  # so that the shifted rewards are exact
    torch.testing.assert_close(HEADS[name](rewards + 64), HEADS[name](rewards), rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("name", declaring("scale_invariant"))
@pytest.mark.parametrize("scale", [1e-6, 0.3, 1e6])
def test_scale_invariant(name, scale):
    rewards = random_groups(8, dtype=torch.float64)
    torch.testing.assert_close(HEADS[name](rewards * scale), HEADS[name](rewards), rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("name", declaring("scale_equivariant"))
@pytest.mark.parametrize("scale", [1e-6, 0.3, 1e6])
def test_scale_equivariant(name, scale):
    rewards = random_groups(8, dtype=torch.float64)
    expected = HEADS[name](rewards) * scale
    torch.testing.assert_close(HEADS[name](rewards * scale), expected, rtol=1e-11, atol=1e-14 * scale)


def test_the_declarations_are_those_of_the_formulas():
    assert declaring("zero_sum") == sorted(HEADS)
    assert set(HEADS) - set(declaring("shift_invariant")) == {"maxrl"}
    assert declaring("scale_invariant") == ["maxrl", "softmax_grpo_adaptive"]
    assert declaring("scale_equivariant") == ["dr_grpo", "pass_at_k", "reinforce", "rloo"]
