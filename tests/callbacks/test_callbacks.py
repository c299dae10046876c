"""Callbacks around the loop: evaluation, records, progress, pictures, stopping, random states."""

import json
import os
import random
import signal

import lightning as L
import numpy as np
import pytest
import torch
from loop import run
from toys import LetterTask

from sgrpo_lightning.callbacks import (
    GracefulStop,
    HeldOutEvaluation,
    IterationProgress,
    PolicyExport,
    RandomState,
    SampleFiles,
    SampleTable,
    TrainingPlot,
)
from sgrpo_lightning.callbacks.state import random_state, set_random_state
from sgrpo_lightning.evaluation import pass_statistics
from sgrpo_lightning.modules import load_policy
from sgrpo_lightning.rewards import Outcome
from sgrpo_lightning.tasks import Example


def test_pass_statistics_by_hand():
    """Two questions of four answers: 1 and 3 right.

    pass@1 = 1/4 + 3/4; pass@2 = (1 - C(3,2)/C(4,2)) + (1 - 0) = 1/2 + 1; the vote of the first question is
    "9" (wrong, twice), of the second "5" (right, three times).
    """
    outcomes = [Outcome(0.3, "ok" if right else "wrong", answer) for right, answer in [
        (False, "9"), (True, "5"), (False, "9"), (False, "8"),
        (True, "5"), (True, "5"), (False, None), (True, "5"),
    ]]  # fmt: skip
    sums = pass_statistics(outcomes, samples=4, ks=[1, 2])
    assert sums == pytest.approx({"pass@1": 1.0, "pass@2": 1.5, "maj@4": 1.0, "questions": 2.0})


@pytest.fixture
def policy(make_policy):
    return make_policy()


def test_held_out_evaluation_asks_held_out_questions(policy):
    task = LetterTask(letters=1)
    asked = []
    task.grade = lambda answers, grade=task.grade: asked.extend(answers.golds) or grade(answers)
    evaluation = HeldOutEvaluation(every_n_iterations=2, samples_per_question=4, ks=(1, 2, 8), max_questions=3)
    module, rows = run(policy, task, iterations=5, callbacks=[evaluation])
    held_out = [answer for answer in asked if answer >= 8]
    assert held_out == [n for _ in range(4) for n in (8, 9, 10) for _ in range(4)]  # before, after 2, 4 and 5
    assert [sorted(name for name in row if name.startswith("eval/")) for row in rows] == [
        [],
        names := ["eval/maj@4", "eval/pass@1", "eval/pass@2", "eval/reward", "eval/samples"],
        [],
        names,
        names,
    ]
    assert rows[1]["eval/samples"] == 12
    assert rows[1]["eval/pass@1"] <= rows[1]["eval/pass@2"]
    assert rows[-1]["eval/pass@1"] == pytest.approx(pass_at_1(module, task), abs=0.35)  # two estimates from few samples


def pass_at_1(module, task):
    rollout = module.roll_out(task.held_out[:3], samples_per_group=32, key=("again",))
    return (rollout.rewards > 0.5).float().mean().item()


def test_evaluation_does_not_disturb_training(make_policy):
    def trained(callbacks):
        policy = make_policy()
        run(policy, LetterTask(), iterations=3, callbacks=callbacks)
        return torch.cat([p.detach().flatten() for p in policy.model.parameters()])

    evaluation = HeldOutEvaluation(every_n_iterations=1, samples_per_question=2, ks=(1,))
    assert torch.equal(trained([]), trained([evaluation]))


def test_sample_files(policy, tmp_path):
    _module, rows = run(
        policy, LetterTask(), iterations=5, callbacks=[SampleFiles(str(tmp_path), every_n_iterations=2)]
    )
    files = sorted(path.name for path in (tmp_path / "samples").iterdir())
    assert files == [f"iteration-00000{n}-rank-0.jsonl" for n in (1, 2, 4)]
    records = [json.loads(line) for line in (tmp_path / "samples" / files[0]).read_text().splitlines()]
    assert len(records) == 64
    assert set(records[0]) >= {"prompt", "completion", "answer", "status", "reward", "advantage"}
    assert sum(r["reward"] for r in records) / 64 == pytest.approx(rows[0]["reward/mean"])
    for start in range(0, 64, 8):
        group = records[start : start + 8]
        assert len({r["prompt"] for r in group}) == 1
        assert sum(r["advantage"] for r in group) == pytest.approx(0, abs=1e-5)
        best, worst = (pick(group, key=lambda r: r["reward"]) for pick in (max, min))
        assert best["advantage"] >= worst["advantage"]


def test_no_sample_files(policy, tmp_path):
    run(policy, LetterTask(), iterations=2, callbacks=[SampleFiles(str(tmp_path), every_n_iterations=0)])
    assert not (tmp_path / "samples").exists()


def test_the_terminal_shows_progress_and_samples(policy, capsys):
    """Where there is no terminal: a line for the first, each third and the last iteration, and the table."""
    progress = IterationProgress({"reward": "reward/mean", "rate": "tokens_per_second"}, every_n_iterations=3)
    table = SampleTable(every_n_iterations=4, rows=4)
    run(
        policy,
        LetterTask(),
        iterations=5,
        callbacks=[table, progress],
        trainer={"enable_progress_bar": True},
    )
    out = capsys.readouterr().out
    assert [n for n in range(1, 6) if f"iteration {n}/5" in out] == [1, 3, 5]
    assert "reward 0." in out
    assert "samples of iteration 4" in out
    assert out.count("Make ") == 4  # the best and the worst of two groups


def test_markup_in_a_completion_is_shown_as_it_is(policy, capsys):
    """A policy that writes the console's own markup breaks nothing."""
    module, _ = run(policy, LetterTask(), iterations=1)
    module.rollout.completions[:] = ["[/red] [bold"] * 64
    SampleTable(every_n_iterations=1).on_train_epoch_end(module.trainer, module)
    assert "[/red]" in capsys.readouterr().out


def test_long_texts_are_cut_in_the_table(policy, capsys):
    module, _ = run(policy, LetterTask(), iterations=1)
    module.rollout.examples[:] = [Example("x" * 1000, 0)] * 8
    module.rollout.completions[:] = ["y" * 1000] * 64
    SampleTable(every_n_iterations=1, rows=4, width=30).on_train_epoch_end(module.trainer, module)
    out = capsys.readouterr().out
    assert (out.count("x"), out.count("y")) == (4 * 30, 4 * 30)


PANELS = [{"reward/mean": "reward", "eval/pass@1": "held-out"}, {"length/mean": "tokens"}]


def test_the_picture_of_a_run(policy, tmp_path):
    lines = [{"iteration": n, "reward/mean": n / 10, "length/mean": 5.0} for n in range(1, 4)]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    run(policy, LetterTask(), iterations=1, callbacks=[TrainingPlot(str(tmp_path), PANELS)])
    picture = (tmp_path / "plots" / "training.png").read_bytes()
    assert picture.startswith(b"\x89PNG")
    assert len(picture) > 10_000


class Rollout:
    """Two prompts of four samples, of which 3 and 1 pass: 0.5 does not."""

    rewards = torch.tensor([[1.0, 0.6, 0.9, 0.5], [0.0, 0.1, 0.0, 1.0]])


def test_what_the_picture_shows(tmp_path, monkeypatch):
    """The rows of the run's folder, the panels, and the pass rates of the last prompts where there are any."""
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "a": 0.5}\n')
    drawn = []
    monkeypatch.setattr(
        "sgrpo_lightning.callbacks.plots.plot_training", lambda rows, path, **more: drawn.append((rows, path, more))
    )
    with_rollout, without = L.LightningModule(), L.LightningModule()
    with_rollout.rollout = Rollout()
    TrainingPlot(str(tmp_path), PANELS, x="step").on_train_end(None, with_rollout)
    TrainingPlot(str(tmp_path), PANELS[:1]).on_train_end(None, without)
    TrainingPlot(str(tmp_path), PANELS, pass_rates=False).on_train_end(None, with_rollout)
    path = tmp_path / "plots" / "training.png"
    assert [(rows, where) for rows, where, _ in drawn] == [([{"step": 1, "a": 0.5}], path)] * 3
    assert drawn[0][2].pop("histogram").tolist() == [0.75, 0.25]
    assert [more for _, _, more in drawn] == [
        {"panels": PANELS, "x": "step", "samples_per_group": 4},
        {"panels": PANELS[:1], "x": "iteration"},
        {"panels": PANELS, "x": "iteration"},
    ]


def test_the_exported_policy_loads_and_writes_the_same(policy, tmp_path):
    run(policy, LetterTask(), iterations=2, callbacks=[PolicyExport(str(tmp_path))])
    again = load_policy(str(tmp_path))
    ids = torch.arange(5, 15)[None]
    with torch.no_grad():
        torch.testing.assert_close(again.model(ids).logits, policy.model.eval()(ids).logits)
    text = "Make 24 from 12.<think>"
    assert again.tokenizer(text)["input_ids"] == policy.tokenizer(text)["input_ids"]


class Interrupt(L.Callback):
    """Sends a signal to this process at the start of an iteration (counted from 1)."""

    def __init__(self, number, at):
        self.number, self.at = number, at

    def on_train_epoch_start(self, trainer, pl_module):
        if trainer.current_epoch + 1 == self.at:
            os.kill(os.getpid(), self.number)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_ends_the_run_after_its_iteration(policy, number, capsys):
    before = signal.getsignal(signal.SIGINT)
    module, rows = run(policy, LetterTask(), iterations=5, callbacks=[GracefulStop(), Interrupt(number, 2)])
    assert len(rows) == 2
    assert module.trainer.should_stop
    assert "stopping after this iteration" in capsys.readouterr().out
    assert signal.getsignal(signal.SIGINT) == before


TWICE = [Interrupt(signal.SIGINT, 2), Interrupt(signal.SIGINT, 2)]


def test_the_second_signal_ends_it_at_once(policy, monkeypatch):
    monkeypatch.setattr("sgrpo_lightning.callbacks.state.SAME_PRESS", 0.0)
    with pytest.raises((KeyboardInterrupt, SystemExit)):
        run(policy, LetterTask(), iterations=5, callbacks=[GracefulStop(), *TWICE])


def test_one_press_that_arrives_twice_is_one_request(policy):
    _, rows = run(policy, LetterTask(), iterations=5, callbacks=[GracefulStop(), *TWICE])
    assert len(rows) == 2


def draws():
    return random.random(), np.random.rand(), torch.rand(1).item()  # noqa: NPY002 - the global states


def test_random_states_come_back():
    draws()
    state = random_state()
    expected = draws()
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002
    torch.manual_seed(0)
    assert draws() != expected
    set_random_state(state)
    assert draws() == expected


def test_random_states_travel_in_a_checkpoint_of_plain_values(policy, tmp_path):
    module, _ = run(policy, LetterTask(), iterations=1, callbacks=[RandomState()])
    file = tmp_path / "some.ckpt"
    module.trainer.save_checkpoint(file)
    expected = draws()
    checkpoint = torch.load(file, weights_only=True)
    callback = RandomState()
    callback.on_load_checkpoint(module.trainer, module, checkpoint)
    callback.on_train_start(module.trainer, module)
    assert draws() == expected
