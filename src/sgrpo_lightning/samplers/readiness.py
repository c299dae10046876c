"""Is a vLLM server there, and does it run as the sampler needs it?"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from sgrpo_lightning.samplers import SamplerError
from sgrpo_lightning.samplers.completions import PATH, Request, read_answer
from sgrpo_lightning.samplers.http import Refused, Server, Unavailable
from sgrpo_lightning.samplers.transfer import label_of

TELL_EVERY, LOOK_EVERY = 30.0, 1.0  # seconds
HOW = "start it with scripts/vllm_server.sh MODEL"


@dataclass(frozen=True, slots=True)
class Facts:
    """What servers can do."""

    max_tokens: int  # of prompt and completion
    max_completions: int  # of one request
    takes_nccl: bool

    @staticmethod
    def of_all(facts: Sequence[Facts]) -> Facts:
        """What every one of them can do."""
        return Facts(
            min(one.max_tokens for one in facts),
            min(one.max_completions for one in facts),
            all(one.takes_nccl for one in facts),
        )


def wait_for(servers: Sequence[Server], *, seconds: float, tell: bool) -> None:
    """Until all of them answer.

    Args:
        tell: print now and then for what it waits.
    """
    begun = told = time.monotonic()
    for server in servers:
        while (problem := _problem(server)) is not None:
            now = time.monotonic()
            if now - begun > seconds:
                raise SamplerError(f"no vLLM server came up within {seconds:g} s: {problem}; {HOW}")
            if tell and now - told > TELL_EVERY:
                print(f"waiting for a vLLM server since {now - begun:.0f} s: {problem}", flush=True)
                told = now
            time.sleep(min(LOOK_EVERY, seconds))


def _problem(server: Server) -> Unavailable | None:
    try:
        server.get("/health", timeout=10)
    except Unavailable as error:
        return error
    return None


def examine(server: Server) -> Facts:
    """Check how the server runs; one that a killed trainer has left paused goes on."""
    try:
        label_of(server)
        server.post("/resume")
        config = server.get("/server_info?config_format=json")["vllm_config"]
    except Refused as error:
        raise SamplerError(f"{error}: the server runs without VLLM_SERVER_DEV_MODE=1; {HOW}") from error
    model, batches = config["model_config"], config["scheduler_config"]
    if model["logprobs_mode"] != "processed_logprobs":
        raise SamplerError(
            f"{server.url} must run with --logprobs-mode processed_logprobs, which are those at the sampling "
            f"temperature, got {model['logprobs_mode']}; {HOW}"
        )
    _try(server)
    transfer = config.get("weight_transfer_config") or {}
    return Facts(model["max_model_len"], batches["max_num_seqs"], transfer.get("backend") == "nccl")


def _try(server: Server) -> None:
    """One token: the answer has to say which weights it comes from."""
    request = Request(prompt=[0], count=1, seed=0)
    try:
        answer = server.post(PATH, request.body(max_new_tokens=1, temperature=1.0, ends=()))
    except Refused as error:
        raise SamplerError(f"{error}: the server runs without --enable-scale-out; {HOW}") from error
    read_answer(server.url, answer, request, limit=1, ends=())
