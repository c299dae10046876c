"""The paper's experiments on one node and on two: they divide among the ranks, and docs/memory.md tells the truth."""

from functools import cache
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from hydra.utils import instantiate
from omegaconf import OmegaConf
from transformers import Qwen2Config

from sgrpo_lightning.distributed.advice import first_fit
from sgrpo_lightning.distributed.architecture import architecture
from sgrpo_lightning.distributed.memory import GIB, Setting, memory_plan, vllm_rows, vllm_sampler
from sgrpo_lightning.losses.logprobs import rows_per_chunk

ROOT = Path(__file__).parents[2]
CONF = ROOT / "conf"
PAPER = sorted(path.stem for path in (CONF / "experiment" / "paper").glob("*.yaml"))
STRATEGIES, SAMPLERS = (
    [path.stem for path in sorted((CONF / group).glob("*.yaml"))] for group in ("strategy", "sampler")
)
GPUS = {"80 GiB (H100, A100)": 79.0, "40 GiB (A100)": 39.0}  # of which a program has about so much
QWEN = {  # hidden, intermediate, layers, heads, key-value heads
    "1.5b": (1536, 8960, 28, 12, 2),
    "3b": (2048, 11008, 36, 16, 2),
}

SHARE = OmegaConf.load(CONF / "sampler" / "vllm.yaml").gpu_memory_utilization


@cache
def composed(*overrides):
    with initialize_config_dir(str(CONF), version_base="1.3"):
        return compose("train", overrides=[*overrides, "run_dir=unused"])


def on(name, *overrides, nodes=2):
    return composed(f"experiment=paper/{name}", "trainer.devices=8", f"trainer.num_nodes={nodes}", *overrides)


def file(group, option):
    return OmegaConf.load(CONF / group / f"{option}.yaml")


VARIANTS = [(strategy, sampler) for strategy in STRATEGIES for sampler in SAMPLERS]
RUNS = [(PAPER[i % len(PAPER)], *VARIANTS[i % len(VARIANTS)]) for i in range(max(len(PAPER), len(VARIANTS)))]


# ---- they run as typed ----


@pytest.mark.parametrize("name", PAPER)
def test_an_experiment_divides_among_8_and_16_gpus(name):
    """Optimizer steps and their prompts stay those of the paper; a rank has half of them on twice the GPUs."""
    plan = instantiate(on(name).plan)
    assert plan.groups_per_minibatch(world_size=8) == 2 * plan.groups_per_minibatch(world_size=16) >= 2


@pytest.mark.parametrize(("name", "strategy", "sampler"), RUNS)
def test_an_experiment_takes_any_strategy_and_sampler(name, strategy, sampler):
    """What the experiment itself says of them gives way to the command line, and nothing else changes."""
    cfg, plain = on(name, f"strategy={strategy}", f"sampler={sampler}", nodes=1), on(name)
    assert cfg.trainer.strategy == file("strategy", strategy).trainer.strategy
    assert cfg.sampler._target_ == file("sampler", sampler)._target_
    assert cfg.sampler.max_new_tokens == cfg.max_new_tokens
    assert (cfg.plan, cfg.model, cfg.task, cfg.objective) == (plain.plan, plain.model, plain.task, plain.objective)


# ---- docs/memory.md ----


@cache
def model(size):
    hidden, intermediate, layers, heads, kv_heads = QWEN[size]
    return architecture(
        Qwen2Config(
            vocab_size=151936,
            hidden_size=hidden,
            intermediate_size=intermediate,
            num_hidden_layers=layers,
            num_attention_heads=heads,
            num_key_value_heads=kv_heads,
            tie_word_embeddings=True,
        )
    )


def setting(cfg, ranks):
    rows, tokens = cfg.prompts_per_iteration * cfg.samples_per_group // ranks, cfg.tokens_per_micro_batch
    return Setting(
        ranks=ranks,
        tokens=tokens,
        trained_tokens=tokens,
        chunk=cfg.loss.chunk_size or rows_per_chunk(151936),
        checkpointing=cfg.model.gradient_checkpointing,
        reference="device" if cfg.beta else "none",
        reference_tokens=rows * cfg.max_new_tokens,
    )


def longest(cfg):
    return cfg.max_prompt_tokens + cfg.max_new_tokens


@pytest.mark.parametrize("name", PAPER)
def test_an_experiment_fits_80_gb_as_typed(name):
    """With vLLM in the process, on 8 GPUs, and every micro-batch has room for the longest row."""
    cfg = on(name)
    strategy = "fsdp2" if "Sharded" in str(cfg.trainer.strategy) else cfg.trainer.strategy
    plan = memory_plan(
        model(name.split("_")[-1]), strategy, setting(cfg, 8), sampler=vllm_sampler(79, utilization=SHARE)
    )
    assert plan.fits(79)
    assert longest(cfg) <= cfg.tokens_per_micro_batch


def cell(cfg, ranks, size, gib):
    """What fits a GPU, what it then holds, and how many of a rank's rows vLLM's cache has room for."""
    rows = cfg.prompts_per_iteration * cfg.samples_per_group // ranks
    sampler = vllm_sampler(gib, utilization=SHARE)
    found = first_fit(model(size), setting(cfg, ranks), longest=longest(cfg), gib=gib, sampler=sampler)
    if found is None:
        return "does not fit"
    choice, plan = found
    kept = vllm_rows(model(size), gib, utilization=SHARE, tokens=longest(cfg))
    how = [f"`{choice.strategy}`", f"{choice.tokens_per_micro_batch} tokens"]
    how += ["checkpointing"] * choice.gradient_checkpointing + ["`reference=cpu`"] * (choice.reference == "cpu")
    held, learning, total = (value / GIB for value in (plan.held, plan.learning, plan.total))
    return f"{', '.join(how)}: {held:.1f} + {learning:.1f}, at most {total:.1f} GiB; {min(kept, rows)} of {rows} rows"


def lines(size):
    """The rows of the table of one size. The similarity reward changes nothing here, so those files have no row."""
    for name in PAPER:
        if name.endswith(size) and "_sim_" not in name:
            for ranks in (8, 16):
                cells = (cell(on(name), ranks, size, gib) for gib in GPUS.values())
                yield f"| `{name}` | {ranks} | {' | '.join(cells)} |"


@pytest.mark.parametrize("size", QWEN)
def test_the_memory_page_is_what_the_code_computes(size):
    page = (ROOT / "docs" / "memory.md").read_text(encoding="utf-8")
    missing = [line for line in lines(size) if line not in page.splitlines()]
    assert not missing, "docs/memory.md should have the lines\n" + "\n".join(missing)


def test_the_memory_page_has_a_row_for_every_experiment():
    rows = [line for line in (ROOT / "docs" / "memory.md").read_text().splitlines() if line.startswith("| `")]
    assert len([row for row in rows if row.split("`")[1] in PAPER]) == 2 * len([n for n in PAPER if "_sim_" not in n])
