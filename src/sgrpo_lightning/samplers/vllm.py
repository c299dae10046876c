"""Rollouts from vLLM in the training process: an engine on each rank, or one over a few ranks."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from sgrpo_lightning.axes import Samples
from sgrpo_lightning.samplers import Sampler, SamplerError, Weights
from sgrpo_lightning.samplers.completions import to_samples
from sgrpo_lightning.samplers.vllm_engine import Engine
from sgrpo_lightning.samplers.weights import fitting, refuse, weights_of


class VLLMSampler(Sampler):
    """Samples with vLLM beside the policy, on the same devices, at temperature T over the whole vocabulary.

    Each rank hands its weights over in memory. Between rollouts on a GPU the engine gives back the memory of its
    weights and of its cache.

    Args:
        max_new_tokens: limit on the tokens of a completion.
        temperature: > 0; log-probabilities are those of softmax(logits / temperature).
        tensor_parallel_size: ranks that share one engine; they have to be neighbours, and divide the ranks.
        gpu_memory_utilization: share of a GPU's memory for the weights and the cache of the engine.
        max_model_len: limit on the tokens of prompt and completion; None: of the longest prompt and `max_new_tokens`.
        max_num_seqs: rows decoded together; None leaves it to vLLM.
        dtype: of the engine; "auto" is that in which the trainer multiplies.
        enforce_eager: neither compile nor record CUDA graphs: starts sooner, decodes more slowly. On the CPU always.
        enable_sleep_mode: sleep between rollouts, on a GPU.
        engine: further arguments of `vllm.LLM`.
    """

    own_weights = True

    def __init__(
        self,
        *,
        max_new_tokens: int,
        temperature: float = 1.0,
        tensor_parallel_size: int = 1,
        gpu_memory_utilization: float = 0.4,
        max_model_len: int | None = None,
        max_num_seqs: int | None = None,
        dtype: str = "auto",
        enforce_eager: bool = False,
        enable_sleep_mode: bool = True,
        engine: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(max_new_tokens=max_new_tokens, temperature=temperature)
        if tensor_parallel_size < 1:
            raise ValueError(f"sampler.tensor_parallel_size must be >= 1, got {tensor_parallel_size}")
        if not 0 < gpu_memory_utilization <= 1:
            raise ValueError(f"sampler.gpu_memory_utilization must lie in (0, 1], got {gpu_memory_utilization}")
        self.tensor_parallel_size, self.max_model_len, self.dtype = tensor_parallel_size, max_model_len, dtype
        self.enable_sleep_mode = enable_sleep_mode
        self._arguments: dict[str, Any] = {
            "gpu_memory_utilization": gpu_memory_utilization,
            **({"enforce_eager": True} if enforce_eager else {}),
            **({} if max_num_seqs is None else {"max_num_seqs": max_num_seqs}),
            **(engine or {}),
        }
        self.engine: Engine | None = None
        self._expected: dict[str, torch.Size] = {}
        self._vocabulary, self._limit = 0, 0
        self._asleep = set[str]()

    def start(self, model: Any, *, max_prompt_tokens: int | None = None) -> None:
        """Build the engine, on every rank at once, after the strategy has made its process group.

        Args:
            model: as in `Sampler`; adapters are merged into what `sync` is given, so the engine is of its base.
            max_prompt_tokens: the engine's cache is cut to it; None: to the limit of the model.
        """
        base = model.get_base_model() if hasattr(model, "peft_config") else model
        text = base.config.get_text_config()
        self._expected, self._vocabulary = weights_of(base), text.vocab_size
        self._limit = self._longest(getattr(text, "max_position_embeddings", None), max_prompt_tokens)
        self._check_ranks()
        self.close()
        on_gpu = base.device.type == "cuda"
        self.engine = Engine(
            base.config,
            architecture=type(base).__name__.removeprefix("FSDP"),  # as FSDP2 renames the class that it shards
            device=base.device,
            tensor_parallel_size=self.tensor_parallel_size,
            arguments={
                "max_model_len": self._limit,
                "dtype": _dtype_name(base) if self.dtype == "auto" else self.dtype,
                "enable_sleep_mode": self.enable_sleep_mode and on_gpu,
                **self._arguments,
            },
        )

    def sync(self, weights: Weights, *, version: int) -> None:
        """Replace the engine's weights.

        Args:
            weights: all of them, on every rank; they are read to the end, whatever happens, for other ranks may wait.
            version: optimizer steps behind them.
        """
        engine, problems = self._started(), list[str]()
        self.version = None  # until all of them are there
        stream = fitting(weights, self._expected, problems)
        try:
            # Copies: vLLM keeps each until the weights with which it is fused are there too.
            engine.load((name, tensor.detach().clone()) for name, tensor in stream)
        finally:
            for _ in stream:
                pass
        refuse(problems)
        self._wake_cache(engine)
        self.version = version

    @torch.no_grad()
    def generate(
        self,
        model: Any,
        prompt_ids: Tensor,
        prompt_mask: Tensor,
        *,
        samples_per_group: int,
        eos_token_ids: Tensor,
        pad_token_id: int,
        generator: torch.Generator,
    ) -> Samples:
        """M completions of each left-padded prompt, by the weights of the last `sync`.

        Ranks that share an engine have to ask together; each may have its own number of prompts.
        """
        engine = self._started()
        if self.version is None:
            raise SamplerError("vLLM has no weights: sync comes before generate, and again after sleep")
        prompts = [ids[mask].tolist() for ids, mask in zip(prompt_ids, prompt_mask, strict=True)]
        self._check(prompts)
        ends = eos_token_ids.tolist()
        seed = int(torch.randint(2**32, (), generator=generator, device=generator.device))
        completions = self._share(engine, prompts, seed, samples_per_group, ends)
        return to_samples(
            completions, prompt_ids, prompt_mask, ends=ends, pad_token_id=pad_token_id, version=self.version
        )

    def sleep(self) -> None:
        """On a GPU give back the memory of the engine's weights and cache; the weights have to be synchronised anew."""
        engine = self._started()
        if self.enable_sleep_mode and engine.device.type == "cuda" and not self._asleep:
            engine.sleep()
            self._asleep, self.version = {"weights", "kv_cache"}, None

    def wake(self) -> None:
        """Make room for weights. The cache follows once `sync` has filled it: then nothing that it needs is alive."""
        if "weights" in self._asleep:
            self._started().wake("weights")
            self._asleep.remove("weights")

    def close(self) -> None:
        """End the engine; the trainer's process group stays."""
        if self.engine is not None:
            self.engine.close()
        self.engine, self.version = None, None
        self._asleep.clear()

    # ---- its parts ----

    def _started(self) -> Engine:
        if self.engine is None:
            raise SamplerError("vLLM is not running: start comes first, on every rank")
        return self.engine

    def _wake_cache(self, engine: Engine) -> None:
        if "kv_cache" in self._asleep:
            engine.wake("kv_cache")
            self._asleep.remove("kv_cache")

    def _longest(self, of_model: int | None, max_prompt_tokens: int | None) -> int:
        """The tokens of a prompt and its completion that the engine has to hold."""
        if self.max_model_len is not None:
            if of_model is not None and self.max_model_len > of_model:
                raise SamplerError(f"sampler.max_model_len={self.max_model_len}, but the model has room for {of_model}")
            return self.max_model_len
        limits = [of_model, None if max_prompt_tokens is None else max_prompt_tokens + self.max_new_tokens]
        known = [limit for limit in limits if limit is not None]
        if not known:
            raise SamplerError("sampler.max_model_len=null: give a number, for neither model nor prompts have a limit")
        return min(known)

    def _check_ranks(self) -> None:
        ranks = torch.distributed.get_world_size() if torch.distributed.is_initialized() else 1
        if ranks % self.tensor_parallel_size:
            raise SamplerError(
                f"sampler.tensor_parallel_size={self.tensor_parallel_size} must divide the {ranks} rank(s) of the run"
            )

    def _check(self, prompts: list[list[int]]) -> None:
        """What vLLM would refuse halfway, after which it hangs at the next call."""
        for number, ids in enumerate(prompts):
            if not 0 < len(ids) < self._limit:
                raise ValueError(
                    f"prompt {number} has {len(ids)} tokens; it must have 1 to {self._limit - 1}, "
                    "as sampler.max_model_len leaves room for"
                )
            if not 0 <= min(ids) <= max(ids) < self._vocabulary:
                raise ValueError(
                    f"prompt {number} has token {min(ids) if min(ids) < 0 else max(ids)}, which the model's "
                    f"vocabulary of {self._vocabulary} lacks; the tokenizer must be the model's"
                )

    def _share(self, engine: Engine, prompts: list[list[int]], seed: int, samples: int, ends: list[int]) -> list[Any]:
        """The completions of this rank's prompts, which all ranks of an engine have to ask for together."""
        asked, place = [(prompts, seed)], 0
        if self.tensor_parallel_size > 1:
            group, place = engine.ranks()
            asked *= self.tensor_parallel_size
            torch.distributed.all_gather_object(asked, asked[place], group=group)
        completions = engine.generate(
            [ids for theirs, _ in asked for ids in theirs],
            samples=samples,
            limit=self.max_new_tokens,
            temperature=self.temperature,
            ends=ends,
            seed=asked[0][1],
        )
        before = sum(len(theirs) for theirs, _ in asked[:place]) * samples
        return completions[before : before + len(prompts) * samples]


def _dtype_name(base: Any) -> str:
    """That of the trainer's products: of autocast, where it is on, else of the weights; vLLM has no float64."""
    kind = base.device.type
    dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else base.dtype
    return str(torch.float32 if dtype == torch.float64 else dtype).removeprefix("torch.")
