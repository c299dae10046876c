"""Trains a small policy under each strategy and saves what was seen on the way: `sharded_runs.py FILE` under torchrun.

Every step learns from the same rows, however many ranks and micro-batches share them.
"""

import sys
from contextlib import suppress
from functools import partial
from pathlib import Path

import lightning as L
import torch
from loop import QUIET
from torch import nn
from torch.distributed.fsdp import FSDPModule, fully_shard

from sgrpo_lightning.callbacks import PolicyExport
from sgrpo_lightning.distributed.deepspeed import ZeROStrategy
from sgrpo_lightning.distributed.gradients import gradient_norm, norm_follows_step
from sgrpo_lightning.distributed.launch import leave_together
from sgrpo_lightning.distributed.sharding import FullyShardedStrategy
from sgrpo_lightning.distributed.weights import full_weights, whole_weights
from sgrpo_lightning.modules import Policy
from sgrpo_lightning.modules.tiny import PHRASES, tiny_policy, tiny_tokenizer
from sgrpo_lightning.samplers.hf import HFSampler

PARTED = {"stage3_param_persistence_threshold": 0}  # small weights too
STRATEGIES = {
    "ddp": lambda: "ddp",
    "fsdp2": FullyShardedStrategy,
    "deepspeed_1": partial(ZeROStrategy, 1),
    "deepspeed_2": partial(ZeROStrategy, 2),
    "deepspeed_3": partial(ZeROStrategy, 3, zero=PARTED),
}
ROWS, LENGTH, STEPS, RATE, CLIP = 12, 8, 2, 0.1, 0.5
MICRO_BATCHES = {1: (4, 1), 2: (3, 2)}  # of a step, by ranks and iteration
MAX_NEW_TOKENS = (3, 7)  # by rank
CASES = {
    **{(name, "clipped"): {"gradient_clip_val": CLIP} for name in STRATEGIES},
    **{(name, "adapters"): {"adapters": True} for name in STRATEGIES},
    **{(name, "bf16"): {"precision": "bf16-mixed", "optimizer": torch.optim.AdamW} for name in STRATEGIES},
}


def small_policy(adapters):
    policy = tiny_policy(hidden_size=32, layers=2, heads=1)
    with torch.no_grad():
        policy.model.model.norm.weight.mul_(5)
    if not adapters:
        return policy.model
    from peft import LoraConfig, get_peft_model

    with torch.random.fork_rng():
        torch.manual_seed(0)
        return get_peft_model(
            policy.model,
            LoraConfig(task_type="CAUSAL_LM", r=2, target_modules=["q_proj", "down_proj"], init_lora_weights=False),
        )


def rows():
    return torch.randint(5, 300, (ROWS, LENGTH), generator=torch.Generator().manual_seed(1))


class RowLearner(L.LightningModule):
    """Likelihood of the rows; `seen` is what it observes before each iteration and at every step."""

    def __init__(self, model, optimizer):
        super().__init__()
        self.policy = Policy(model, tiny_tokenizer(PHRASES))
        self.model, self.optimizer = model, optimizer
        self.seen = {"norms": [], "scheduled": [], "observed": [], "losses": []}

    def configure_model(self):
        if self.device_mesh is not None:
            for layer in self.model.get_decoder().layers:
                self.trainer.strategy.shard(layer)
            self.trainer.strategy.shard(self)

    def configure_optimizers(self):
        optimizer = self.optimizer([p for p in self.parameters() if p.requires_grad], lr=RATE)
        self.schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": self.schedule, "interval": "step"}}

    def train_dataloader(self):
        return torch.utils.data.DataLoader(range(100), batch_size=None)

    def setup(self, stage):
        self.trainer.accumulate_grad_batches = MICRO_BATCHES[self.trainer.world_size][0]

    def on_train_epoch_start(self):
        count = MICRO_BATCHES[self.trainer.world_size][self.trainer.current_epoch]
        self.trainer.accumulate_grad_batches = count
        self.trainer.fit_loop.max_batches = STEPS * count
        with self.trainer.precision_plugin.forward_context():
            self.seen["observed"].append(observe(self))

    def forward(self, ids, weight):
        self.seen["inputs"] = str(weight.dtype)
        logits = self.model(input_ids=ids, use_cache=False).logits[:, :-1].float()
        return nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten(), reduction="sum") * weight

    def training_step(self, index, _):
        loss = self(*self.own_rows(index))
        self.seen["losses"].append(loss.item())
        return loss

    def own_rows(self, index):
        trainer = self.trainer
        own = rows().chunk(trainer.world_size)[trainer.global_rank]
        part = own.chunk(trainer.accumulate_grad_batches)[index % trainer.accumulate_grad_batches]
        return part, torch.tensor(1 / part.numel())

    def on_before_optimizer_step(self, _):
        if not norm_follows_step(self.trainer.strategy):
            self.seen["norms"].append(gradient_norm(self, self.trainer.strategy).item())

    def on_train_batch_end(self, *_):
        if self.trainer.fit_loop._should_accumulate():
            return
        if norm_follows_step(self.trainer.strategy):
            self.seen["norms"].append(gradient_norm(self, self.trainer.strategy).item())
        self.seen["scheduled"].append(self.schedule.last_epoch)


@torch.no_grad()
def observe(module):
    """What the weights are, and what a rank can do with them while the other does something else."""
    model, strategy, rank = module.model, module.trainer.strategy, module.trainer.global_rank
    seen = {"weights": kept(model), "held": [held(module)]}
    with whole_weights(module, strategy):
        for _ in range(MAX_NEW_TOKENS[rank]):
            seen["logits"] = logits_of(model)
        with whole_weights(model, strategy):
            seen["longest"] = sample(model, rank)
        seen["inside"], seen["loss"] = kept(model), module(*module.own_rows(0)).item()
    seen["held"].append(held(module))
    with suppress(ArithmeticError), whole_weights(model, strategy):
        if rank == 1:
            break_off(model)
    seen["held"].append(held(module))
    return seen


def kept(model):
    return {name: weight.clone() for name, weight in full_weights(model)}


def held(module):
    """Numbers that this rank keeps of the weights."""
    local = [getattr(p, "ds_tensor", p.to_local() if hasattr(p, "to_local") else p) for p in module.parameters()]
    return sum(p.numel() for p in local)


def logits_of(model):
    return model(input_ids=rows()[:3], use_cache=False).logits


def sample(model, rank):
    """The number of tokens that a rank drew: with no end of a text among them, as many as it may."""
    drawn = HFSampler(max_new_tokens=MAX_NEW_TOKENS[rank]).generate(
        model,
        rows()[:2],
        torch.ones(2, LENGTH, dtype=torch.bool),
        samples_per_group=2,
        eos_token_ids=torch.tensor([-1]),
        pad_token_id=0,
        generator=torch.Generator().manual_seed(rank),
    )
    return drawn.completion_ids.shape[1]


def break_off(model):
    """An error in the middle of a forward pass."""

    def fail(*_):
        raise ArithmeticError

    handle = model.get_decoder().layers[0].mlp.register_forward_hook(fail)
    try:
        logits_of(model)
    finally:
        handle.remove()


def trained(name, *, devices=2, adapters=False, optimizer=torch.optim.SGD, folder=None, **knobs):
    """What a run saw, its last weights, where they were written, and the precision of what its optimizer keeps."""
    module = RowLearner(small_policy(adapters), optimizer)
    trainer = L.Trainer(
        **QUIET | {"devices": devices},
        max_epochs=len(MICRO_BATCHES[1]),
        strategy=STRATEGIES[name]() if devices > 1 else "auto",
        callbacks=[PolicyExport(folder)] if folder else [],
        **knobs,
    )
    trainer.fit(module)
    return module.seen | {
        "weights": kept(module.model),
        "folder": folder,
        "steps": trainer.global_step,
        "masters": precisions(trainer.optimizers[0]),
        "buffers": {str(buffer.dtype) for buffer in module.buffers()},
        "sums": sums(module, trainer.strategy),
    }


def sums(module, strategy):
    """In what gradients are added up, over micro-batches and over ranks, where that is not the weights' precision."""
    if isinstance(strategy, ZeROStrategy):
        engine = strategy.deepspeed_engine
        return {str(engine.get_data_types()[1]), str(engine.communication_data_type)}
    if isinstance(module, FSDPModule):
        layers = module.model.get_decoder().layers
        return {str(fully_shard.state(part)._mp_policy.reduce_dtype) for part in (module, *layers)}
    return {"torch.float32"}


def precisions(optimizer):
    optimizer = getattr(optimizer, "optimizer", optimizer)  # DeepSpeed's, around ours
    updated = [p for group in optimizer.param_groups for p in group["params"]]
    kept = [t for state in optimizer.state.values() for t in state.values() if torch.is_tensor(t) and t.ndim]
    return {str(t.dtype) for t in updated + kept}


def of_all_ranks(seen):
    both = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(both, seen)
    return both


if __name__ == "__main__":
    torch.set_num_threads(1)
    file = Path(sys.argv[1])
    folders = {case: str(file.parent / "-".join(case)) for case in CASES}
    results = {case: of_all_ranks(trained(case[0], folder=folders[case], **knobs)) for case, knobs in CASES.items()}
    if torch.distributed.get_rank() == 0:
        torch.save(results, file)
    leave_together()
