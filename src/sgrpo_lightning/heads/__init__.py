"""Advantage heads: rewards [..., M] -> advantages [..., M], one per file, and the contract they share."""

from sgrpo_lightning.heads.contract import advantage_head
from sgrpo_lightning.heads.dr_grpo import dr_grpo_advantages
from sgrpo_lightning.heads.grpo import grpo_advantages
from sgrpo_lightning.heads.maxrl import maxrl_advantages
from sgrpo_lightning.heads.mix import mix_advantages
from sgrpo_lightning.heads.pass_at_k import pass_at_k_advantages
from sgrpo_lightning.heads.reinforce import reinforce_advantages
from sgrpo_lightning.heads.rloo import rloo_advantages
from sgrpo_lightning.heads.softmax_grpo import softmax_grpo_advantages
from sgrpo_lightning.heads.softmax_grpo_adaptive import adaptive_softmax_grpo_advantages

__all__ = [
    "adaptive_softmax_grpo_advantages",
    "advantage_head",
    "dr_grpo_advantages",
    "grpo_advantages",
    "maxrl_advantages",
    "mix_advantages",
    "pass_at_k_advantages",
    "reinforce_advantages",
    "rloo_advantages",
    "softmax_grpo_advantages",
]
