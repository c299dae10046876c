"""Every file of conf/ composes, and what it names can be built on a CPU."""

from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from hydra import compose, initialize_config_dir
from hydra.core.hydra_config import HydraConfig
from hydra.errors import InstantiationException
from omegaconf import OmegaConf, open_dict

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


@pytest.mark.parametrize("kind", ["sampler", "loss", "strategy", "trainer", "debug", "experiment"])
def test_groups(kind, small):
    """Each option beside the default ones; those for packages that are not installed are composed only."""
    for option in options(kind):
        try:
            built(f"{kind}={option}", *small)
        except InstantiationException as error:
            assert isinstance(error.__cause__, ImportError), error
        except ConfigurationError as error:
            assert "serves domain" in str(error), error


@pytest.mark.parametrize("task", options("task"))
def test_tasks(task, small):
    _, module, datamodule, _ = built(f"task={task}", "model=tiny", *small[:1], "trainer.accelerator=cpu")
    assert module.task is datamodule.task
    assert module.task.train
    assert module.task.held_out
    assert module.task.train[0].prompt


@pytest.mark.parametrize("model", options("model"))
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
