"""Which images a step trains on, and which a rank evaluates."""

from types import SimpleNamespace

import pytest
import torch

from datamodules.images import PADDING, EvaluationDraws, ImageDataModule, TrainingDraws
from sgrpo_lightning.axes import NO_LABEL, ImageBatch
from sgrpo_lightning.modules import StepPlan


def plan(**knobs):
    return StepPlan(**{"total_steps": 12, "steps": 3, "batch_size": 8, "micro_batch_size": None, "seed": 0} | knobs)


def draws(size, iteration, **knobs):
    ranks = {name: knobs.pop(name) for name in ("rank", "world_size") if name in knobs}
    return list(TrainingDraws(size, plan(**knobs), iteration=lambda: iteration, **ranks))


def test_each_pass_takes_every_image_once_in_a_new_order():
    numbers = [draw for iteration in range(4) for batch in draws(32, iteration) for draw in batch]
    assert [number for _, number in numbers] == list(range(12 * 8))
    passes = [[index for index, _ in numbers[start : start + 32]] for start in (0, 32, 64)]
    assert all(sorted(order) == list(range(32)) for order in passes)
    assert passes[0] != passes[1] != passes[2] != passes[0]


def test_batches_of_an_iteration_do_not_depend_on_how_one_got_there():
    """A second pass begins within iteration 1, and a resumed run meets it first."""
    sampler = TrainingDraws(20, plan(), iteration=iter([0, 1]).__next__)
    assert [list(sampler), list(sampler)] == [draws(20, 0), draws(20, 1)]
    assert draws(20, 1) != draws(20, 1, seed=1)


def test_ranks_and_micro_batches_share_out_the_same_images():
    whole = draws(50, 2)
    for world_size, micro in ((2, None), (2, 4), (4, 4), (1, 2)):
        parts = [draws(50, 2, micro_batch_size=micro, rank=r, world_size=world_size) for r in range(world_size)]
        count = 8 // (micro or 8)
        assert [len(part) for part in parts] == [3 * count] * world_size
        for step in range(3):
            shares = [draw for part in parts for batch in part[step * count : (step + 1) * count] for draw in batch]
            assert sorted(shares) == sorted(whole[step])
            assert len({len(batch) for part in parts for batch in part}) == 1


@pytest.mark.parametrize(("size", "world_size"), [(10, 1), (10, 2), (7, 3), (3, 2), (16, 2)])
def test_evaluation_takes_every_image_once_in_equally_many_batches(size, world_size):
    parts = [list(EvaluationDraws(size, 4, rank=rank, world_size=world_size)) for rank in range(world_size)]
    assert len({len(part) for part in parts}) == 1
    assert all(len(batch) == 4 for part in parts for batch in part)
    taken = [draw for part in parts for batch in part for draw in batch]
    assert sorted(index for index, _ in taken if index != NO_LABEL) == list(range(size))
    assert {number for _, number in taken} == {NO_LABEL}
    assert taken.count(PADDING) == len(taken) - size < 4 * world_size
    assert len(EvaluationDraws(size, 4, world_size=world_size)) == len(parts[0])


class Numbers:
    """Image i has all pixels i; it says which process read it."""

    def __init__(self, size):
        self.size = size

    def __len__(self):
        return self.size

    def __getitems__(self, draws):
        indices = torch.tensor([index for index, _ in draws])
        return ImageBatch(indices.to(torch.uint8)[:, None, None, None].expand(-1, 1, 2, 2), indices)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_the_loaders_bring_what_is_drawn_and_leave_the_global_generator_alone(num_workers):
    data = SimpleNamespace(train=Numbers(20), held_out={"eval": Numbers(5), "other": Numbers(4)})
    module = ImageDataModule(data, plan=plan(), evaluation_batch_size=4, num_workers=num_workers)
    before = torch.get_rng_state()
    batches = list(module.train_dataloader())
    held_out = {name: [b.labels.tolist() for b in loader] for name, loader in module.held_out_dataloaders().items()}
    assert torch.equal(torch.get_rng_state(), before)
    assert [batch.labels.tolist() for batch in batches] == [[i for i, _ in batch] for batch in draws(20, 0)]
    assert all(isinstance(batch, ImageBatch) and batch.images.dtype == torch.uint8 for batch in batches)
    assert held_out == {"eval": [[0, 1, 2, 3], [4, -1, -1, -1]], "other": [[0, 1, 2, 3]]}


def test_what_cannot_be():
    with pytest.raises(ValueError, match="evaluation_batch_size must be >= 1, got 0"):
        ImageDataModule(SimpleNamespace(), plan=plan(), evaluation_batch_size=0)
