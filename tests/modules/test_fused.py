"""Fused kernels, stood in for by ones of our own: those that compute what they replace stay, others are refused."""

import sys
from types import ModuleType

import pytest
import torch

from sgrpo_lightning.modules import load_policy
from sgrpo_lightning.modules.fused import use_liger


@pytest.fixture
def liger(monkeypatch):
    """(patch) -> installs a package whose kernels for Qwen2 are what `patch` makes of a model."""

    def install(patch):
        module = ModuleType("liger_kernel.transformers.monkey_patch")
        module.MODEL_TYPE_TO_APPLY_LIGER_FN = {"qwen2": patch}

        def apply(model, *, cross_entropy, fused_linear_cross_entropy):
            assert not cross_entropy
            assert not fused_linear_cross_entropy
            patch(model)

        module._apply_liger_kernel_to_instance = apply
        parent = ModuleType("liger_kernel.transformers")
        parent.monkey_patch = module
        for name, value in {"": ModuleType("liger_kernel"), ".transformers": parent}.items():
            monkeypatch.setitem(sys.modules, f"liger_kernel{name}", value)
        monkeypatch.setitem(sys.modules, module.__name__, module)

    return install


def scaled(part, factor):
    """Kernels that are off by a factor in what the norm of a layer gives, forward or backward."""

    class Off(torch.autograd.Function):
        @staticmethod
        def forward(ctx, hidden):
            return hidden * factor if part == "forward" else hidden.clone()

        @staticmethod
        def backward(ctx, gradient):
            return gradient * factor if part == "backward" else gradient

    return lambda model: model.model.norm.register_forward_hook(lambda _, __, hidden: Off.apply(hidden))


def test_kernels_that_are_equal_stay(make_policy, liger):
    model = make_policy().model
    liger(scaled("forward", 1 + 1e-6))
    use_liger(model, device="cpu")
    assert len(model.model.norm._forward_hooks) == 1


@pytest.mark.parametrize(("part", "named"), [("forward", "log-probabilities"), ("backward", "gradients")])
def test_kernels_that_are_not_equal_are_refused(make_policy, liger, part, named):
    liger(scaled(part, 1.1))
    with pytest.raises(ValueError, match=f"Liger's kernels change the {named} of qwen2 by .*use model.liger=false"):
        use_liger(make_policy(sharpness=5.0).model, device="cpu")


def test_an_architecture_without_kernels(gemma, liger):
    liger(lambda model: None)
    with pytest.raises(ValueError, match="Liger has no kernels for gemma2"):
        use_liger(gemma, device="cpu")


def test_liger_is_not_installed(make_policy, monkeypatch):
    monkeypatch.setitem(sys.modules, "liger_kernel.transformers", None)
    with pytest.raises(ValueError, match=r"pip install 'sgrpo-lightning\[liger\]'"):
        use_liger(make_policy().model, device="cpu")


@pytest.mark.skipif(torch.cuda.is_available(), reason="has CUDA")
def test_no_gpu(policy_folder):
    with pytest.raises(ValueError, match=r"model\.liger=true needs a CUDA GPU"):
        load_policy(str(policy_folder), liger=True)
