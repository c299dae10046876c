"""The policy as a transformers folder, written under every strategy."""

import pytest
import torch
from peft import PeftModel
from sharded_runs import CASES, STRATEGIES, small_policy
from transformers import AutoModelForCausalLM

from sgrpo_lightning.callbacks import PolicyExport, export
from sgrpo_lightning.modules import load_policy
from sgrpo_lightning.modules.tiny import tiny_policy

everywhere = pytest.mark.parametrize("case", CASES, ids="-".join)


def equal(left, right):
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in right)


@everywhere
def test_the_folder_holds_the_last_weights(strategy_runs, case):
    """Bit by bit and in their precision, adapters merged, with the tokenizer."""
    seen = strategy_runs[case][0]
    model = AutoModelForCausalLM.from_pretrained(seen["folder"], dtype="auto")
    assert equal(model.state_dict(), seen["weights"])
    again, original = load_policy(seen["folder"]), tiny_policy(hidden_size=32, layers=1, heads=1)
    assert again.tokenizer("Make 24")["input_ids"] == original.tokenizer("Make 24")["input_ids"]


@pytest.mark.parametrize("name", STRATEGIES)
def test_adapters_are_beside_the_weights(strategy_runs, name):
    seen = strategy_runs[name, "adapters"][0]
    base = small_policy(adapters=False)
    merged = PeftModel.from_pretrained(base, f"{seen['folder']}/adapter").merge_and_unload().state_dict()
    assert all((merged[key] - weight).abs().max() < 1e-6 for key, weight in seen["weights"].items())


class Finished:
    """A trainer whose training has ended."""

    global_step, is_global_zero, strategy = 3, True, type("Alone", (), {"barrier": staticmethod(lambda name: None)})


def exported(folder, **knobs):
    policy = tiny_policy(hidden_size=32, layers=1, heads=1)
    PolicyExport(str(folder), **knobs).on_train_end(Finished(), type("Module", (), {"policy": policy}))
    return policy


def test_another_precision_can_be_written(tmp_path):
    policy = exported(tmp_path / "policy", dtype="bfloat16")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "policy", dtype="auto")
    assert equal(model.state_dict(), {name: weight.bfloat16() for name, weight in policy.model.state_dict().items()})


def test_a_precision_that_does_not_exist_is_a_mistake(tmp_path):
    with pytest.raises(ValueError, match="dtype of the export must be a floating-point type of torch or null, got 'ha"):
        PolicyExport(str(tmp_path), dtype="halt")


def test_a_kill_while_writing_leaves_the_old_folder(tmp_path, monkeypatch):
    folder = tmp_path / "policy"
    exported(folder)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}

    def killed(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(export, "_correct", killed)
    with pytest.raises(KeyboardInterrupt):
        exported(folder, dtype="bfloat16")
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    monkeypatch.undo()
    exported(folder, dtype="bfloat16")
    assert [path.name for path in tmp_path.iterdir()] == ["policy"]
    assert AutoModelForCausalLM.from_pretrained(folder, dtype="auto").dtype == torch.bfloat16


def test_an_interval_writes_once_a_step(tmp_path, monkeypatch):
    """A step has several micro-batches, and before the first of them nothing is learned."""
    written, trainer, callback = [], Finished(), PolicyExport(str(tmp_path), every_n_steps=2)
    monkeypatch.setattr(export, "save_policy", lambda *_: written.append(trainer.global_step))
    monkeypatch.setattr(export, "move_into_place", lambda *_: None)
    module = type("Module", (), {"policy": tiny_policy(hidden_size=32, layers=1, heads=1)})
    for trainer.global_step in (0, 0, 1, 2, 2, 3, 3, 4, 4):
        callback.on_train_batch_end(trainer, module)
    assert written == [2, 4]
