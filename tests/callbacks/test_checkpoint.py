"""Checkpoints: when, under which name, what a failure spares, and who can go on from them."""

import errno
import os
import random
import signal
from functools import partial
from types import SimpleNamespace

import lightning as L
import pytest
import torch
from lightning.pytorch.strategies import DeepSpeedStrategy
from loop import QUIET, run
from toys import LetterTask

from datamodules.demonstrations import DemonstrationDataModule
from sgrpo_lightning.callbacks import GracefulStop, RandomState
from sgrpo_lightning.callbacks.checkpoint import (
    CheckpointError,
    RunCheckpoint,
    StraightToFile,
    check_world,
    checkpoints,
    write_whole,
)
from sgrpo_lightning.callbacks.state import random_state
from sgrpo_lightning.modules import SupervisedModule

SAVES = {"enable_checkpointing": True}


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "checkpoints"


@pytest.fixture
def trained(make_policy, folder):
    """(iterations, **options of the callback) -> the steps of the checkpoints there; an iteration is a step."""

    def trained(iterations, *, callbacks=(), **options):
        callbacks = [RunCheckpoint(str(folder), **options), *callbacks]
        run(make_policy(), LetterTask(), iterations=iterations, callbacks=callbacks, trainer=SAVES)
        return steps(folder)

    return trained


def steps(folder):
    return [int(path.name[5:12]) for path in checkpoints(folder.parent)]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, [5]),
        ({"save_top_k": 2}, [4, 5]),
        ({"save_top_k": -1}, [1, 2, 3, 4, 5]),
        ({"save_top_k": 0}, []),
        ({"save_top_k": -1, "every_n_iterations": 2}, [2, 4, 5]),  # and the last
    ],
)
def test_which_checkpoints_there_are(trained, options, expected):
    assert trained(5, **options) == expected


class StopAfter(L.Callback):
    def on_train_epoch_end(self, trainer, _):
        trainer.should_stop = trainer.current_epoch == 2


def test_a_run_that_is_stopped_keeps_what_it_did(trained):
    assert trained(9, every_n_iterations=4, callbacks=[StopAfter()]) == [3]


@pytest.mark.parametrize("knob", ["every_n_iterations", "every_n_steps", "save_top_k"])
def test_knobs_are_checked(knob):
    with pytest.raises(ValueError, match=f"{knob} must be >= .*, got -2"):
        RunCheckpoint("x", **{knob: -2})


def test_the_newest_is_the_one_with_the_most_steps(tmp_path):
    """Not the one that was touched last, nor one by its alphabet; what is being written does not count."""
    names = ["step-10000000.ckpt", "step-0000020.ckpt", "epoch=3-step=7.ckpt", "mine.ckpt", "step-99999999.ckpt.part"]
    (tmp_path / "checkpoints").mkdir()
    for name in names:
        (tmp_path / "checkpoints" / name).touch()
    assert [path.name for path in checkpoints(tmp_path)] == [names[3], names[2], names[1], names[0]]
    assert checkpoints(tmp_path / "elsewhere") == []


def test_leftovers_are_cleared_away_at_the_next_start(trained, folder):
    """Half a file, and half a folder."""
    (folder / "step-0000008.ckpt.part").mkdir(parents=True)
    (folder / "step-0000008.ckpt.part" / "shard").touch()
    (folder / "step-0000009.ckpt.part").touch()
    assert trained(1, save_top_k=0) == []
    assert list(folder.iterdir()) == []


# ---- training without iterations ----


class Cancel(L.Callback):
    """Within the optimizer step after the first so many."""

    def __init__(self, after):
        self.after = after

    def on_before_optimizer_step(self, trainer, *_):
        if trainer.global_step == self.after:
            os.kill(os.getpid(), signal.SIGTERM)


def test_supervised_training_stops_after_a_step_and_goes_on(make_policy, tmp_path):
    """Steps of two micro-batches; a checkpoint every third, at the stop, and at the end."""

    def fit(name, *, cancelled_after=None):
        policy, folder = make_policy(), tmp_path / name
        data = DemonstrationDataModule(policy, LetterTask(), steps=8, batch_size=8, micro_batch_size=4, seed=0)
        schedule = partial(torch.optim.lr_scheduler.LinearLR, start_factor=1.0, end_factor=0.1)
        module = SupervisedModule(
            policy,
            LetterTask(),
            optimizer=partial(torch.optim.Adam, lr=0.01),
            scheduler=lambda optimizer, num_training_steps: schedule(optimizer, total_iters=num_training_steps),
        )
        saving = RunCheckpoint(str(folder / "checkpoints"), every_n_steps=3, save_top_k=-1)
        loop = L.Trainer(
            max_steps=8,
            callbacks=[GracefulStop(every_step=True), saving, Cancel(cancelled_after)],
            **QUIET | SAVES,
        )
        there = checkpoints(folder)
        loop.fit(module, datamodule=data, ckpt_path=there[-1] if there else None)
        return steps(folder / "checkpoints"), torch.cat([p.detach().flatten() for p in policy.model.parameters()])

    whole, weights = fit("whole")
    assert whole == [3, 6, 8]
    assert fit("stopped", cancelled_after=4)[0] == [3, 5]
    gone_on, others = fit("stopped")
    assert gone_on == [3, 5, 6, 8]
    assert torch.equal(weights, others)


# ---- writing that fails ----


def fails_at(monkeypatch, step, *, as_folder):
    """Every checkpoint is the file, or the folder, of a strategy; at `step` the disk is full half-way."""

    def save(trainer, path, weights_only):
        path.parent.mkdir(exist_ok=True)
        file = path
        if as_folder:
            (path / "checkpoint").mkdir(parents=True)
            file = path / "checkpoint" / "shard"
        file.write_text("half")
        if trainer.global_step == step:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        file.write_text("whole")

    monkeypatch.setattr(L.Trainer, "save_checkpoint", save)


@pytest.mark.parametrize("as_folder", [False, True])
def test_a_failure_spares_the_one_before(trained, folder, monkeypatch, as_folder):
    fails_at(monkeypatch, 3, as_folder=as_folder)
    with pytest.raises(CheckpointError, match=r"step-0000003.ckpt could not be written: No space left on device"):
        trained(4)
    (path,) = folder.iterdir()
    assert path.name == "step-0000002.ckpt"
    assert (path / "checkpoint" / "shard" if as_folder else path).read_text() == "whole"


def test_a_folder_is_a_checkpoint_like_a_file(trained, folder, monkeypatch):
    fails_at(monkeypatch, None, as_folder=True)
    assert trained(3, save_top_k=2) == [2, 3]
    assert sorted(path.name for path in folder.iterdir()) == ["step-0000002.ckpt", "step-0000003.ckpt"]


def test_everything_is_on_the_disk_before_it_has_its_name(trained, folder, monkeypatch):
    """Each shard and each folder is flushed, then the name is given, then the folder of the names is flushed."""
    fails_at(monkeypatch, None, as_folder=True)
    done = []
    fsync, replace = os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda n: (done.append(os.readlink(f"/proc/self/fd/{n}")), fsync(n)))
    monkeypatch.setattr(os, "replace", lambda a, b: (done.append("named"), replace(a, b)))
    trained(1)
    part = f"{folder}/step-0000001.ckpt.part"
    assert done == [f"{part}/checkpoint/shard", part, f"{part}/checkpoint", "named", str(folder)]


def test_what_the_system_says_is_not_hidden():
    with pytest.raises(OSError, match="No space left on device"):
        StraightToFile().save_checkpoint({"weights": torch.zeros(100_000)}, "/dev/full")


def test_weights_lie_in_plain_order(tmp_path):
    """As FSDP2 needs them."""
    weight = torch.rand(2, 3, 4, 4).to(memory_format=torch.channels_last)
    StraightToFile().save_checkpoint({"state_dict": {"weight": weight}}, tmp_path / "one.ckpt")
    loaded = torch.load(tmp_path / "one.ckpt")["state_dict"]["weight"]
    assert loaded.is_contiguous()
    assert torch.equal(loaded, weight)


def test_a_text_is_whole_or_as_it_was(tmp_path, monkeypatch):
    write_whole(tmp_path / "text", "old")
    monkeypatch.setattr(os, "fsync", lambda _: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        write_whole(tmp_path / "text", "new")
    assert (tmp_path / "text").read_text() == "old"


# ---- who can go on ----


def trainer(size, strategy=None, **more):
    return SimpleNamespace(world_size=size, strategy=strategy, **more)


def deepspeed(stage):
    strategy = object.__new__(DeepSpeedStrategy)
    strategy.config = {"zero_optimization": {"stage": stage}}
    return strategy


def saved(folder, by):
    """A checkpoint that this trainer left: a file, or the folder of DeepSpeed."""
    checkpoint = {}
    RunCheckpoint("x").on_save_checkpoint(by, None, checkpoint)
    path = folder / "one.ckpt"
    if by.strategy is None:
        torch.save(checkpoint, path)
    else:
        (path / "checkpoint").mkdir(parents=True)
        torch.save(checkpoint, path / "checkpoint" / "zero_pp_rank_0_mp_rank_00_model_states.pt")
    return path


def test_the_same_ranks_go_on(tmp_path):
    assert check_world(saved(tmp_path, trainer(2)), trainer(2)) is None


def test_another_number_of_ranks_is_told_what_differs(tmp_path):
    assert "1 ranks go on with what 2 ranks began" in check_world(saved(tmp_path, trainer(2)), trainer(1))


def test_deepspeed_goes_on_as_it_was(tmp_path):
    assert check_world(saved(tmp_path, trainer(2, deepspeed(3))), trainer(2, deepspeed(3))) is None


@pytest.mark.parametrize(
    ("before", "now", "words"),
    [
        (trainer(2, deepspeed(2)), trainer(4, deepspeed(2)), "deepspeed_2 on 2 ranks, .*deepspeed_2 on 4 ranks"),
        (trainer(2, deepspeed(2)), trainer(2, deepspeed(3)), "deepspeed_2 on 2 ranks, .*deepspeed_3 on 2 ranks"),
        (trainer(2, deepspeed(1)), trainer(2), "deepspeed_1 on 2 ranks, .*strategy=auto, ddp or fsdp2 on 2 ranks"),
        (trainer(2), trainer(2, deepspeed(1)), "strategy=auto, ddp or fsdp2 on 2 ranks, .*deepspeed_1 on 2 ranks"),
    ],
)
def test_shards_fit_no_other_world(tmp_path, before, now, words):
    with pytest.raises(CheckpointError, match=words):
        check_world(saved(tmp_path, before), now)


def test_ranks_that_found_different_checkpoints_do_not_train():
    strategy = SimpleNamespace(broadcast=lambda _: 8)
    with pytest.raises(CheckpointError, match="rank 0 goes on from step 8, rank 1 from step 4"):
        RunCheckpoint("x").on_train_start(trainer(2, strategy, global_step=4, global_rank=1), None)


def test_a_rank_that_is_new_has_random_numbers_of_its_own():
    """The same each time, and those of no other rank or moment."""

    def draws(rank, step):
        callback, now = RandomState(seed=0), trainer(4, global_rank=rank, global_step=step)
        callback.on_load_checkpoint(now, None, {"random_states": [random_state()]})
        random.seed(rank)
        callback.on_train_start(now, None)
        return random.random(), torch.rand(1).item()

    assert draws(1, 8) == draws(1, 8)
    assert len({draws(1, 8), draws(2, 8), draws(1, 12)}) == 3
    assert len({draw[1] for draw in (draws(1, 8), draws(2, 8), draws(1, 12))}) == 3
