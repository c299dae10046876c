"""Parts of a run that have a fault."""

import copy

import torch
from toys import LetterTask

from sgrpo_lightning.rewards import Outcome
from sgrpo_lightning.samplers.hf import HFSampler


class CopySampler(HFSampler):
    """Samples with a copy of the policy.

    Args:
        syncs: after so many it keeps its weights; None takes over all.
    """

    own_weights = True

    def __init__(self, *, syncs=None, **knobs):
        super().__init__(**knobs)
        self.syncs, self.seen = syncs, 0

    def start(self, model, *, max_prompt_tokens=None):
        self.model = copy.deepcopy(model)

    def sync(self, weights, *, version):
        weights, self.seen = {name: tensor.clone() for name, tensor in weights}, self.seen + 1
        if self.syncs is None or self.seen <= self.syncs:
            self.model.load_state_dict(weights)
        super().sync((), version=version)

    def generate(self, model, *arguments, **knobs):
        return super().generate(self.model, *arguments, **knobs)


class SamplerWithoutServer(HFSampler):
    def start(self, model, *, max_prompt_tokens=None):
        raise RuntimeError("no server answers\nat all three addresses")


class RejectingTask(LetterTask):
    """Its grader is never content."""

    def grade_one(self, completion, gold):
        return Outcome(super().grade_one(completion, gold).reward, "wrong", completion[:2])


class RaisingTask(LetterTask):
    def grade_one(self, completion, gold):
        raise RuntimeError("this grader has a fault")


class Stubborn(torch.optim.SGD):
    """Moves weights whatever the learning rate."""

    def step(self, closure=None):
        super().step(closure)
        with torch.no_grad():
            for group in self.param_groups:
                for weight in group["params"]:
                    weight.add_(1e-4)
