"""Weights on their way to vLLM servers: what every way has in common, and the way through files."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors.torch import save_file
from torch import Tensor

from sgrpo_lightning.samplers import SamplerError, Weights
from sgrpo_lightning.samplers.http import Refused, Server, Unavailable
from sgrpo_lightning.samplers.sharing import FIRST_PAUSE, LONGEST_PAUSE

PREFIX = "weights-"
PART_BYTES = 2**31
"""Weights are sent in parts, of which one is in memory: a part takes no more once it has this much."""
RESET_TRIES = 20


class Transfer(Protocol):
    """A way to give servers the weights of the trainer."""

    def send(self, weights: Weights, label: str, servers: Sequence[Server]) -> list[Unavailable]:
        """Give all servers the weights under this label; on rank 0.

        Returns:
            What was wrong with servers that could not be reached; the others have the weights.
        """
        ...

    def repair(self, server: Server, label: str) -> None:
        """Give one server the weights that were sent last; on any rank. `GivenUp` where that cannot be."""
        ...

    def close(self) -> None:
        """Remove what was left behind; on rank 0."""
        ...


class FileTransfer:
    """Weights as safetensors files in a folder; the servers read them from there.

    The folder of a version appears complete or not at all, and goes when the next one has been loaded. The last one
    stays: a server that was restarted gets its weights from it, from whichever rank comes upon it first.

    Args:
        folder: of this run alone, on a file system that rank 0 and all servers see under the same path.
        config: of the model, which is written beside the weights.
        dtype: of the files; None keeps that of the weights.
        patience: seconds for which a server may be away.
        part_bytes: a file takes no more weights once it has this many.
    """

    def __init__(
        self,
        folder: str | Path,
        config: Any,
        *,
        dtype: torch.dtype | None,
        patience: float,
        part_bytes: int = PART_BYTES,
    ) -> None:
        self.folder, self.config = Path(folder).expanduser().absolute(), config
        self.dtype, self.patience, self.part_bytes = dtype, patience, part_bytes
        self._mending = threading.Lock()

    def send(self, weights: Weights, label: str, servers: Sequence[Server]) -> list[Unavailable]:
        self._write(weights, label)
        found = on_all(servers, lambda server: self._load_patiently(server, label))
        for old in self.folder.glob(f"{PREFIX}*"):
            if old != self._path(label):
                shutil.rmtree(old)
        return [error for error in found if error is not None]

    def repair(self, server: Server, label: str) -> None:
        with self._mending:
            if label_of(server) != label:
                self._load(server, label)

    def close(self) -> None:
        for old in self.folder.glob(f"{PREFIX}*"):
            shutil.rmtree(old, ignore_errors=True)

    def _path(self, label: str) -> Path:
        return self.folder / f"{PREFIX}{label}"

    def _write(self, weights: Weights, label: str) -> None:
        partial = self.folder / f"{PREFIX}{label}.partial"
        partial.mkdir(parents=True)
        for number, part in enumerate(parts(weights, self.part_bytes, self._copy), start=1):
            save_file(dict(part), partial / f"model-{number:05d}.safetensors", metadata={"format": "pt"})
        self.config.save_pretrained(partial)
        partial.rename(self._path(label))

    def _copy(self, tensor: Tensor) -> Tensor:
        """On the CPU; of its own, for tied weights share their memory, which safetensors refuses."""
        return cast(tensor, self.dtype).detach().to("cpu", copy=True).contiguous()

    def _load_patiently(self, server: Server, label: str) -> Unavailable | None:
        """None, or why the server could not be reached for so long."""
        deadline, pause = time.monotonic() + self.patience, FIRST_PAUSE
        while True:
            try:
                self._load(server, label)
            except Unavailable as error:
                if time.monotonic() > deadline:
                    return error
            else:
                return None
            time.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)

    def _load(self, server: Server, label: str) -> None:
        server.post("/pause?mode=wait")
        self._reload(server, self._path(label))
        go_on(server, label)

    def _reload(self, server: Server, path: Path) -> None:
        """A server that is alive and yet answers 5xx cannot load what it was shown, now or later."""
        try:
            server.post("/collective_rpc", {"method": "reload_weights", "kwargs": {"weights_path": str(path)}})
        except Unavailable as error:
            if error.status is None or not is_alive(server):
                raise
            raise SamplerError(
                f"{error}. It must serve the model that is trained, from a folder with weights, and see "
                f"sampler.weights_dir = {self.folder}; its own log says more"
            ) from error


def go_on(server: Server, label: str) -> None:
    """Let a paused server serve its new weights: without what it remembers of the old ones, and under their label.

    Edge cases: after an error it is still paused, and has its old label, which nobody accepts any more.
    """
    for _ in range(RESET_TRIES):
        if server.post("/reset_prefix_cache")["success"]:
            break
        server.post("/pause?mode=wait")  # another rank, which repaired the same server, has let it go on
    else:
        raise SamplerError(f"{server.url} does not clear its prefix cache, which holds states of its old weights")
    server.post("/update_weight_version", {"new_version": label})
    server.post("/resume")


def label_of(server: Server) -> str:
    """Of the weights that it serves; "default" where it has those of its start."""
    return server.get("/weight_info")["weight_version"]


def is_alive(server: Server) -> bool:
    try:
        server.get("/health", timeout=10)
    except (Unavailable, Refused):
        return False
    return True


def ask_all(servers: Sequence[Server], action: Callable[[Server], Any]) -> list[Future[Any]]:
    """(server) -> result, begun on all of them at once. Nobody waits for a thread that never ends."""

    def run(server: Server, future: Future[Any]) -> None:
        try:
            future.set_result(action(server))
        except Exception as error:
            future.set_exception(error)

    futures: list[Future[Any]] = [Future() for _ in servers]
    for server, future in zip(servers, futures, strict=True):
        threading.Thread(target=run, args=(server, future), daemon=True).start()
    return futures


def on_all(servers: Sequence[Server], action: Callable[[Server], Any]) -> list[Any]:
    """(server) -> result, on all of them at once, in their order."""
    return [future.result() for future in ask_all(servers, action)]


def cast(tensor: Tensor, dtype: torch.dtype | None) -> Tensor:
    """To a floating dtype; whole numbers, and everything where it is None, stay as they are."""
    return tensor.to(dtype) if dtype is not None and tensor.is_floating_point() else tensor


def parts(
    weights: Weights, size: int, convert: Callable[[Tensor], Tensor] = lambda tensor: tensor
) -> Iterator[list[tuple[str, Tensor]]]:
    """Names and converted tensors, gathered until there are `size` bytes of them."""
    part, held = list[tuple[str, Tensor]](), 0
    for name, tensor in weights:
        part.append((name, convert(tensor)))
        held += part[-1][1].nbytes
        if held >= size:
            yield part
            part, held = [], 0
    if part:
        yield part
