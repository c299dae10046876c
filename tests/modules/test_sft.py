"""The warm start: its loss, and that it learns."""

from functools import partial

import lightning as L
import pytest
import torch
from toys import LetterTask

from datamodules.demonstrations import DemonstrationDataModule
from sgrpo_lightning.modules import SupervisedModule
from sgrpo_lightning.tasks import Example


class OneAnswer(LetterTask):
    """Every question has the same demonstration."""

    def demonstrate(self, example, rng):
        return "7*3"


def fit(policy, task, steps, **knobs):
    data = DemonstrationDataModule(
        policy, task, steps=steps, batch_size=8, **{"micro_batch_size": 8, "seed": 0} | knobs
    )
    module = SupervisedModule(
        policy,
        task,
        optimizer=partial(torch.optim.Adam, lr=0.005),
        scheduler=lambda optimizer, num_training_steps: torch.optim.lr_scheduler.ConstantLR(optimizer, 1.0),
    )
    trainer = L.Trainer(
        accelerator="cpu",
        max_steps=steps,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(module, datamodule=data)
    return trainer


def test_the_loss_is_the_mean_over_completion_tokens(make_policy):
    """Prompt tokens and padding do not count; against a row-by-row loop."""
    policy = make_policy(sharpness=3.0)
    data = DemonstrationDataModule(policy, LetterTask(), steps=1, batch_size=6, micro_batch_size=6, seed=0)
    batch = next(iter(data.train_dataloader()))
    module = SupervisedModule(policy, LetterTask(), optimizer=None, scheduler=None)
    module.log = lambda *_: None
    total, count = 0.0, 0
    for index in range(6):
        prompt, completion = data.dataset[index]
        logprobs = policy.model(torch.tensor([prompt + completion])).logits[0].log_softmax(-1)
        for place, token in enumerate(completion):
            total -= logprobs[len(prompt) + place - 1, token].item()
            count += 1
    assert module.training_step(batch, 0).item() == pytest.approx(total / count, rel=1e-5)


def test_it_learns_a_demonstration_by_heart(make_policy):
    policy = make_policy(hidden_size=64)
    trainer = fit(policy, OneAnswer(), 50, micro_batch_size=4)
    assert trainer.global_step == 50
    prompt = torch.tensor([policy.tokenizer("<|user|>Make 3.<|assistant|>")["input_ids"]])
    written = policy.model.eval().generate(prompt, max_new_tokens=6, do_sample=False)[0, prompt.shape[1] :]
    assert policy.tokenizer.decode(written) == f"7*3{policy.tokenizer.eos_token}"


def test_held_out_questions_are_never_seen(make_policy):
    task = LetterTask()
    task.held_out = [Example("never", None)]
    policy = make_policy()
    data = DemonstrationDataModule(policy, task, steps=20, batch_size=8, micro_batch_size=8, seed=0)
    prompts = {policy.tokenizer.decode(data.dataset[i][0]) for i in range(160)}
    assert len(prompts) == 8
    assert not any("never" in prompt for prompt in prompts)
