"""Each check, given something that is broken."""

import copy
import math
from contextlib import suppress
from types import SimpleNamespace

import lightning as L
import pytest
import torch
from lightning.pytorch.loggers import CSVLogger
from test_architecture import packages_behind
from toys import LetterTask

from sgrpo_lightning.distributed.memory import MemoryPlan
from sgrpo_lightning.doctor import without_traces
from sgrpo_lightning.doctor.data import check_data, check_lengths, judge_lengths
from sgrpo_lightning.doctor.disk import check_disk, checkpoints_kept, existing
from sgrpo_lightning.doctor.examination import still
from sgrpo_lightning.doctor.grader import judge_golds, judge_grader
from sgrpo_lightning.doctor.gradient import Place, judge_gradient, norm_of, relative_difference
from sgrpo_lightning.doctor.images import check_images
from sgrpo_lightning.doctor.memory import judge_memory
from sgrpo_lightning.doctor.ranks import Rank, checksum, judge_ranks
from sgrpo_lightning.doctor.sampler import judge_gaps, nudge, other_weights, own_tensors
from sgrpo_lightning.doctor.soak import Soak, judge_soak
from sgrpo_lightning.doctor.speed import tell_policy_speed
from sgrpo_lightning.doctor.template import check_template, end_is_learned
from sgrpo_lightning.doctor.verdict import Checklist, Finding, attempted, worst
from sgrpo_lightning.rewards import Outcome
from sgrpo_lightning.tasks import Example


def expect(finding, status, advice=""):
    assert finding.status == status, finding
    assert advice in finding.advice
    assert bool(finding.advice) == (status in ("failed", "warning"))


# ---- the list ----


def test_a_check_that_raises_has_failed(capsys):
    """With the first line of the reason; the next one still runs."""
    checklist = Checklist("a run")
    checklist.run("first", lambda: {}["x"])
    checklist.run("second", lambda: Finding("second", "ok", "fine"))
    assert checklist.close() == 1
    out = capsys.readouterr().out.splitlines()
    assert out[0] == "a run"
    assert out[1] == "failed   first     KeyError: 'x'"
    assert out[3] == "ok       second    fine"
    assert out[4].startswith("1 ok, 0 warning, 1 failed, 0 skipped")


def test_the_worst_of_the_ranks_counts():
    ok, bad = Finding("x", "ok", "5"), Finding("x", "failed", "7", "mend it")
    assert worst([ok, ok]) is ok
    assert worst([ok, bad]).figures == "rank 1: 7"
    assert worst([bad, ok]) is bad
    assert attempted("x", lambda: bad) is bad


# ---- nothing is left behind ----


def test_what_would_be_written_goes_elsewhere(tmp_path, monkeypatch):
    """Beside the first folder that there is, under a name that all nodes know, and away afterwards."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    settings = {"a": "runs/x/y/weights", "b": ["runs/x/y", 3], "c": "runs/x/yes"}
    with without_traces(settings, "runs/x/y") as moved:
        scratch = tmp_path / "runs" / ".doctor-y"
        assert moved == {"a": f"{scratch}/weights", "b": [str(scratch), 3], "c": "runs/x/yes"}
        (scratch / "weights").mkdir(parents=True)
    assert list((tmp_path / "runs").iterdir()) == []


def test_nothing_is_logged():
    trainer = L.Trainer(logger=CSVLogger("x"), accelerator="cpu", enable_checkpointing=False)
    module = SimpleNamespace(_make_optimizer=torch.optim.AdamW)
    still(module, trainer)
    assert trainer.loggers == []
    [group] = module._make_optimizer([torch.nn.Parameter(torch.zeros(1))]).param_groups
    assert group["lr"] == group["weight_decay"] == 0


# ---- data ----


def task_of(train, held_out):
    return SimpleNamespace(
        train=[Example(text, "") for text in train], held_out=[Example(text, "") for text in held_out]
    )


def test_a_held_out_question_in_training():
    expect(check_data(task_of(["a b", "c"], ["d"]), ["counts", "left out: 3 of 9"]), "ok")
    found = check_data(task_of(["a b", "c"], ["A  b", "d"]), ["left out: 3 of 9"])
    expect(found, "failed", "task.held_out_split")
    assert "2 training and 2 held-out questions; left out: 3 of 9; 1 held-out" in found.figures


@pytest.fixture(scope="module")
def policy(make_policy):
    return make_policy()


def test_prompts_that_do_not_fit(policy):
    """The policy has 512 positions."""
    limits = {"max_prompt_tokens": None, "positions": 512}
    expect(check_lengths(LetterTask(), policy, max_new_tokens=400, **limits), "ok")
    expect(check_lengths(LetterTask(), policy, max_new_tokens=510, **limits), "failed", "set max_new_tokens=")


def test_limits_of_prompts():
    limits = {"all_seen": True, "max_prompt_tokens": 20, "max_new_tokens": 10, "positions": 30}
    found = judge_lengths([1, 5, 20], **limits)
    expect(found, "ok")
    assert "min 1, median 5, p99 20, max 20, limit 20; with max_new_tokens 30 of 30" in found.figures
    expect(judge_lengths([1, 21], **limits | {"positions": None}), "failed", "longer than max_prompt_tokens=20")
    expect(judge_lengths([1, 20], **limits | {"max_new_tokens": 11}), "failed", "max_prompt_tokens=19")
    expect(judge_lengths([1, 5], **limits | {"max_new_tokens": 11, "all_seen": False}), "warning", "=19")
    expect(judge_lengths([1, 5], **limits | {"max_new_tokens": 11}), "ok")


# ---- template ----


def dressed(policy, template, **special):
    tokenizer = copy.deepcopy(policy.tokenizer)
    tokenizer.add_special_tokens({"bos_token": "<|bos|>", **special})
    tokenizer.chat_template = template
    return SimpleNamespace(tokenizer=tokenizer, eos_token_ids=policy.eos_token_ids)


TURNS = "{% for m in messages %}{{ m.content }}{% if m.role == 'assistant' %}<|turn|>{% endif %}{% endfor %}"


def test_the_round_trip_of_a_prompt(policy):
    found = check_template(LetterTask(), policy)
    expect(found, "ok")
    assert "end of the demonstration learned" in found.figures


def test_a_doubled_begin_token(policy):
    one = "{{ bos_token }}{{ messages[0].content }}"
    found = check_template(LetterTask(), dressed(policy, one))
    expect(found, "ok")
    assert "1 begin token" in found.figures
    expect(check_template(LetterTask(), dressed(policy, "{{ bos_token }}" + one)), "failed", "doubled")


def test_a_begin_token_that_the_template_forgets(policy):
    from tokenizers.processors import TemplateProcessing

    patient = dressed(policy, "{{ messages[0].content }}")
    begin = ("<|bos|>", patient.tokenizer.bos_token_id)
    patient.tokenizer.backend_tokenizer.post_processor = TemplateProcessing(single="<|bos|> $A", special_tokens=[begin])
    expect(check_template(LetterTask(), patient), "failed", "is missing")


def test_text_that_is_lost(policy):
    """By a tokenizer that does not know a part of the prompt, or one that writes all letters small."""
    task = LetterTask()
    task.train = [Example("Make <|unk|>.", 0)]
    expect(
        check_template(task, dressed(policy, None, unk_token="<|unk|>")), "failed", "some of the prompt's characters"
    )
    from tokenizers.normalizers import Lowercase

    patient = dressed(policy, None)
    patient.tokenizer.backend_tokenizer.normalizer = Lowercase()
    expect(check_template(LetterTask(), patient), "failed", "reads back as 'make 0.")


def test_ends_that_do_not_end(policy):
    patient = dressed(policy, None)
    patient.eos_token_ids = [3]
    expect(check_template(LetterTask(), patient), "failed", "generation_config.json")
    turning = dressed(policy, TURNS, additional_special_tokens=["<|turn|>"])
    expect(check_template(LetterTask(), turning), "warning", "'<|turn|>'")


def test_an_end_that_no_row_learns(monkeypatch):
    from sgrpo_lightning.doctor import template
    from sgrpo_lightning.modules.rows import join_rows

    assert end_is_learned([1, 2], [3, 4])

    def forgetful(*arguments):
        rows = join_rows(*arguments)
        rows.loss_mask[:, -1] = False
        return rows

    monkeypatch.setattr(template, "join_rows", forgetful)
    assert not end_is_learned([1, 2], [3, 4])


# ---- disk ----


def test_space_for_checkpoints(tmp_path, monkeypatch):
    """1000 float32 weights under AdamW are 12 kB a checkpoint, and one more is there than is kept."""
    import shutil

    from sgrpo_lightning.callbacks import PolicyExport
    from sgrpo_lightning.callbacks.checkpoint import RunCheckpoint

    callbacks = [RunCheckpoint("x", save_top_k=2), PolicyExport("y")]
    weights = [torch.nn.Parameter(torch.zeros(1000))]
    needed = 3 * 12_000 + 4_000
    for free, status in ((needed, "ok"), (needed - 1, "failed")):
        monkeypatch.setattr(shutil, "disk_usage", lambda _, free=free: SimpleNamespace(free=free))
        found = check_disk(tmp_path / "a" / "b", weights, torch.optim.AdamW, callbacks, 9)
        expect(found, status, "save_top_k" if status == "failed" else "")
    assert existing(tmp_path / "a" / "b") == tmp_path
    assert [checkpoints_kept([RunCheckpoint("x", save_top_k=k)], 9) for k in (-1, 0, 1, 20)] == [9, 0, 2, 9]


def test_a_folder_that_cannot_be_written(tmp_path, monkeypatch):
    from sgrpo_lightning.doctor import disk

    def refuse(**_):
        raise PermissionError

    monkeypatch.setattr(disk.tempfile, "TemporaryFile", refuse)
    found = check_disk(tmp_path, [torch.nn.Parameter(torch.zeros(2))], torch.optim.SGD, [], 1)
    expect(found, "failed", "give another run_dir")


# ---- ranks ----


def test_ranks_that_are_too_much_or_too_little_alike():
    rank = Rank(data="d", weights=7, seed=1, work=("a", "b"))
    other = Rank(data="d", weights=7, seed=2, work=("c",))
    expect(judge_ranks([rank, other]), "ok")
    assert judge_ranks([rank]).status == "skipped"
    for change, advice in [
        ({"data": "e"}, "different data"),
        ({"weights": 8}, "different weights"),
        ({"seed": 1}, "equal seeds"),
        ({"work": ("b",)}, "share of its own"),
    ]:
        fields = {name: getattr(other, name) for name in Rank.__slots__} | change
        expect(judge_ranks([rank, Rank(**fields)]), "failed", advice)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_the_checksum_sees_every_bit_of_every_weight(dtype):
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2)).to(dtype)
    before = checksum(model)
    model[1].running_mean += 1
    assert checksum(model) == before
    with torch.no_grad():
        model[0].weight[1, 0] = torch.nextafter(model[0].weight[1, 0], torch.tensor(9, dtype=dtype))
    assert checksum(model) != before
    with torch.no_grad():
        model[0].bias.copy_(torch.tensor([1.0, 2.0]))
        ordered = checksum(model)
        model[0].bias.copy_(torch.tensor([2.0, 1.0]))
    assert checksum(model) != ordered


# ---- sampler ----


def test_gaps_between_sampler_and_trainer():
    expect(judge_gaps(1e-6, 0.01, 1e-6, 1e-6, limit=0.3), "ok")
    expect(judge_gaps(0.02, 0.1, 0.03, 0.02, limit=0.3), "ok")
    expect(judge_gaps(1e-6, 0.01, 0.01, 1e-6, limit=0.3), "failed", "keeps old weights")
    expect(judge_gaps(1e-6, 0.01, 1e-6, 0.01, limit=0.3), "failed", "keeps old weights")
    expect(judge_gaps(0.4, 4.0, 0.4, 0.4, limit=0.3), "failed", "above rescoring.limit")
    expect(judge_gaps(0.4, 4.0, 0.4, 0.4, limit=None), "ok")
    expect(judge_gaps(math.nan, 4.0, 0.1, 0.1, limit=0.3), "failed", "above rescoring.limit")
    expect(judge_gaps(0.01, 0.2, 0.01, 0.05, limit=0.3), "warning", "prefix cache")
    expect(judge_gaps(0.1, 0.2, 0.1, 0.1, limit=0.3), "warning", "does not show")


def test_other_weights_are_there_for_a_while(policy):
    """The noise is the same each time, grows until it is seen, and leaves every bit as it was, also after an error."""
    model = copy.deepcopy(policy.model)
    first, seen = checksum(model), []

    def movement():
        seen.append(checksum(model))
        return float(len(seen))

    with suppress(ZeroDivisionError), other_weights(model, movement, enough=2.0) as moved:
        assert moved == 2.0
        assert first != checksum(model) == seen[1] != seen[0]
        raise ZeroDivisionError
    assert checksum(model) == first
    with other_weights(model, movement, enough=0.0):
        assert checksum(model) == seen[0]
    saved = [(tensor, tensor.clone()) for tensor in own_tensors(model)]
    nudge(saved, 0.01)
    assert all((tensor != kept).any() for tensor, kept in saved)


# ---- grader ----


def test_golds_that_are_not_accepted():
    of = {"seconds": 1.0, "of": 10}
    expect(judge_golds([True] * 20, [], **of), "ok")
    expect(judge_golds([True] * 9 + [False], [], **of), "warning", "teach nothing")
    expect(judge_golds([True] * 4 + [False] * 6, [], **of), "failed", "compare reward and task")
    expect(judge_golds([True] * 9, [True] + [False] * 6, **of), "failed")


def test_the_speed_of_a_grader_and_its_faults():
    outcomes = [Outcome(1.0, "ok", "a"), Outcome(0.0, "wrong", "b")]
    found = judge_grader(outcomes, seconds=0.5, rows=8)
    expect(found, "ok")
    assert "4 sampled answers a second, 2.00 s an iteration; mean reward 0.500; 1 ok, 1 wrong" in found.figures
    expect(judge_grader([*outcomes, Outcome(0.0, "timeout", None)], seconds=1, rows=1), "warning", "time limit")
    expect(judge_grader([*outcomes, Outcome(0.0, "error", None)], seconds=1, rows=1), "failed", "raises")


# ---- gradient ----


def place_of(look_at_others):
    weight = torch.nn.Parameter(torch.tensor([1.0, 2.0]))

    def loss(rows):
        rows = rows - rows.mean(0) if look_at_others else rows
        return (rows @ weight).pow(2).sum()

    return Place("here", [weight], loss, norm_of([weight]))


def test_a_model_that_looks_at_other_rows():
    """As batch normalisation does, or packed rows that attend to one another."""
    rows = torch.randn(6, 2, generator=torch.Generator().manual_seed(0))
    whole, cut = [rows], rows.flip(0).split(1)
    place = place_of(look_at_others=False)
    norm, difference = relative_difference(place, whole, cut)
    gradient = 2 * rows.T @ (rows @ place.parameters[0])
    assert norm == pytest.approx(gradient.norm().item())
    assert difference < 1e-6
    assert place.parameters[0].grad is None
    words = {"tolerance": 1e-5, "cut": "", "note": ""}
    expect(judge_gradient(norm, difference, **words), "ok")
    norm, difference = relative_difference(place_of(look_at_others=True), whole, cut)
    assert difference == pytest.approx(1.0)
    expect(judge_gradient(norm, difference, **words), "failed", "depends on the micro-batches")
    for norm in (0.0, math.nan, math.inf):
        expect(judge_gradient(norm, 0.0, **words), "failed", "0 or not finite")


# ---- soak ----


def soak(gaps=(1e-6, 1e-6, 1e-6), no_signal=0.5, **fields):
    rows = [{"sampler_gap/mean": gap, "no_signal/frac": no_signal} for gap in gaps]
    return Soak(**{"losses": [0.1], "norms": [1.0], "rows": rows, "before": 1, "after": 1} | fields)


def test_what_a_soak_shows():
    expect(judge_soak(soak()), "ok")
    expect(judge_soak(soak(after=2)), "failed", "weights changed")
    expect(judge_soak(soak(gaps=(0.01, 0.02, 0.019))), "ok")
    expect(judge_soak(soak(gaps=(0.01, 0.02, 0.03))), "failed", "gap between sampler and trainer grows")
    expect(judge_soak(soak(losses=[0.1, math.nan])), "failed", "not finite")
    expect(judge_soak(soak(norms=[1.0, math.inf])), "failed", "not finite")
    expect(judge_soak(soak(norms=[0.0, 0.0])), "failed", "does not reach the weights")
    expect(judge_soak(soak(norms=[0.0], no_signal=1.0)), "ok")
    expect(judge_soak(soak(norms=[])), "failed", "not one optimizer step")


# ---- memory and speed ----


def test_memory_that_is_not_there():
    sizes = dict.fromkeys(("gradients", "moments", "reference", "buffers", "whole_weights"), 0)
    plan = MemoryPlan(weights=600, activations=200, logits=0, optimizer=0, sampler=100, **sizes)
    expect(judge_memory(plan, 10, 1000), "ok")
    expect(judge_memory(plan, 10, 850), "warning", "little room")
    expect(judge_memory(plan, 10, 799), "failed", "strategy=fsdp2")
    expect(judge_memory(None, 950, 1000), "warning", "little room")


def test_the_time_of_the_run_from_that_of_its_soak():
    """10 times as many prompts take 10 times as long, but for the push; the first iteration does not count."""
    cold, warm = ({f"seconds/{part}": s for part in ("sync", "sample", "reward", "learn")} for s in (9.0, 1.0))
    rows = [row | {"tokens/sum": 50.0} for row in (cold, warm, warm)]
    figures = tell_policy_speed(rows, factor=10, iterations=20).figures
    assert "sampling 50 tokens/s, learning 50; about 31.00 s an iteration" in figures
    assert "10 min for 20" in figures


# ---- images ----


def test_images_need_no_transformers():
    assert "transformers" in packages_behind("sgrpo_lightning.doctor.policy")
    assert not {"transformers", "tokenizers"} & packages_behind("sgrpo_lightning.doctor.images")


def test_images_that_cannot_be_read():
    from datamodules.fake import FakeImages
    from sgrpo_lightning.axes import ImageBatch

    data = FakeImages(classes=4, train_size=20, eval_size=8, image_size=8)
    expect(check_images(data), "ok")

    class Torn:
        def __len__(self):
            return 10

        def __getitems__(self, draws):
            return ImageBatch(torch.zeros(len(draws), 3, 8, 8).byte(), torch.zeros(len(draws)).long(), ("a/torn.png",))

    data.held_out = {"eval": Torn()}
    expect(check_images(data), "failed", "a/torn.png")
    data.held_out, data.num_classes = {}, 3
    expect(check_images(data), "failed", "labels must be below 3")
