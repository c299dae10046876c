"""Lightning modules of both domains and what they are made of.

Names are imported when they are first used: the image domain runs without transformers.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sgrpo_lightning.modules.classification import ClassificationModule
    from sgrpo_lightning.modules.label_loss import ExactLoss, PopulationLoss, SampledLabels
    from sgrpo_lightning.modules.loading import Policy, load_policy
    from sgrpo_lightning.modules.plan import StepPlan, UpdatePlan
    from sgrpo_lightning.modules.policy import PolicyModule
    from sgrpo_lightning.modules.policy_loss import PolicyLoss
    from sgrpo_lightning.modules.rescoring import Rescoring
    from sgrpo_lightning.modules.schedules import cosine_with_warmup
    from sgrpo_lightning.modules.sft import SupervisedModule
    from sgrpo_lightning.modules.vision import resnet, small_cnn

_FILES = {
    "classification": ("ClassificationModule",),
    "label_loss": ("ExactLoss", "PopulationLoss", "SampledLabels"),
    "loading": ("Policy", "load_policy"),
    "plan": ("StepPlan", "UpdatePlan"),
    "policy": ("PolicyModule",),
    "policy_loss": ("PolicyLoss",),
    "rescoring": ("Rescoring",),
    "schedules": ("cosine_with_warmup",),
    "sft": ("SupervisedModule",),
    "vision": ("resnet", "small_cnn"),
}
_FILE_OF = {name: file for file, names in _FILES.items() for name in names}

__all__ = [
    "ClassificationModule",
    "ExactLoss",
    "Policy",
    "PolicyLoss",
    "PolicyModule",
    "PopulationLoss",
    "Rescoring",
    "SampledLabels",
    "StepPlan",
    "SupervisedModule",
    "UpdatePlan",
    "cosine_with_warmup",
    "load_policy",
    "resnet",
    "small_cnn",
]


def __getattr__(name: str) -> Any:
    if name not in _FILE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_FILE_OF[name]}"), name)
