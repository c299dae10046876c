"""One of two ranks that train with the same servers: `python server_ranks.py FOLDER RANK URL...`.

Its model is a dictionary, so that nothing large is imported.
"""

import sys
from pathlib import Path
from types import SimpleNamespace

import torch
from torch import distributed

from sgrpo_lightning.samplers import vllm_server
from sgrpo_lightning.samplers.vllm_server import Patience, VLLMServerSampler

WEIGHTS = {"embedding.weight": torch.ones(300, 4), "lm_head.weight": torch.ones(300, 4)}


class Config:
    vocab_size = 300

    def save_pretrained(self, folder):
        (folder / "config.json").write_text("{}")


def gathered(taken):
    """The weights, noting what was taken."""
    for name, tensor in WEIGHTS.items():
        taken.append(name)
        yield name, tensor


if __name__ == "__main__":
    folder, rank, urls = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
    vllm_server.weights_of = lambda model: {name: tensor.shape for name, tensor in WEIGHTS.items()}
    model = SimpleNamespace(config=Config())
    distributed.init_process_group("gloo", f"file://{folder}/meeting", rank=rank, world_size=2)
    sampler = VLLMServerSampler(
        max_new_tokens=6, urls=urls, weights_dir=str(folder / "weights"), patience=Patience(10, 10, 10)
    )
    sampler.start(model, max_prompt_tokens=9)
    for version in (0, 1):
        taken = []
        sampler.sync(gathered(taken), version=version)
        assert taken == list(WEIGHTS)
        samples = sampler.generate(
            model,
            torch.randint(4, 300, (6, 9)),
            torch.ones(6, 9, dtype=torch.bool),
            samples_per_group=2,
            eos_token_ids=torch.tensor([1]),
            pad_token_id=0,
            generator=torch.Generator().manual_seed(10 * version + rank),
        )
        assert samples.weights_version == version
    try:
        sampler.sync([*WEIGHTS.items(), ("extra", torch.ones(1))], version=2)
    except Exception as error:
        print(f"{type(error).__name__}: {error}")
    sampler.close()
    distributed.destroy_process_group()
