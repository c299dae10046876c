"""Completions as a vLLM server sends them: the request for them, the checks of its answer, and the `Samples` of it."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from sgrpo_lightning.axes import Samples
from sgrpo_lightning.samplers import SamplerError
from sgrpo_lightning.samplers.http import Unavailable

PATH = "/inference/v1/generate"
IMPOSSIBLE = -9000.0
"""A server writes -9999 for a log-probability that it does not know, or that is not a number."""


class BadAnswerError(SamplerError):
    """A server answered, but not what it was asked."""


@dataclass(frozen=True, slots=True)
class Request:
    """Some of the completions of one prompt."""

    prompt: list[int]
    count: int
    seed: int  # completion i of the request uses seed + i

    def body(self, *, max_new_tokens: int, temperature: float, ends: Sequence[int]) -> dict[str, Any]:
        """What a server is sent. Nothing is left to the defaults of the server or of the model that it serves."""
        return {
            "token_ids": self.prompt,
            "sampling_params": {
                "n": self.count,
                "seed": self.seed,
                "max_tokens": max_new_tokens,
                "temperature": temperature,
                "top_p": 1.0,
                "top_k": 0,
                "min_p": 0.0,
                "presence_penalty": 0.0,
                "frequency_penalty": 0.0,
                "repetition_penalty": 1.0,
                "stop_token_ids": list(ends),
                "ignore_eos": True,  # the end tokens are those that we name, whatever the folder of the model says
                "logprobs": 0,  # of the sampled token alone
                "detokenize": False,
            },
        }


@dataclass(frozen=True, slots=True)
class Completion:
    """Tokens, their log-probabilities, and the labels of the weights that drew them."""

    token_ids: list[int]
    logprobs: list[float]
    versions: tuple[str, ...]


def requests_for(prompts: Sequence[list[int]], *, samples: int, at_most: int, seed: int) -> list[Request]:
    """`samples` completions of each prompt, in requests of at most so many; no two completions share a seed."""
    return [
        Request(prompt, min(at_most, samples - start), seed + group * samples + start)
        for group, prompt in enumerate(prompts)
        for start in range(0, samples, at_most)
    ]


def read_answer(url: str, answer: Any, request: Request, *, limit: int, ends: Collection[int]) -> list[Completion]:
    """The completions of a request, in order.

    Args:
        limit: of the tokens of a completion.
        ends: tokens that end a completion.
    """
    choices = sorted(_field(url, answer, "choices"), key=lambda choice: choice["index"])
    if [choice["index"] for choice in choices] != list(range(request.count)):
        raise BadAnswerError(f"{url} was asked for {request.count} completions and sent {len(choices)}")
    if aborted := [c["finish_reason"] for c in choices if c.get("finish_reason") not in ("stop", "length")]:
        raise Unavailable(f"{url} ended a completion with {aborted[0]!r}")
    return [_read_choice(url, choice, limit, ends) for choice in choices]


def _field(url: str, answer: Any, name: str) -> Any:
    if not isinstance(answer, dict) or answer.get(name) is None:
        raise BadAnswerError(f"{url} sent no {name}, but {str(answer)[:200]}")
    return answer[name]


def _read_choice(url: str, choice: dict[str, Any], limit: int, ends: Collection[int]) -> Completion:
    tokens = _field(url, choice, "token_ids")
    scored = _field(url, _field(url, choice, "logprobs"), "content")
    spans = _field(url, choice, "weight_versions")
    logprobs = [math.nan if one["logprob"] is None else float(one["logprob"]) for one in scored]
    problem = None
    if not 1 <= len(tokens) <= limit:
        problem = f"{len(tokens)} tokens where 1 to {limit} were asked for"
    elif [one["token_id"] for one in scored] != tokens:
        problem = f"the log-probabilities of {len(scored)} tokens, which are not the {len(tokens)} of the completion"
    elif wrong := [value for value in logprobs if not IMPOSSIBLE < value <= 1e-3]:
        problem = f"a log-probability of {wrong[0]}"
    elif any(token in ends for token in tokens[:-1]):
        problem = "tokens after an end token"
    elif tokens[-1] not in ends and len(tokens) < limit:
        problem = f"{len(tokens)} tokens of at most {limit} without an end token"
    elif sum(span["end"] - span["start"] for span in spans) != len(tokens):
        problem = f"weight versions {spans} for {len(tokens)} tokens"
    if problem:
        raise BadAnswerError(f"{url} sent {problem}")
    return Completion(tokens, logprobs, tuple(span["version"] for span in spans))


def to_samples(
    completions: Sequence[Completion],
    prompt_ids: Tensor,
    prompt_mask: Tensor,
    *,
    ends: Collection[int],
    pad_token_id: int,
    version: int,
) -> Samples:
    """Right-padded rows on the device of the prompts."""
    shape = (len(completions), max(len(one.token_ids) for one in completions))
    tokens, mask, logprobs = torch.full(shape, pad_token_id), torch.zeros(shape, dtype=torch.bool), torch.zeros(shape)
    for row, one in enumerate(completions):
        length = len(one.token_ids)
        tokens[row, :length], mask[row, :length] = torch.tensor(one.token_ids), True
        logprobs[row, :length] = torch.tensor(one.logprobs)
    truncated = torch.tensor([one.token_ids[-1] not in ends for one in completions])
    tokens, mask, logprobs, truncated = (a.to(prompt_ids.device) for a in (tokens, mask, logprobs, truncated))
    return Samples(prompt_ids, prompt_mask, tokens, mask, logprobs, truncated, version)
