"""The training loop in this process, without the command line."""

import sys
from functools import partial

import lightning as L
import torch

from datamodules.prompts import PromptDataModule
from sgrpo_lightning import losses
from sgrpo_lightning.distributed.launch import leave_together
from sgrpo_lightning.heads import softmax_grpo_advantages
from sgrpo_lightning.modules import PolicyLoss, PolicyModule, UpdatePlan
from sgrpo_lightning.samplers.hf import HFSampler

QUIET = {
    "accelerator": "cpu",
    "devices": 1,
    "logger": False,
    "enable_checkpointing": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
    "num_sanity_val_steps": 0,
    "use_distributed_sampler": False,
}
HEAD = partial(softmax_grpo_advantages, tau=0.1)


class Rows(L.Callback):
    """Keeps the row of each iteration."""

    def __init__(self):
        self.rows = []

    def on_train_epoch_end(self, trainer, pl_module):
        self.rows.append(dict(pl_module.row))


def run(
    policy,
    task,
    *,
    iterations,
    head=HEAD,
    optimizer=partial(torch.optim.Adam, lr=0.02),
    sampler=None,
    callbacks=(),
    max_new_tokens=2,
    loss=None,
    trainer=None,
    scheduler=None,
    shaping=None,
    rescoring=None,
    **plan,
):
    """Train and return the module and a row for each iteration."""
    plan = {"ppo_epochs": 1, "minibatches": 1, "micro_batch_size": 8, "seed": 0} | plan
    plan = UpdatePlan(**{"prompts_per_iteration": 8, "samples_per_group": 8} | plan)
    loss = {"reduction": losses.group_token_mean} | (loss or {})
    module = PolicyModule(
        policy,
        task,
        sampler=sampler or HFSampler(max_new_tokens=max_new_tokens),
        head=head,
        plan=plan,
        loss=PolicyLoss(**loss),
        optimizer=optimizer,
        scheduler=scheduler,
        shaping=shaping,
        rescoring=rescoring,
    )
    rows = Rows()
    loop = L.Trainer(max_epochs=iterations, callbacks=[*callbacks, rows], **QUIET | (trainer or {}))
    loop.fit(module, datamodule=PromptDataModule(policy, task, plan=plan))
    return module, rows.rows


def save_from_ranks(trained, cases):
    """Writes `trained(*case, world_size=2)` of each case to the file that the command line names."""
    torch.set_num_threads(1)
    results = [trained(*case, world_size=2) for case in cases]
    if torch.distributed.get_rank() == 0:
        torch.save(results, sys.argv[1])
    leave_together()
