"""Sampler and trainer are compared, and a sampler with weights of its own is kept up to date."""

import copy
from dataclasses import replace
from functools import partial

import pytest
import torch
from loop import run
from toys import LetterTask

from sgrpo_lightning.callbacks.samples import sample_records
from sgrpo_lightning.modules.rescoring import Rescoring, SamplerGapError
from sgrpo_lightning.samplers import SamplerError
from sgrpo_lightning.samplers.hf import HFSampler


class Apart(HFSampler):
    """Samples with a copy of the policy, as an engine of its own would.

    Args:
        forgets: leave out what `sync` brings after the first time.
        heats: sample hotter than the trainer knows.
    """

    own_weights = True

    def __init__(self, *, forgets=False, heats=1.0, **knobs):
        super().__init__(**knobs)
        self.forgets, self.temperature, self.calls = forgets, self.temperature * heats, []

    def start(self, model, *, max_prompt_tokens=None):
        self.copy = copy.deepcopy(model)
        torch.nn.init.zeros_(self.copy.lm_head.weight)
        self.calls.append("start")

    def sync(self, weights, *, version):
        weights = {name: tensor.clone() for name, tensor in weights}
        if not (self.forgets and version):
            self.copy.load_state_dict(weights)
        self.calls.append(f"sync {version}")
        super().sync(weights, version=version)

    def generate(self, model, *arguments, **knobs):
        self.calls.append("generate")
        return super().generate(self.copy, *arguments, **knobs)

    def sleep(self):
        self.calls.append("sleep")

    def wake(self):
        self.calls.append("wake")

    def close(self):
        self.calls.append("close")


def trained(make_policy, *, rescoring=None, iterations=3, **knobs):
    sampler = Apart(max_new_tokens=4, **knobs)
    policy = make_policy(sharpness=5.0)
    optimizer = partial(torch.optim.SGD, lr=1.0)
    return run(policy, LetterTask(), iterations=iterations, sampler=sampler, optimizer=optimizer, rescoring=rescoring)


def test_each_iteration_samples_from_the_weights_of_the_last(make_policy):
    module, rows = trained(make_policy, rescoring=Rescoring(limit=1e-4))
    sampler = module.sampler
    round_trips = [["wake", f"sync {n}", "generate", "sleep"] for n in range(3)]
    assert sampler.calls == ["start", *(call for calls in round_trips for call in calls), "close"]
    assert all(row["sampler_gap/max"] < 1e-4 for row in rows)
    assert all(row["seconds/sync"] > 0 for row in rows)


def test_it_learns_what_a_sampler_of_the_policy_itself_learns(make_policy):
    apart, _ = trained(make_policy)
    policy, optimizer = make_policy(sharpness=5.0), partial(torch.optim.SGD, lr=1.0)
    run(policy, LetterTask(), iterations=3, max_new_tokens=4, optimizer=optimizer)
    for one, other in zip(apart.model.parameters(), policy.model.parameters(), strict=True):
        assert torch.equal(one, other)


def test_a_sampler_that_was_forgotten_stops_the_run(make_policy):
    """The first iteration is right; at the second the sampler still holds the weights of the first."""
    stop = "trainer's, more than rescoring.limit = 0.05: it holds other weights"
    with pytest.raises(SamplerGapError, match=stop):
        trained(make_policy, forgets=True, rescoring=Rescoring(limit=0.05))
    _, rows = trained(make_policy, forgets=True, rescoring=Rescoring(limit=None))
    assert rows[0]["sampler_gap/mean"] < 1e-5
    assert rows[1]["sampler_gap/mean"] > 0.05


def test_the_weights_behind_each_sample_are_recorded(make_policy):
    module, _ = trained(make_policy)
    assert {record["weights_version"] for record in sample_records(module)} == {2}


def test_samples_of_other_weights_stop_the_run(make_policy):
    class Late(Apart):
        def generate(self, *arguments, **knobs):
            return replace(super().generate(*arguments, **knobs), weights_version=self.version - 1)

    with pytest.raises(SamplerError, match="samples came from weights after -1 optimizer steps, expected 0"):
        run(make_policy(), LetterTask(), iterations=1, sampler=Late(max_new_tokens=4))


def test_another_temperature_stops_the_run(make_policy):
    with pytest.raises(SamplerGapError, match="samples at another temperature"):
        trained(make_policy, heats=1.5, rescoring=Rescoring(limit=0.05), iterations=1)


def test_the_gap_is_that_of_the_rows_asked_for(make_policy):
    """Of 64 rows three are scored again, the first and the last among them; their tokens are all that counts."""
    module, _ = trained(make_policy, iterations=1)
    samples = module.rollout.samples
    assert (
        len(module.rescoring.gaps(module.learner, samples))
        == samples.completion_mask[[0, 9, 18, 27, 36, 45, 54, 63]].sum()
    )
    three = Rescoring(rows=3)
    before = three.gaps(module.learner, samples)
    samples.sampler_logprobs[31] += 0.5 * samples.completion_mask[31]
    after = three.gaps(module.learner, samples)
    changed = (after - before).abs() > 0.4
    assert changed.sum() == samples.completion_mask[31].sum()
    assert len(before) == samples.completion_mask[[0, 31, 63]].sum()


def test_no_row_at_all(make_policy):
    _, rows = trained(make_policy, rescoring=Rescoring(rows=0), iterations=1)
    assert not [name for name in rows[0] if name.startswith("sampler_gap")]


@pytest.mark.parametrize(
    ("knobs", "message"),
    [
        ({"rows": -1}, "rescoring.rows must be >= 0, got -1"),
        ({"limit": 0.0}, "rescoring.limit must be > 0, or null to only measure, got 0.0"),
    ],
)
def test_knobs_that_cannot_be(knobs, message):
    with pytest.raises(ValueError, match=message):
        Rescoring(**knobs)
