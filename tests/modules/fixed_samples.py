"""Rollouts that are made up, so that a loss can be compared with a slow one written from the equations."""

from functools import partial

import lightning as L
import torch

from sgrpo_lightning import losses
from sgrpo_lightning.axes import Samples
from sgrpo_lightning.modules import Policy, PolicyLoss, PolicyModule, UpdatePlan
from sgrpo_lightning.modules.learner import Learner
from sgrpo_lightning.modules.reference import Reference

G, M, T, LENGTH = 4, 3, 7, 11
REDUCTIONS = {
    "group_token_mean": losses.group_token_mean,
    "token_mean": losses.token_mean,
    "sequence_mean": losses.sequence_mean,
    "fixed_length": partial(losses.fixed_length, length=LENGTH),
}
# The second group has no signal, the fourth has one sample without an advantage.
ADVANTAGES = torch.tensor([[1.5, -0.5, -1.0], [0.0, 0.0, 0.0], [-0.3, -0.9, 1.2], [2.0, 0.0, -2.0]])


def made_up_samples(vocabulary, seed=0):
    """G left-padded prompts of 2 to 5 tokens; M completions of each, of 1 to T tokens."""
    generator = torch.Generator().manual_seed(seed)
    prompt_mask = torch.arange(5) >= torch.tensor([[0], [3], [1], [2]])
    lengths = torch.tensor([7, 2, 4, 1, 6, 3, 5, 5, 2, 1, 1, 4])
    completion_mask = torch.arange(T) < lengths[:, None]
    prompt_ids = torch.randint(5, vocabulary, (G, 5), generator=generator)
    completion_ids = torch.randint(5, vocabulary, (G * M, T), generator=generator)
    return Samples(
        prompt_ids=prompt_ids.where(prompt_mask, torch.tensor(0)),
        prompt_mask=prompt_mask,
        completion_ids=completion_ids.where(completion_mask, torch.tensor(0)),
        completion_mask=completion_mask,
        sampler_logprobs=torch.zeros(G * M, T),
        truncated=lengths == T,
    )


def text_of(samples, row):
    """The prompt and the completion of a row without padding."""
    group = row // samples.samples_per_group
    return (
        samples.prompt_ids[group][samples.prompt_mask[group]],
        samples.completion_ids[row][samples.completion_mask[row]],
    )


def next_token_logits(model, samples, row):
    """[T_i, V] logits of the row's completion tokens, from one forward pass over its unpadded text."""
    prompt, completion = text_of(samples, row)
    logits = model(input_ids=torch.cat([prompt, completion])[None], use_cache=False).logits[0]
    return logits[len(prompt) - 1 : -1], completion


def nudged(model, scale, seed):
    """A copy of the model with noise on its weights."""
    import copy

    other, generator = copy.deepcopy(model), torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in other.parameters():
            weight.add_(scale * torch.randn(weight.shape, generator=generator).to(weight.dtype))
    return other.requires_grad_(False)


def plan_for(**sizes):
    sizes = {"micro_batch_size": 4, "minibatches": 1, "ppo_epochs": 1} | sizes
    return UpdatePlan(prompts_per_iteration=G, samples_per_group=M, seed=0, **sizes)


def learner_for(model, loss, *, reference=None, **sizes):
    """With a reference that is given, not copied."""
    learner = Learner(model, loss, plan_for(**sizes))
    if reference is not None:
        learner.reference = Reference(reference)
    return learner


def module_for(model, loss, *, precision="32-true", **sizes):
    """A `PolicyModule` that is attached to a trainer and not trained: its inner steps can be called one by one."""
    module = PolicyModule(
        Policy(model, None), None, sampler=None, head=None, plan=plan_for(**sizes), loss=loss, optimizer=torch.optim.SGD
    )
    module.trainer = L.Trainer(
        accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False, precision=precision
    )
    return module


def policy_loss(reduction="group_token_mean", **knobs):
    return PolicyLoss(reduction=REDUCTIONS[reduction], **knobs)


def gradient_of(model, batches, loss, reference=None):
    """The summed gradient of micro-batches as one vector, and their metrics."""
    model.zero_grad()
    parts = []
    for batch in batches:
        value, metrics = loss(model, batch, reference)
        value.backward()
        parts.append(metrics)
    return flat_gradient(model), parts


def flat_gradient(model):
    return torch.cat(
        [torch.zeros_like(p).flatten() if p.grad is None else p.grad.flatten() for p in model.parameters()]
    )
