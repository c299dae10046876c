"""DeepSpeed: optimizer state (ZeRO-1), gradients (ZeRO-2) and weights (ZeRO-3) in pieces over all devices."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

import torch
from lightning.pytorch.accelerators import CPUAccelerator
from lightning.pytorch.strategies import DDPStrategy, DeepSpeedStrategy
from torch import Tensor, nn


class ZeROStrategy(DeepSpeedStrategy):
    """Lightning's DeepSpeed strategy, with Lightning in charge of accumulation, and for CPUs too.

    Lightning divides the loss by the number of micro-batches and says which is the last of a step; DeepSpeed would
    divide once more, and count by a number that it was given at the start.

    Args:
        stage: 1, 2 or 3 of ZeRO.
        offload_optimizer: optimizer state, and the step, on the CPU.
        offload_parameters: weights too, in stage 3.
        zero: further settings of DeepSpeed's `zero_optimization`.
    """

    def __init__(
        self,
        stage: int,
        *,
        offload_optimizer: bool = False,
        offload_parameters: bool = False,
        zero: dict[str, Any] | None = None,
        **knobs: Any,
    ) -> None:
        if find_spec("deepspeed") is None:
            raise ImportError(f"strategy=deepspeed_{stage} needs DeepSpeed: pip install 'sgrpo-lightning[deepspeed]'")
        if stage not in (1, 2, 3):
            raise ValueError(f"stage must be 1, 2 or 3, got {stage}")
        if offload_parameters and stage < 3:
            raise ValueError(f"offload_parameters needs stage 3, got {stage}: only there are weights in pieces")
        if not torch.cuda.is_available():
            os.environ.setdefault("DS_ACCELERATOR", "cpu")  # read when deepspeed is imported
        super().__init__(
            stage=stage,
            offload_optimizer=offload_optimizer,
            offload_parameters=offload_parameters,
            logging_batch_size_per_gpu=1,
            **knobs,
        )
        assert isinstance(self.config, dict)
        self.config["zero_optimization"] |= zero or {}
        self.config["zero_force_ds_cpu_optimizer"] = False  # the optimizer is the module's own

    # ---- on a CPU ----

    def setup_environment(self) -> None:
        if not isinstance(self.accelerator, CPUAccelerator):
            super().setup_environment()
            return
        import deepspeed

        if deepspeed.accelerator.get_accelerator().device_name() != "cpu":
            raise ValueError("trainer.accelerator=cpu beside a GPU needs DS_ACCELERATOR=cpu in the environment")
        # A minute of C++ for an operation that it does without. Read from the attribute, the table is first made.
        vars(deepspeed.ops).setdefault("__compatible_ops__", {})["deepspeed_shm_comm"] = False
        self.parallel_devices = [torch.device("cpu", i) for i in range(self.num_processes)]
        DDPStrategy.setup_environment(self)

    # ---- accumulation ----

    def _format_batch_size_and_grad_accum_config(self) -> None:
        super()._format_batch_size_and_grad_accum_config()
        assert isinstance(self.config, dict)
        self.config["gradient_accumulation_steps"] = 1  # by which DeepSpeed divides

    def training_step(self, *args: Any, **kwargs: Any) -> Any:
        assert self.lightning_module is not None
        last = not self.lightning_module.trainer.fit_loop._should_accumulate()
        self.deepspeed_engine.set_gradient_accumulation_boundary(last)
        return super().training_step(*args, **kwargs)

    # ---- precision ----

    def _format_config(self) -> None:
        super()._format_config()
        assert isinstance(self.config, dict)
        if "bf16" in self.config:  # weights and activations are; gradients of many micro-batches are added up
            self.config["data_types"] = {"grad_accum_dtype": "fp32"}
            self.config["communication_data_type"] = "fp32"


# ---- weights in pieces (ZeRO-3) ----


def is_piece(tensor: Tensor) -> bool:
    return hasattr(tensor, "ds_id")


def in_pieces(model: nn.Module) -> bool:
    return any(is_piece(parameter) for parameter in model.parameters())


def gathered_copy(parameter: Any) -> Tensor:
    """A whole copy; all ranks together. One parameter at a time, for it is gathered in memory that is used again."""
    if parameter.ds_status.name == "AVAILABLE":  # small ones are never parted, and in `gathered` none is
        return parameter.detach().clone()
    import deepspeed

    with deepspeed.zero.GatheredParameters([parameter]):
        return parameter.detach().clone()


_OPEN: set[int] = set()


@contextmanager
def gathered(engine: Any) -> Iterator[None]:
    """Every weight whole, without the hooks that would part it again after its layer, and wait for other ranks."""
    if id(engine) in _OPEN:
        yield
        return
    import deepspeed

    parted = [p for p in engine.module.parameters() if p.ds_status.name == "NOT_AVAILABLE"]
    try:
        _OPEN.add(id(engine))
        with deepspeed.zero.GatheredParameters(parted), _without_hooks(engine):
            yield
    finally:
        _OPEN.discard(id(engine))


@contextmanager
def _without_hooks(engine: Any) -> Iterator[None]:
    """Hidden rather than removed: the order of layers from which DeepSpeed prefetches stays valid."""
    offload = getattr(engine.optimizer, "parameter_offload", engine.optimizer)
    own = {handle.id for handle in (*offload.forward_hooks, *offload.backward_hooks, offload.fwd_pre_hook)}
    tables = [t for m in engine.module.modules() for t in (m._forward_pre_hooks, m._forward_hooks)]
    kept = [dict(table) for table in tables]
    try:
        for table in tables:
            for key in own & table.keys():
                del table[key]
        yield
    finally:
        for table, before in zip(tables, kept, strict=True):
            added = {key: hook for key, hook in table.items() if key not in before}
            table.clear()
            table.update(before | added)
