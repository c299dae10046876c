"""Labels of runs that differ in more than the objective."""

import pytest
from report_runs import made

from sgrpo_lightning.report.groups import distinguishing, grouped, natural, short_names


def labels(*runs):
    return {label: [run.seed for run in group] for label, group in grouped(runs).items()}


def test_runs_without_settings_are_grouped_by_objective():
    runs = [made("maxrl"), *(made("grpo", seed) for seed in (0, 1, 2))]
    assert labels(*runs) == {"grpo": [0, 1, 2], "maxrl": [0]}
    assert list(labels(*runs)) == ["grpo", "maxrl"]


def test_a_label_names_what_differs_within_its_objective():
    def softmax(seed, M, tau, **more):
        return made("softmax_grpo", seed, settings={"samples_per_group": M, "steps": 9, "objective.tau": tau, **more})

    runs = [softmax(0, 1024, 0.3), softmax(0, 128, 0.1), softmax(1, 128, 0.1), softmax(0, 16, 0.1)]
    runs += [made("grpo", seed, settings={"samples_per_group": 16, "steps": 10}) for seed in (0, 1)]
    found = labels(*runs)
    assert found == {
        "grpo": [0, 1],
        "softmax_grpo M=16 tau=0.1": [0],
        "softmax_grpo M=128 tau=0.1": [0, 1],
        "softmax_grpo M=1024 tau=0.3": [0],
    }
    assert list(found)[1:] == [f"softmax_grpo M={text}" for text in ("16 tau=0.1", "128 tau=0.1", "1024 tau=0.3")]


def test_a_run_without_settings_keeps_the_objective_and_burdens_no_other():
    runs = [made("grpo", 0, settings={"steps": 9}), made("grpo", 1, settings={"steps": 9}), made("grpo", 2)]
    assert labels(*runs) == {"grpo": [0, 1, 2]}
    runs[0] = made("grpo", 0, settings={"steps": 8})
    assert labels(*runs) == {"grpo": [2], "grpo steps=8": [0], "grpo steps=9": [1]}


@pytest.mark.parametrize(
    ("first", "second", "names"),
    [
        ({"learning_rate": 1.5e-4}, {"learning_rate": 1e-6}, ["learning_rate=0.00015", "learning_rate=1e-06"]),
        ({"model._target_": "resnet50"}, {"model._target_": "small"}, ["model=resnet50", "model=small"]),
        ({"model.bias": True}, {"model.bias": False}, ["bias=True", "bias=False"]),
        ({"loss.a": 1}, {"loss.a": 2}, ["a=1", "a=2"]),
        # a copy of a value is named once, whatever it is called
        ({"lr": 1, "module.optimizer.rate": 1}, {"lr": 2, "module.optimizer.rate": 2}, ["lr=1", "lr=2"]),
        ({"kl": "k1", "loss.kl": "k1"}, {"kl": "k2", "loss.kl": "k2"}, ["kl=k1", "kl=k2"]),
        # of two settings with one last part the second is written out
        ({"loss.a": 1, "model.a": 1}, {"loss.a": 2, "model.a": 1}, ["a=1", "a=2"]),
        ({"loss.a": 1, "model.a": 3}, {"loss.a": 2, "model.a": 1}, ["a=1 model.a=3", "a=2 model.a=1"]),
        # below other sections only what tells runs apart that nothing else does
        ({"module.decay": 0.1}, {"module.decay": 0.2}, ["decay=0.1", "decay=0.2"]),
        ({"task": "a", "data.size": 1}, {"task": "b", "data.size": 2}, ["task=a", "task=b"]),
        # as is a setting that only one of them has
        ({"model.lora.r": 8}, {}, ["r=8", ""]),
        ({"model.path": "a", "model.lora.r": 8}, {"model.path": "b"}, ["path=a", "path=b"]),
    ],
)
def test_settings_in_a_label(first, second, names):
    runs = [made("grpo", seed, settings={"steps": 9, **some}) for seed, some in enumerate((first, second))]
    assert labels(*runs) == {f"grpo {name}".strip(): [seed] for seed, name in enumerate(names)}


def test_main_settings_are_all_named_others_only_where_they_tell_runs_apart():
    """By hand: a and loss.b tell (1, 1), (1, 2), (2, 2) apart; x is a function of them, y splits (1, 2)."""
    settings = [
        {"z.x": 5, "z.y": 0, "loss.b": 1, "a": 1, "same": 7},
        {"z.x": 6, "z.y": 0, "loss.b": 2, "a": 1, "same": 7},
        {"z.x": 6, "z.y": 1, "loss.b": 2, "a": 1, "same": 7},
        {"z.x": 7, "z.y": 0, "loss.b": 2, "a": 2, "same": 7},
    ]
    assert distinguishing(settings) == ["a", "loss.b", "z.y"]
    # c follows from a, but is a main setting too
    assert distinguishing([{**each, "model.c": each["a"] + 1} for each in settings]) == [
        "a",
        "loss.b",
        "model.c",
        "z.y",
    ]
    assert distinguishing(settings[:1]) == distinguishing([]) == []


def test_top_level_comes_first_then_objective_loss_and_model():
    keys = ["model.a", "loss.b", "objective.c", "module.d", "samples_per_group", "e"]
    settings = [dict.fromkeys(keys, index) for index in range(2)] + [{**dict.fromkeys(keys, 1), "module.d": 5}]
    assert list(short_names(settings).values()) == ["M", "e", "c", "b", "a", "d"]


def test_a_copy_has_the_values_of_all_runs():
    """model.a is loss.a but for the last run, so it is no copy."""
    settings = [{"loss.a": 1, "model.a": 1}, {"loss.a": 2, "model.a": 2}, {"loss.a": 2, "model.a": 3}]
    assert short_names(settings) == {"loss.a": "a", "model.a": "model.a"}
    assert short_names(settings[:2]) == {"loss.a": "a"}


def test_numbers_are_sorted_as_numbers():
    right = ["grpo", "grpo M=16", "grpo M=128", "grpo M=128 tau=0.05", "grpo M=128 tau=0.1", "grpo M=128 tau=1.5"]
    right += ["grpo lr=1e-06", "grpo lr=0.0001", "grpo lr=1e+2", "maxrl"]
    assert sorted(right[1::2] + right[::2], key=natural) == right
