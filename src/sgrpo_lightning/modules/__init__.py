"""Lightning modules of the language-model domain and what they are made of."""

from sgrpo_lightning.modules.loading import Policy, load_policy
from sgrpo_lightning.modules.plan import UpdatePlan
from sgrpo_lightning.modules.policy import PolicyModule
from sgrpo_lightning.modules.policy_loss import PolicyLoss
from sgrpo_lightning.modules.sft import SupervisedModule

__all__ = ["Policy", "PolicyLoss", "PolicyModule", "SupervisedModule", "UpdatePlan", "load_policy"]
