"""Every file of conf/ composes, and what it names can be built on a CPU."""

import math
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from hydra import compose, initialize_config_dir
from hydra.core.hydra_config import HydraConfig
from hydra.errors import InstantiationException
from omegaconf import OmegaConf, open_dict

from sgrpo_lightning.rewards import Answers
from sgrpo_lightning.run import ConfigurationError, build, settle

CONF = Path(__file__).parents[2] / "conf"


def options(group):
    return [path.stem for path in sorted((CONF / group).glob("*.yaml"))]


def composed(*overrides, config_name="train"):
    """The configuration that the command line would hand to `train`."""
    with initialize_config_dir(str(CONF), version_base="1.3"):
        cfg = compose(config_name, overrides=[*overrides, "run_dir=unused"], return_hydra_config=True)
    HydraConfig.instance().set_config(cfg)
    with open_dict(cfg):
        del cfg["hydra"]
    return cfg


def built(*overrides, config_name="train"):
    cfg = composed(*overrides, config_name=config_name)
    settle(cfg)
    return cfg, *build(cfg)


@pytest.fixture
def small(policy_folder, monkeypatch, tmp_path):
    """Overrides that keep the model small and the working directory clean."""
    monkeypatch.chdir(tmp_path)
    return [f"model.path={policy_folder}", "task.instruction=''", "trainer.accelerator=cpu"]


def serves_llm(objective):
    node = OmegaConf.load(CONF / "objective" / f"{objective}.yaml")
    return "llm" in node.get("objective", node).get("domains", ["llm"])


@pytest.mark.parametrize("objective", options("objective"))
def test_objectives(objective, small):
    """The head is called as the loop calls it: a group of rewards in, as many advantages out."""
    if not serves_llm(objective):
        with pytest.raises(ConfigurationError, match=f"objective={objective} serves domain=imagenet only"):
            settle(composed(f"objective={objective}"))
        return
    cfg, module, _, _ = built(f"objective={objective}", *small)
    assert cfg.identity == {"domain": "llm", "task": "countdown", "objective": objective, "seed": 0}
    advantages = module.head(torch.tensor([[1.0, 0, 0, 0, 0, 0, 1, 0]]))
    assert advantages.shape == (1, 8)
    assert advantages[0, 0] > 0 > advantages[0, 1]
    assert module.loss.reduction.func.__name__ == cfg.reduction


OF_IMAGES = {
    "loss": {"exact", "population", "sampled_labels"},
    "debug": {"quick_images"},
    "experiment": {"glyphs_fig2", "imagenet_fig2"},
    "model": {"resnet18", "resnet50", "small_cnn"},
}


@pytest.mark.parametrize("kind", ["sampler", "loss", "strategy", "trainer", "debug", "experiment"])
def test_groups(kind, small):
    """Each option beside the default ones; those for packages that are not installed are composed only."""
    for option in sorted(set(options(kind)) - OF_IMAGES.get(kind, set())):
        try:
            built(f"{kind}={option}", *small)
        except InstantiationException as error:
            assert isinstance(error.__cause__, ImportError), error


@pytest.mark.parametrize("choice", [f"{kind}={name}" for kind, names in OF_IMAGES.items() for name in sorted(names)])
def test_groups_of_images(choice, tmp_path, monkeypatch):
    """Each option builds a module whose network takes an image of the data and has an output for each class."""
    monkeypatch.chdir(tmp_path)
    cfg = composed("domain=imagenet", choice)
    if choice == "experiment=imagenet_fig2":
        assert (cfg.steps, cfg.batch_size, cfg.samples_per_group, cfg.model.depth) == (100100, 256, 1024, 50)
        assert round(cfg.steps * cfg.batch_size / 1_281_167) == 20
        return
    objective = "cross_entropy" if choice == "loss=exact" else "softmax_grpo"
    small = ["data.classes=5", "data.train_per_class=2", f"data.cache_dir={tmp_path}", "trainer.accelerator=cpu"]
    _, module, datamodule, trainer = built("domain=imagenet", f"objective={objective}", choice, *small)
    assert module(datamodule.data.train.images[:2]).shape == (2, 5)
    assert {"evaluation", "log"} <= set(cfg.callbacks)
    assert trainer.gradient_clip_val is None


def test_a_file_of_the_other_domain(small):
    for choice in ("model=resnet18", "objective=exact_reinforce"):
        with pytest.raises(ConfigurationError, match=f"{choice} serves domain=imagenet only"):
            settle(composed(choice))


def test_the_temperature_of_softmax_grpo_is_that_of_the_domain(small):
    for domain, tau in (("llm", 0.1), ("imagenet", 0.2)):
        assert composed(f"domain={domain}").objective.tau == tau
        assert composed(f"domain={domain}", "objective.tau=0.7").objective.tau == 0.7
    assert composed("domain=imagenet", "objective=exact_softmax_grpo").objective.tau == 0.2


@pytest.mark.parametrize("task", options("task"))
def test_tasks(task):
    """Built and run on small data in test_tasks.py; here what each has to say about itself."""
    cfg = composed(f"task={task}")
    assert cfg.reward == cfg.task.grader == OmegaConf.load(CONF / "reward" / f"{REWARD_OF[task]}.yaml")
    assert cfg.objective.tau == (0.1 if task in ("countdown", "gsm8k") else 0.3)
    assert cfg.headline.metric == ("eval/pass@1" if REWARD_OF[task] in ("countdown", "math") else "eval/reward")
    assert cfg.callbacks.evaluation.text_overlap == (task in ("poetry", "meetingbank"))


REWARD_OF = {
    "countdown": "countdown",
    "deepmath": "math",
    "gsm8k": "math",
    "meetingbank": "similarity",
    "openthoughts": "format_similarity",
    "poetry": "similarity",
}


@pytest.mark.parametrize("reward", options("reward"))
def test_rewards(reward, small):
    """Each grades the answers of a task whose examples have references."""
    _, module, _, _ = built(f"reward={reward}", "task.references=true", "task.train_size=4", *small)
    example = module.task.train[0]
    answers = Answers([example.reference], ["24"], [example.reference], ["?"], lambda *pairs: [(-1.5, 2)])
    if "countdown" in reward:
        answers = replace(answers, golds=[example.answer])
    (outcome,) = module.task.grade(answers)
    expected = {"math": 0, "answer_logprob": -1.5, "answer_perplexity": -math.exp(0.75)}
    # The reference answers between answer tags, with an expression: neither a box nor the number 24.
    assert outcome.reward == pytest.approx(expected.get(reward, 0 if reward == "exact" else 1))


PAPER = {  # Tables B.1 and B.2: M, prompts, mini-batch per device, iterations, response tokens, GPUs, tau
    "gsm8k": (8, 64, 4, 1000, 256, 8, 0.1),
    "countdown": (8, 64, 4, 2000, 256, 8, 0.1),
    "deepmath": (16, 512, 8, 3220, 1024, 16, 0.3),
    "poetry": (8, 64, 4, 1350, 1024, 8, 0.3),
    "meetingbank": (8, 512, 4, 3220, 4096, 16, 0.3),
    "openthoughts": (8, 512, 4, 3220, 6144, 16, 0.3),
}


@pytest.mark.parametrize("name", options("experiment/paper"))
def test_settings_of_the_paper(name):
    """The 3B models of Table B.3 are trained as the 1.5B ones; the similarity reward changes nothing but the reward."""
    task, size = name.split("_")[0], name.split("_")[-1]
    samples, prompts, minibatch, iterations, tokens, devices, tau = PAPER[task]
    cfg = composed(f"experiment=paper/{name}")
    choices = HydraConfig.get().runtime.choices
    assert (choices.task, choices.model, cfg.objective.tau) == (task, f"qwen2.5-{size}", tau)
    assert (cfg.samples_per_group, cfg.prompts_per_iteration, cfg.iterations) == (samples, prompts, iterations)
    assert (cfg.max_new_tokens, cfg.trainer.devices * cfg.trainer.num_nodes) == (tokens, devices)
    assert cfg.minibatches * minibatch * devices == prompts
    assert (cfg.learning_rate, cfg.clip_low, cfg.clip_high, cfg.beta) == (1e-6, 0.2, 0.28, 1e-3)
    assert ("similarity" in choices.reward) == ("sim" in name or task in ("poetry", "meetingbank", "openthoughts"))
    header = (CONF / "experiment" / "paper" / f"{name}.yaml").read_text().split("defaults:")[0]
    assert f"experiment=paper/{name}\n" in header
    assert all(f"# {word}:" in header for word in ("Hardware", "Hours", "Seeds", "Setting", "Expected", "Measured"))


@pytest.mark.parametrize("model", sorted(set(options("model")) - OF_IMAGES["model"]))
def test_models(model, small):
    """Those of the hub are composed, not fetched."""
    cfg = composed(f"model={model}")
    if model in ("tiny", "scratch"):
        _, module, _, _ = built(f"model={model}", "trainer.accelerator=cpu")
        assert module.policy.eos_token_ids
        assert module.task.train[0].prompt.startswith("Make 24 from")
        assert "answer" not in module.task.train[0].prompt
    else:
        assert cfg.model.path.startswith("Qwen/")
        assert "<answer>" in cfg.task.instruction


@pytest.mark.parametrize("logger", options("logger"))
def test_loggers(logger, small):
    if logger != "wandb" or find_spec("wandb"):
        _, _, _, trainer = built(f"logger={logger}", *small)
        assert len(trainer.loggers) >= 2
    else:
        assert set(composed(f"logger={logger}").logger) == {"run", "tensorboard", "wandb"}


@pytest.mark.parametrize("domain", options("domain"))
def test_domains(domain):
    assert composed(f"domain={domain}").shared


def test_what_is_shared_is_built_once(small):
    cfg, module, datamodule, trainer = built(*small)
    assert module.policy.model is module.model
    assert datamodule.task is module.task
    assert datamodule.plan == module.plan
    assert trainer.max_epochs == cfg.iterations


def test_the_short_keys_reach_what_they_name(small):
    """One value for each top-level key of the domain, read back from the objects."""
    cfg, module, _, trainer = built(
        *small,
        "seed=7",
        "iterations=3",
        "prompts_per_iteration=6",
        "samples_per_group=5",
        "micro_batch_size=2",
        "max_new_tokens=9",
        "temperature=0.8",
        "learning_rate=0.25",
        "ppo_epochs=4",
        "minibatches=3",
        "clip_low=0.1",
        "clip_high=0.4",
        "beta=0.5",
        "kl=k2",
        "reduction=fixed_length",
        "objective.tau=0.3",
    )
    plan, loss = module.plan, module.loss
    assert (plan.seed, plan.prompts_per_iteration, plan.samples_per_group) == (7, 6, 5)
    assert (plan.micro_batch_size, plan.ppo_epochs, plan.minibatches) == (2, 4, 3)
    assert (module.sampler.max_new_tokens, module.sampler.temperature, loss.temperature) == (9, 0.8, 0.8)
    assert (loss.clip_low, loss.clip_high, loss.beta, loss.kl) == (0.1, 0.4, 0.5, "k2")
    assert loss.reduction.keywords == {"length": 9}
    assert module.head.keywords == {"tau": 0.3}
    assert trainer.max_epochs == 3
    optimizer = module._make_optimizer([torch.nn.Parameter(torch.zeros(1))])
    assert optimizer.param_groups[0]["lr"] == 0.25
    assert module.reference is not None
    assert not OmegaConf.missing_keys(cfg)


def test_a_head_meets_the_group_size_before_the_model_is_loaded(small, monkeypatch):
    monkeypatch.setattr("sgrpo_lightning.modules.loading._resolve", lambda path: pytest.fail("the model was loaded"))
    with pytest.raises(
        ConfigurationError, match="objective: k must be an integer from 1 to samples per group = 4, got 9"
    ):
        built("objective=pass_at_k", "objective.k=9", "samples_per_group=4", *small)


def test_the_supervised_configuration(small):
    _, _, datamodule, trainer = built("steps=5", "trainer.accelerator=cpu", "task.high=6", config_name="sft")
    assert trainer.max_steps == 5
    assert {example.answer.target for example in datamodule.dataset.task.train} > {1, 24, 60}
    assert len(datamodule.dataset) == 5 * 64
