"""vLLM's engine in this process: how it is built, given weights and asked. The only file that imports vLLM."""

from __future__ import annotations

import copy
import importlib.util
import os
import random
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import torch

from sgrpo_lightning.samplers import SamplerError, Weights
from sgrpo_lightning.samplers.completions import Completion

CPU_ARGUMENTS: dict[str, Any] = {"kv_cache_memory_bytes": 2**30, "enforce_eager": True}
"""Of an engine on the CPU: a cache of its own size instead of a share of the machine's memory, and no compiler."""


class Engine:
    """An engine whose model has the architecture of a transformers configuration, and weights without meaning.

    What building it and asking it would change in this process is put back: the states of all random numbers, the
    number of threads, the default dtype. Every rank of a process group builds one, all together.

    Args:
        config: of transformers; the weights never touch the disk, but vLLM reads the configuration from a folder.
        architecture: the class of the model, by name.
        device: on which the engine will be.
        tensor_parallel_size: so many neighbouring ranks share a model.
        arguments: of `vllm.LLM`, beside those that make it deterministic and quiet.
    """

    def __init__(
        self,
        config: Any,
        *,
        architecture: str,
        device: torch.device,
        tensor_parallel_size: int = 1,
        arguments: dict[str, Any] | None = None,
    ) -> None:
        _require_vllm()
        os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # weights are handed over as tensors
        os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")  # the terminal is the run's
        from vllm import LLM

        self.device, self._grouped = device, _is_grouped()
        on_cpu = device.type == "cpu"
        if on_cpu:
            _check_head_size(config)
        own = {
            "skip_tokenizer_init": True,
            "load_format": "dummy",
            "logprobs_mode": "processed_logprobs",
            "generation_config": "vllm",  # what a generation_config.json asks for is not what the trainer scores
            "disable_log_stats": True,
            "seed": 0,
            **({"distributed_executor_backend": "external_launcher"} if self._grouped else {}),
            "tensor_parallel_size": tensor_parallel_size,
            **(CPU_ARGUMENTS if on_cpu else {}),
        }
        set_num_threads = torch.set_num_threads
        with (
            tempfile.TemporaryDirectory() as folder,
            self._undisturbed(),
            _launcher_variables(device),
            warnings.catch_warnings(),
        ):
            _write_config(config, architecture, folder)
            warnings.simplefilter("ignore")  # of what vLLM's own imports find deprecated
            self.llm = LLM(model=folder, **own | (arguments or {}))
        torch.set_num_threads = set_num_threads  # vLLM puts one in its place that does nothing

    def load(self, weights: Weights) -> None:
        """Take over weights under the names of a checkpoint, and forget what was computed with the old ones."""
        with self._undisturbed():
            self.llm.collective_rpc("reload_weights", kwargs={"weights_iterator": iter(weights)})
            self.forget()

    def forget(self) -> None:
        """Empty the prefix cache: its keys and values are those of the weights that computed them."""
        if not self.llm.reset_prefix_cache():
            raise SamplerError("vLLM did not empty its prefix cache: requests of an earlier call are still running")

    def generate(
        self, prompts: Sequence[list[int]], *, samples: int, limit: int, temperature: float, ends: list[int], seed: int
    ) -> list[Completion]:
        """`samples` completions of each prompt, one prompt's after the other's.

        The seed is that of the whole call. Seeds of single requests cost a loop over all rows at every token.

        Args:
            limit: of the tokens of a completion.
            ends: tokens that end a completion and belong to it.
        """
        from vllm import SamplingParams

        ask = SamplingParams(
            n=samples,
            max_tokens=limit,
            temperature=temperature,
            stop_token_ids=ends,
            ignore_eos=True,  # the end tokens are those that we name
            logprobs=0,  # of the sampled token alone
            flat_logprobs=True,
            detokenize=False,
        )
        with self._undisturbed():
            torch.manual_seed(seed)
            outputs = self.llm.generate([{"prompt_token_ids": ids} for ids in prompts], ask, use_tqdm=False)
        return [_read(completion) for output in outputs for completion in output.outputs]

    def sleep(self) -> None:
        """Give back the memory of the weights and of the cache. Only on a GPU, with `enable_sleep_mode`."""
        self.llm.sleep(level=2)

    def wake(self, what: str) -> None:
        """Take back the memory of the "weights", which then have no meaning, or of the "kv_cache"."""
        self.llm.wake_up(tags=[what])

    def ranks(self) -> tuple[Any, int]:
        """The process group of the ranks that share this model, on the CPU, and the place of this one among them."""
        from vllm.distributed.parallel_state import get_tp_group

        return get_tp_group().cpu_group, get_tp_group().rank_in_group

    def close(self) -> None:
        """End the engine. A process group that was there before it stays."""
        with _default_group_stays() if self._grouped else ExitStack():
            self.llm.llm_engine.engine_core.shutdown()
        del self.llm

    @contextmanager
    def _undisturbed(self) -> Iterator[None]:
        """vLLM neither sees the trainer's autocast and default dtype nor moves its random numbers."""
        dtype, states = torch.get_default_dtype(), (random.getstate(), np.random.get_state())  # noqa: NPY002
        with ExitStack() as stack:
            stack.enter_context(torch.random.fork_rng([self.device] if self.device.type == "cuda" else []))
            stack.enter_context(torch.autocast(self.device.type, enabled=False))
            if self.device.type == "cpu":
                # The first request would compile C++ for a minute to count the ranks of tokens.
                stack.enter_context(torch.compiler.set_stance("force_eager"))
            torch.set_default_dtype(torch.float32)
            try:
                yield
            finally:
                torch.set_default_dtype(dtype)
                random.setstate(states[0])
                np.random.set_state(states[1])  # noqa: NPY002


def _require_vllm() -> None:
    spec = importlib.util.find_spec("vllm")
    if spec is None or spec.origin is None:  # a folder of that name is no package
        raise SamplerError("sampler=vllm: vLLM is not installed; pip install 'sgrpo-lightning[vllm]'")


def _is_grouped() -> bool:
    """Whether the ranks know one another; an engine built before that would make a group of its own rank alone."""
    grouped = torch.distributed.is_available() and torch.distributed.is_initialized()
    size, expected = torch.distributed.get_world_size() if grouped else 1, int(os.environ.get("WORLD_SIZE", 1))
    if size != expected:
        raise SamplerError(
            f"WORLD_SIZE={expected}, but {size} rank(s) know one another: start the sampler in on_fit_start, "
            "after the strategy has made its process group"
        )
    return grouped


def _check_head_size(config: Any) -> None:
    """On the CPU a size that is not served shows only at the first request, as a failure inside a kernel."""
    from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend

    text, served = config.get_text_config(), CPUAttentionBackend.get_supported_head_sizes()
    size = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    if size not in served:
        raise SamplerError(f"sampler=vllm: heads of {size} are not served on the CPU, only {served}; use sampler=hf")


def _write_config(config: Any, architecture: str, folder: str) -> None:
    named = copy.deepcopy(config)
    named.architectures = [architecture]
    named.save_pretrained(folder)


@contextmanager
def _launcher_variables(device: torch.device) -> Iterator[None]:
    """The variables of torchrun, from which vLLM reads the rank, whoever launched this process."""
    if not _is_grouped():
        yield
        return
    rank, size = torch.distributed.get_rank(), torch.distributed.get_world_size()
    ours = {"RANK": str(rank), "WORLD_SIZE": str(size), "LOCAL_RANK": str(device.index or 0)}
    before = {name: os.environ.get(name) for name in ours}
    os.environ.update(ours)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})


@contextmanager
def _default_group_stays() -> Iterator[None]:
    """vLLM ends the default process group with its own groups; the trainer has still to leave by it."""
    destroy: Callable[..., None] = torch.distributed.destroy_process_group

    def destroy_groups_but_default(group: Any = None) -> None:
        if group is not None and group is not torch.distributed.group.WORLD:
            destroy(group)

    torch.distributed.destroy_process_group = destroy_groups_but_default
    try:
        yield
    finally:
        torch.distributed.destroy_process_group = destroy


def _read(completion: Any) -> Completion:
    if completion.finish_reason not in ("stop", "length"):
        raise SamplerError(
            f"vLLM ended a completion with {completion.finish_reason!r} after {len(completion.token_ids)} tokens"
        )
    return Completion(list(completion.token_ids), list(completion.logprobs.logprobs), ())
