"""FSDP2: weights, gradients and optimizer state in shards over all devices."""

from __future__ import annotations

from typing import Any

from lightning.pytorch.strategies import ModelParallelStrategy


class FullyShardedStrategy(ModelParallelStrategy):
    """Lightning's strategy for `fully_shard`, over every device there is; its "auto" means the number of nodes.

    Checkpoints are one file with all weights, as those of the other strategies are.
    """

    def __init__(self, **knobs: Any) -> None:
        super().__init__(tensor_parallel_size=1, save_distributed_checkpoint=False, **knobs)

    def setup_environment(self) -> None:
        self._data_parallel_size = self.num_nodes * self.num_processes
        super().setup_environment()
