"""Tokens per second of the samplers, of bare vLLM and of transformers' own `generate`, on the same requests.

    python benchmarks/sampling.py [--model tiny] [--prompts 32] [--samples 16] [--max-new-tokens 192] [--rounds 3]

Three kinds of answers: all run to the limit; answers as the policy gives them, which end early (`tiny` answers
Countdown in about 30 tokens, few of them in many more); and those of a policy to which all tokens are alike, with so
many end tokens that answers have 22 tokens on average and a long tail. Prompts are those of Countdown. Only tokens up
to the end token count. Rounds go through all contenders in turn, and the best round of each is printed; before them
each warms up once. On a CPU time is that of the process, so that other work on the machine counts little: give it one
thread with OMP_NUM_THREADS=1. The time that it takes to start vLLM and to hand over the weights is printed too. Needs
vLLM.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import torch
from torch import Tensor

from sgrpo_lightning.distributed.weights import full_weights
from sgrpo_lightning.modules.loading import Policy, load_policy
from sgrpo_lightning.samplers import Sampler
from sgrpo_lightning.samplers.hf import HFSampler
from sgrpo_lightning.samplers.vllm import VLLMSampler
from sgrpo_lightning.tasks.countdown import CountdownTask
from sgrpo_lightning.tasks.prompting import render_prompt, tokenize_prompts

CONTENDERS = ("bare vLLM", "sampler=vllm", "sampler=hf", "transformers generate")
TYPICAL = 22
NEVER: list[int] = []
"""No end token: every answer runs to the limit."""


class Requests:
    """The same prompts for every contender.

    Args:
        ends: tokens that end an answer.
    """

    def __init__(self, policy: Policy, ids: Tensor, mask: Tensor, *, samples: int, limit: int, ends: list[int]) -> None:
        self.policy, self.ids, self.mask, self.ends = policy, ids, mask, ends
        self.samples, self.limit = samples, limit

    def of_sampler(self, sampler: Sampler, seed: int) -> int:
        """Tokens that a sampler of ours draws."""
        drawn = sampler.generate(
            self.policy.model,
            self.ids,
            self.mask,
            samples_per_group=self.samples,
            eos_token_ids=torch.tensor(self.ends, dtype=torch.long, device=self.ids.device),
            pad_token_id=self.policy.tokenizer.pad_token_id,
            generator=torch.Generator(self.ids.device).manual_seed(seed),
        )
        return int(drawn.completion_mask.sum())

    def of_vllm(self, sampler: VLLMSampler, seed: int) -> int:
        """Tokens that the same engine draws with the same settings, when nothing is made of its answer."""
        from vllm import SamplingParams

        assert sampler.engine is not None
        torch.manual_seed(seed)
        ask = SamplingParams(
            n=self.samples,
            max_tokens=self.limit,
            temperature=sampler.temperature,
            stop_token_ids=self.ends,
            ignore_eos=True,
            logprobs=0,
            flat_logprobs=True,
            detokenize=False,
        )
        prompts = [{"prompt_token_ids": ids[mask].tolist()} for ids, mask in zip(self.ids, self.mask, strict=True)]
        with torch.compiler.set_stance("force_eager" if self.ids.device.type == "cpu" else "default"):
            outputs = sampler.engine.llm.generate(prompts, ask, use_tqdm=False)
        return sum(len(completion.token_ids) for output in outputs for completion in output.outputs)

    def of_transformers(self, seed: int) -> int:
        """Tokens up to the end token that `generate` draws."""
        torch.manual_seed(seed)
        drawn = self.policy.model.generate(
            input_ids=self.ids,
            attention_mask=self.mask.long(),
            do_sample=True,
            top_k=0,
            top_p=1.0,
            num_return_sequences=self.samples,
            max_new_tokens=self.limit,
            min_new_tokens=0 if self.ends else self.limit,
            eos_token_id=self.ends or None,
            pad_token_id=self.policy.tokenizer.pad_token_id,
        )[:, self.ids.shape[1] :]
        ended = torch.isin(drawn, torch.tensor(self.ends, device=drawn.device))
        return int((ended.cumsum(-1) - ended.long() == 0).sum())


def rates(contenders: dict[str, Callable[[int], int]], rounds: int) -> dict[str, tuple[float, float]]:
    """Best tokens per second of each, and tokens drawn in that round."""
    best = dict.fromkeys(contenders, (0.0, 0.0))
    for round_ in range(rounds + 1):
        for name, draw in contenders.items():
            start = clock()
            tokens = draw(round_)
            rate = tokens / (clock() - start)
            if round_:
                best[name] = max(best[name], (rate, tokens))
    return best


def clock() -> float:
    """Seconds, once the device is done."""
    if not torch.cuda.is_available():
        return time.process_time()
    torch.cuda.synchronize()
    return time.perf_counter()


def started(policy: Policy, limit: int, longest: int, dtype: str) -> VLLMSampler:
    """An engine with the policy's weights."""
    sampler = VLLMSampler(max_new_tokens=limit, max_num_seqs=512, dtype=dtype, enable_sleep_mode=False)
    start = clock()
    sampler.start(policy.model, max_prompt_tokens=longest)
    print(f"vLLM started in {clock() - start:.1f} s")
    for version in range(2):
        start = clock()
        sampler.sync(full_weights(policy.model), version=version)
    print(f"weights handed over in {1000 * (clock() - start):.0f} ms")
    return sampler


@torch.no_grad()
def indifferent(policy: Policy, sampler: VLLMSampler) -> list[int]:
    """Make all tokens alike to the policy, in vLLM too; as many end tokens as end an answer after `TYPICAL` tokens."""
    policy.model.base_model.norm.weight.zero_()
    sampler.sync(full_weights(policy.model), version=2)
    return list(range(policy.model.config.vocab_size // TYPICAL))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--dtype", default="auto", help="of the weights of the model, in vLLM and outside")
    parser.add_argument("--prompts", type=int, default=32)
    parser.add_argument("--samples", type=int, default=16, help="per prompt")
    parser.add_argument("--max-new-tokens", type=int, default=192)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--contenders", nargs="+", choices=CONTENDERS, default=CONTENDERS)
    arguments = parser.parse_args()

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    policy = load_policy(arguments.model, dtype="float32" if arguments.dtype == "auto" else arguments.dtype)
    policy.model.to(device).eval()
    examples = CountdownTask().train[: arguments.prompts]
    texts = [render_prompt(policy.tokenizer, example.prompt, system=example.system) for example in examples]
    prompts = tokenize_prompts(policy.tokenizer, texts, padding=True, padding_side="left", return_tensors="pt").to(
        device
    )
    ids, mask, limit = prompts["input_ids"], prompts["attention_mask"].bool(), arguments.max_new_tokens

    ours, hf = started(policy, limit, ids.shape[1], arguments.dtype), HFSampler(max_new_tokens=limit, max_rows=512)
    rows = arguments.prompts * arguments.samples
    print(f"{rows} answers, {device}, {torch.get_num_threads()} thread(s)")
    for kind in ("to the limit", "ending early", "a long tail"):
        ends = {"to the limit": NEVER, "ending early": policy.eos_token_ids}.get(kind)
        ends = indifferent(policy, ours) if ends is None else ends
        asked = Requests(policy, ids, mask, samples=arguments.samples, limit=limit, ends=ends)
        contenders: dict[str, Callable[[int], int]] = {
            "bare vLLM": lambda seed, asked=asked: asked.of_vllm(ours, seed),  # type: ignore[misc]
            "sampler=vllm": lambda seed, asked=asked: asked.of_sampler(ours, seed),  # type: ignore[misc]
            "sampler=hf": lambda seed, asked=asked: asked.of_sampler(hf, seed),  # type: ignore[misc]
            "transformers generate": lambda seed, asked=asked: asked.of_transformers(seed),  # type: ignore[misc]
        }
        measured = rates({name: contenders[name] for name in arguments.contenders}, arguments.rounds)
        first = arguments.contenders[0]
        for name, (rate, tokens) in measured.items():
            ratio, length = rate / measured[first][0], f"{tokens / rows:.0f} of {limit} tokens"
            print(f"{kind:14}{name:24}{rate:9.0f} tokens/s {ratio:6.2f} x {first}   {length}", flush=True)
    ours.close()


if __name__ == "__main__":
    main()
