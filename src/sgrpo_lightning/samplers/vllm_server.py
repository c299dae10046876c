"""Rollouts from running vLLM servers: GPUs of their own, on this machine or on others."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from itertools import chain
from typing import Any, TypeVar

import torch
from torch import Tensor, distributed

from sgrpo_lightning.axes import Samples
from sgrpo_lightning.samplers import Sampler, SamplerError, Weights
from sgrpo_lightning.samplers.completions import PATH, Completion, Request, read_answer, requests_for, to_samples
from sgrpo_lightning.samplers.http import Server, Unavailable
from sgrpo_lightning.samplers.nccl import NcclTransfer
from sgrpo_lightning.samplers.readiness import Facts, examine, wait_for
from sgrpo_lightning.samplers.sharing import Crew
from sgrpo_lightning.samplers.transfer import FileTransfer, Transfer
from sgrpo_lightning.samplers.weights import fitting, refuse, weights_of

log = logging.getLogger(__name__)
T = TypeVar("T")

TRANSFERS = ("auto", "files", "nccl")
DTYPES = {None: None, "bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}
COMPLETIONS_PER_REQUEST = 64
REPAIRS = 3
WHAT_TO_DO = "Restart the servers with scripts/vllm_server.sh MODEL, then go on with resume=<the run's folder>"


@dataclass(frozen=True, slots=True)
class Patience:
    """Seconds.

    Args:
        start: for the servers to come up.
        server: for one that has gone to come back; the others take over its requests meanwhile.
        request: for an answer, the wait for other requests included.
    """

    start: float = 1800.0
    server: float = 300.0
    request: float = 1800.0


class VLLMServerSampler(Sampler):
    """Samples with `vllm serve`, one or several of them, started by scripts/vllm_server.sh for this run alone.

    Every rank sends its own prompts. A server takes the next request when it has answered one, so a fast one does
    more; every rank has as many requests at a server as the others, so none waits for another's. A server that fails
    is asked again later, and its requests go to the others; when none is left the run ends and says what to do.

    Weights: rank 0 sends them, and no rank goes on before the servers have them. At each `sync` the servers learn a
    label that no other has had, and vLLM notes with every token under which label it was drawn. Samples with any
    other label are not taken: their server gets the weights once more, and is asked again. That proves that the
    weights were those that were sent and loaded last: a server that was restarted has the label "default", and one to
    which another run has sent its weights has that run's. It does not prove that nobody has changed the weights and
    kept the label, nor that vLLM loaded them well: `rescoring` compares the probabilities themselves.

    Args:
        max_new_tokens: limit on the tokens of a completion.
        temperature: > 0; log-probabilities are those of softmax(logits / temperature).
        urls: of the servers.
        weights_dir: for weights that travel through files: a folder of this run alone, which rank 0 and all servers
            see under the same path.
        transfer: "files"; "nccl", for which the trainer needs vLLM and the servers --weight-transfer-config; "auto"
            takes NCCL where both are there and the trainer has a GPU.
        dtype: of the weights that are sent; None keeps the trainer's. That of the servers halves what float32 sends.
        in_flight: requests of one rank at one server, each for up to 64 completions of a prompt.
        patience: how long to wait.
    """

    own_weights = True

    def __init__(
        self,
        *,
        max_new_tokens: int,
        temperature: float = 1.0,
        urls: Sequence[str],
        weights_dir: str,
        transfer: str = "auto",
        dtype: str | None = None,
        in_flight: int = 16,
        patience: Patience | None = None,
    ) -> None:
        super().__init__(max_new_tokens=max_new_tokens, temperature=temperature)
        if transfer not in TRANSFERS:
            raise ValueError(f"sampler.transfer must be one of {', '.join(TRANSFERS)}, got {transfer!r}")
        if dtype not in DTYPES:
            raise ValueError(f"sampler.dtype must be null or one of {', '.join(filter(None, DTYPES))}, got {dtype!r}")
        if in_flight < 1:
            raise ValueError(f"sampler.in_flight must be >= 1, got {in_flight}")
        if isinstance(urls, str) or not urls or len(set(urls)) != len(urls):
            raise ValueError(f"sampler.urls must be a list of different addresses, [http://host:8000], got {urls}")
        self.weights_dir, self.transfer, self.dtype = weights_dir, transfer, DTYPES[dtype]
        self.in_flight, self.patience = in_flight, patience or Patience()
        self.servers = [Server(url, timeout=self.patience.request) for url in urls]
        self._sent, self._label = 0, ""
        self._transfer: Transfer | None = None

    # ---- weights ----

    def start(self, model: Any, *, max_prompt_tokens: int | None = None) -> None:
        """Wait for the servers, and look whether they run as they have to and hold the longest sequence."""
        wait_for(self.servers, seconds=self.patience.start, tell=_rank() == 0)
        self._run, self._facts = _of_rank_0(
            lambda: (uuid.uuid4().hex[:12], Facts.of_all([examine(server) for server in self.servers]))
        )
        self._check_length(max_prompt_tokens or 1)
        self._expected = weights_of(model)
        self._transfer = self._way(model)
        first = _rank() % len(self.servers)  # ranks with few prompts begin at different servers
        ordered = self.servers[first:] + self.servers[:first]
        self._crew = Crew(ordered, in_flight=self.in_flight, patience=self.patience.server)

    def sync(self, weights: Weights, *, version: int) -> None:
        """Send the weights to all servers. One that cannot be reached gets them when it is back."""
        assert self._transfer is not None, "start comes before sync"
        self._label, self._sent = f"{self._run}-{version}-{self._sent}", self._sent + 1
        weights = iter(weights)
        if _rank():
            _exhaust(weights)
        _of_rank_0(lambda: self._send(weights))
        super().sync((), version=version)

    def _send(self, weights: Weights) -> None:
        assert self._transfer is not None
        try:
            away = self._transfer.send(_only(weights, self._expected), self._label, self.servers)
        except Unavailable as error:
            raise SamplerError(f"the weights did not get to the vLLM servers: {error}. {WHAT_TO_DO}") from error
        finally:
            _exhaust(weights)  # whatever has happened, for the other ranks are gathering them, too
        if len(away) == len(self.servers):
            raise SamplerError(f"no vLLM server can take the weights: {'; '.join(map(str, away))}. {WHAT_TO_DO}")
        for problem in away:
            log.warning("a vLLM server did not get the weights, and is left out until it is back: %s", problem)

    def _way(self, model: Any) -> Transfer:
        """How weights travel."""
        nccl = self._facts.takes_nccl and torch.cuda.is_available() and find_spec("vllm") is not None
        if self.transfer == "nccl" and not nccl:
            raise SamplerError(
                "sampler.transfer=nccl needs a GPU and vLLM where the trainer runs, and servers with "
                "--weight-transfer-config (scripts/vllm_server.sh MODEL sets it); sampler.transfer=files does not"
            )
        if nccl and self.transfer != "files":
            return NcclTransfer(dtype=self.dtype)
        return FileTransfer(self.weights_dir, model.config, dtype=self.dtype, patience=self.patience.server)

    def close(self) -> None:
        if self._transfer is not None and _rank() == 0:
            self._transfer.close()

    # ---- samples ----

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
        """M completions of each prompt, from whichever servers had time.

        Args:
            prompt_ids, prompt_mask: [G, P], left-padded.
            eos_token_ids: [E], any of which ends a completion.
            generator: gives one seed, from which the M seeds of each prompt count on.
        """
        if self.version is None:
            raise SamplerError("the servers have not been given any weights: sync comes before generate")
        prompts = [ids[mask].tolist() for ids, mask in zip(prompt_ids, prompt_mask, strict=True)]
        self._check_prompts(prompts, model.config.vocab_size)
        seed = int(torch.randint(2**62, (), generator=generator, device=generator.device))
        at_most = min(COMPLETIONS_PER_REQUEST, self._facts.max_completions)
        requests = requests_for(prompts, samples=samples_per_group, at_most=at_most, seed=seed)
        ends = frozenset(eos_token_ids.tolist())
        try:
            answers = self._crew.run(partial(self._ask, ends=ends), requests)
        except Unavailable as error:
            raise SamplerError(f"no vLLM server is left to sample from: {error}. {WHAT_TO_DO}") from error
        completions = list(chain.from_iterable(answers))
        return to_samples(
            completions, prompt_ids, prompt_mask, ends=ends, pad_token_id=pad_token_id, version=self.version
        )

    def _ask(self, server: Server, request: Request, *, ends: frozenset[int]) -> list[Completion]:
        assert self._transfer is not None
        body = request.body(max_new_tokens=self.max_new_tokens, temperature=self.temperature, ends=sorted(ends))
        for _ in range(REPAIRS):
            answer = server.post(PATH, body)
            completions = read_answer(server.url, answer, request, limit=self.max_new_tokens, ends=ends)
            if all(one.versions == (self._label,) for one in completions):
                return completions
            found = completions[0].versions
            log.warning("%s sampled with weights %s instead of %s; it gets them again", server.url, found, self._label)
            self._transfer.repair(server, self._label)
        raise SamplerError(
            f"{server.url} has lost the weights of this run {REPAIRS} times in a row, and holds {found}: it must serve "
            "one run alone"
        )

    def _check_prompts(self, prompts: Sequence[Sequence[int]], vocabulary: int) -> None:
        """A token that the model does not know brings a whole server down."""
        if unknown := [token for prompt in prompts for token in prompt if not 0 <= token < vocabulary]:
            raise ValueError(f"a prompt holds token {unknown[0]}, but the model knows {vocabulary}")
        self._check_length(max(map(len, prompts)))

    def _check_length(self, prompt_tokens: int) -> None:
        needed, there = prompt_tokens + self.max_new_tokens, self._facts.max_tokens
        if needed > there:
            raise ValueError(
                f"a prompt of {prompt_tokens} tokens and max_new_tokens={self.max_new_tokens} need {needed}, but a "
                f"server holds {there}: start it with --max-model-len {needed}, or lower one of the two"
            )


def _rank() -> int:
    return distributed.get_rank() if distributed.is_initialized() else 0


def _only(weights: Weights, expected: Mapping[str, torch.Size]) -> Weights:
    """The weights, and at their end an error where they are not those that are expected."""
    problems = list[str]()
    yield from fitting(weights, expected, problems)
    refuse(problems)


def _exhaust(weights: Weights) -> None:
    for _ in weights:
        pass


def _of_rank_0(action: Callable[[], T]) -> T:
    """What rank 0 gets from `action`, on all ranks; none goes on before. An error of it is one of all."""
    if not distributed.is_initialized():
        return action()
    error: Exception | None = None
    said: list[Any] = [None, None]
    if _rank() == 0:
        try:
            said[0] = action()
        except Exception as raised:
            error, said[1] = raised, f"{type(raised).__name__}: {raised}"
    distributed.broadcast_object_list(said, src=0)
    if said[1] is not None:
        raise error or SamplerError(f"on rank 0: {said[1]}")
    return said[0]
