"""Weights on their way to vLLM servers: broadcast over NCCL, from the GPU of the trainer's rank 0 to theirs."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import accumulate
from typing import Protocol

import torch
from torch import Tensor

from sgrpo_lightning.samplers.http import GivenUp, Refused, Server, Unavailable
from sgrpo_lightning.samplers.transfer import PART_BYTES, Weights, ask_all, cast, go_on, label_of, on_all, parts

POLL_SECONDS = 0.002


class Communicator(Protocol):
    """The trainer's place, rank 0, in a group of which the workers of the servers are the rest."""

    def broadcast(self, tensor: Tensor) -> Tensor:
        """Begin to send a tensor; what it returns has to live until `done`."""
        ...

    def done(self) -> bool:
        """Whether everything has been sent."""
        ...

    def destroy(self) -> None: ...


class VLLMCommunicator:
    """vLLM's own NCCL communicator, for the group has to be made as its workers make it.

    Args:
        address, port: where the group meets, at rank 0.
        world_size: of the group, the trainer included.
    """

    def __init__(self, address: str, port: int, world_size: int) -> None:
        from vllm.distributed.weight_transfer.nccl_common import trainer_init

        place = {"master_address": address, "master_port": port, "world_size": world_size}
        self._group, self._device = trainer_init(place), torch.device("cuda", torch.cuda.current_device())

    def broadcast(self, tensor: Tensor) -> Tensor:
        sent = tensor.to(self._device).contiguous()
        self._group.broadcast(sent, src=0, stream=torch.cuda.current_stream())
        return sent

    def done(self) -> bool:
        return torch.cuda.current_stream().query()

    def destroy(self) -> None:
        self._group.destroy()


class NcclTransfer:
    """Weights through vLLM's weight transfer engine.

    The servers are told the names and shapes of a part of the weights, then each tensor of it is broadcast. The group
    is made at the first transfer, and again where a server has come, gone or been restarted. Nothing is kept: a
    server that loses its weights is left out until the next transfer.

    Args:
        dtype: of what is sent; None keeps that of the weights.
        connect: (address, port, world_size) -> the trainer's place in the group.
        part_bytes: a part takes no more weights once it has this many.
    """

    def __init__(
        self,
        *,
        dtype: torch.dtype | None,
        connect: Callable[[str, int, int], Communicator] = VLLMCommunicator,
        part_bytes: int = PART_BYTES,
    ) -> None:
        self.dtype, self.connect, self.part_bytes = dtype, connect, part_bytes
        self._group: Communicator | None = None
        self._members: list[Server] = []
        self._label: str | None = None

    def send(self, weights: Weights, label: str, servers: Sequence[Server]) -> list[Unavailable]:
        there, away = _reachable(servers)
        if not there:
            return away
        if there != self._members or {label_of(server) for server in there} != {self._label}:
            self._join(there)
        on_all(there, lambda server: server.post("/pause?mode=wait"))
        on_all(there, lambda server: server.post("/start_weight_update"))
        for part in parts(weights, self.part_bytes, lambda tensor: cast(tensor, self.dtype)):
            self._broadcast(part)
        on_all(there, lambda server: server.post("/finish_weight_update"))
        on_all(there, lambda server: go_on(server, label))
        self._label = label
        return away

    def repair(self, server: Server, label: str) -> None:
        if label_of(server) != label:
            raise GivenUp(
                f"{server.url} does not hold the weights of this run: it was restarted, or somebody else gave it others"
            )

    def close(self) -> None:
        if self._group is not None:
            self._group.destroy()
        for server in self._members:
            _leave(server)
        self._group, self._members = None, []

    def _join(self, servers: list[Server]) -> None:
        """Make the group: the trainer is rank 0, the workers of one server after the other follow."""
        self.close()
        sizes = on_all(servers, lambda server: server.get("/get_world_size")["world_size"])
        offsets = dict(zip((server.url for server in servers), accumulate(sizes, initial=1), strict=False))
        address, port, world_size = _own_address(servers[0]), _free_port(), 1 + sum(sizes)
        place = {"master_address": address, "master_port": port, "world_size": world_size}

        def ask(server: Server) -> None:
            _leave(server)  # the group of a trainer that was killed
            server.post("/init_weight_transfer_engine", {"init_info": {**place, "rank_offset": offsets[server.url]}})

        asked = ask_all(servers, ask)  # they answer once the trainer has come as well
        self._group = self.connect(address, port, world_size)
        for future in asked:
            future.result()
        self._members = servers

    def _broadcast(self, part: Sequence[tuple[str, Tensor]]) -> None:
        assert self._group is not None
        update = {
            "names": [name for name, _ in part],
            "dtype_names": [str(tensor.dtype).removeprefix("torch.") for _, tensor in part],
            "shapes": [list(tensor.shape) for _, tensor in part],
        }
        asked = ask_all(self._members, lambda server: server.post("/update_weights", {"update_info": update}))
        alive = [self._group.broadcast(tensor) for _, tensor in part]
        while not (self._group.done() and all(future.done() for future in asked)):
            # NCCL would wait for ever for a server that has failed.
            for future in asked:
                if future.done():
                    future.result()
            time.sleep(POLL_SECONDS)
        for future in asked:
            future.result()
        del alive


def _reachable(servers: Sequence[Server]) -> tuple[list[Server], list[Unavailable]]:
    there, away = list[Server](), list[Unavailable]()
    for server in servers:
        try:
            server.get("/health", timeout=10)
            there.append(server)
        except Unavailable as error:
            away.append(error)
    return there, away


def _leave(server: Server) -> None:
    """A server that is gone, or in no group, has nothing to leave."""
    with suppress(Unavailable, Refused):
        server.post("/shutdown_weight_transfer_engine", timeout=60)


def _own_address(server: Server) -> str:
    """Of this machine, on the network over which it reaches the server."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((server.host, 9))  # sends nothing
        return probe.getsockname()[0]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("", 0))
        return probe.getsockname()[1]
