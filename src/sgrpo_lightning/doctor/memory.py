"""The memory of a device: planned from the sizes of model and batch, and measured."""

from __future__ import annotations

import os
from typing import Any

import torch
from lightning.pytorch.strategies import DeepSpeedStrategy

from sgrpo_lightning.distributed.architecture import Architecture, architecture
from sgrpo_lightning.distributed.memory import GIB, MemoryPlan, Setting, hf_sampler, memory_plan, vllm_sampler
from sgrpo_lightning.distributed.sharding import FullyShardedStrategy
from sgrpo_lightning.doctor.verdict import Finding, judge
from sgrpo_lightning.losses.logprobs import rows_per_chunk
from sgrpo_lightning.modules.plan import UpdatePlan


def check_memory(plan: MemoryPlan | None, device: torch.device, *, local_ranks: int, note: str = "") -> Finding:
    """The plan and the peak of the soak against what a rank can have.

    Args:
        plan: None where there is none for the model.
        local_ranks: processes that share the memory, where the device is a CPU.
        note: on what was measured.
    """
    there = torch.cuda.get_device_properties(device).total_memory if device.type == "cuda" else _ram() // local_ranks
    return judge_memory(plan, peak_bytes(device), there, note=note)


def judge_memory(plan: MemoryPlan | None, peak: int, there: int, *, note: str = "") -> Finding:
    """From B."""
    parts = sorted((plan.parts() if plan else {}).items(), key=lambda part: -part[1])
    largest = ", ".join(f"{name.replace('_', ' ')} {size / GIB:.2f}" for name, size in parts[:5] if size)
    of = f"of {there / GIB:.1f} GiB"
    planned = f"planned {plan.total / GIB:.2f} {of} ({largest}); " if plan else ""
    less = (
        "lower micro_batch_size or tokens_per_micro_batch, set model.gradient_checkpointing=true, reference=cpu or "
        "beta=0, lower sampler.max_rows or sampler.gpu_memory_utilization, or take strategy=fsdp2"
    )
    too_much = plan is not None and plan.total > there
    return judge(
        "memory",
        f"{planned}measured peak {peak / GIB:.2f} {of}{note}",
        failures=[
            (too_much, f"the longest batch does not fit: {less}"),
        ],
        warnings=[
            (
                not too_much and ((plan is not None and not plan.fits(there / GIB)) or peak > 0.9 * there),
                f"little room is left: {less}",
            ),
        ],
    )


def plan_of(module: Any, plan: UpdatePlan, *, prompt_tokens: int) -> MemoryPlan | None:
    """For the longest batch that the settings allow; None for a model whose sizes the plan does not know.

    Args:
        plan: of the run itself.
        prompt_tokens: of the longest prompt.
    """
    try:
        model = architecture(module.model.config.get_text_config())
    except (AttributeError, KeyError, ValueError):
        return None
    trainer = module.trainer
    longest = prompt_tokens + module.sampler.max_new_tokens
    tokens = plan.tokens_per_micro_batch or plan.micro_batch_size * longest
    trained = min(tokens, -(-tokens * module.sampler.max_new_tokens // longest))
    whole = [p for p in module.parameters() if p.requires_grad]
    adapters = hasattr(module.model, "peft_config")
    own_rows = plan.prompts_per_iteration * plan.samples_per_group // trainer.world_size
    setting = Setting(
        ranks=trainer.world_size,
        tokens=tokens,
        trained_tokens=trained,
        chunk=module.loss.chunk_size or rows_per_chunk(model.vocabulary),
        checkpointing=bool(getattr(module.model, "is_gradient_checkpointing", False)),
        reference=module.loss.reference if module.loss.beta and not adapters else "none",
        reference_tokens=own_rows * module.sampler.max_new_tokens,
        trained=sum(getattr(p, "ds_numel", p.numel()) for p in whole) if adapters else None,
        float32="32" in str(trainer.precision),
    )
    name = strategy_name(trainer.strategy)
    return memory_plan(model, name, setting, sampler=sampler_bytes(module, model, name, own_rows, longest))


def sampler_bytes(module: Any, model: Architecture, strategy: str, rows: int, tokens: int) -> int:
    """What sampling takes of the device in this process."""
    sampler, device = module.sampler, module.device
    if hasattr(sampler, "servers"):
        return 0
    if hasattr(sampler, "enable_sleep_mode") and device.type == "cuda":
        total = torch.cuda.get_device_properties(device).total_memory
        return vllm_sampler(total / GIB, utilization=sampler._arguments["gpu_memory_utilization"])
    most = getattr(sampler, "max_rows", None) or rows
    float32 = "32" in str(module.trainer.precision)
    return hf_sampler(model, strategy, rows=min(rows, most), tokens=tokens, float32=float32)


def strategy_name(strategy: Any) -> str:
    """That of conf/strategy."""
    if isinstance(strategy, FullyShardedStrategy):
        return "fsdp2"
    if isinstance(strategy, DeepSpeedStrategy):
        return f"deepspeed_{strategy.config['zero_optimization']['stage']}"  # type: ignore[index]
    return "ddp"


def peak_bytes(device: torch.device) -> int:
    """Of the device's memory, the most that was in use; of a CPU's that of this process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _ram() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
