"""Real vLLM servers on the CPU, as scripts/vllm_server.sh starts them, against forward passes of transformers."""

import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch

from sgrpo_lightning.samplers.http import Server
from sgrpo_lightning.samplers.transfer import is_alive
from sgrpo_lightning.samplers.vllm_server import Patience, VLLMServerSampler

pytest.importorskip("vllm.version")  # not "vllm": without the package, this folder itself would be found

SCRIPT = Path(__file__).parents[2] / "scripts" / "vllm_server.sh"
SMALL = "--dtype float32 --enforce-eager --max-model-len 256 --max-num-seqs 32 --distributed-executor-backend uni"
ENVIRONMENT = {
    "PYTHON": sys.executable,
    "OMP_NUM_THREADS": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "TORCHDYNAMO_DISABLE": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "HF_HUB_OFFLINE": "1",
}
TEMPERATURE = 0.7
PATIENCE = 600  # seconds; a server takes half a minute on a core of its own, and many times that on a shared one
pytestmark = pytest.mark.timeout(2 * PATIENCE)


class Running:
    """A server with a model, in processes of its own."""

    def __init__(self, model, folder):
        model.save_pretrained(folder)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.folder, self.url = folder, f"http://127.0.0.1:{self.port}"
        self.start()

    def start(self):
        self.log = (self.folder / "log").open("a")
        self.process = subprocess.Popen(
            ["bash", str(SCRIPT), str(self.folder), *SMALL.split()],
            env=os.environ | ENVIRONMENT | {"PORT": str(self.port)},
            stdout=self.log,
            stderr=self.log,
            start_new_session=True,
        )

    def kill(self):
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self.log.close()


@pytest.fixture(scope="module")
def running(tied, untied, tmp_path_factory):
    """kind -> (server, model). Both come up at the same time."""
    models = {"tied": tied, "untied": untied}
    made = {kind: (Running(model, tmp_path_factory.mktemp(kind)), model) for kind, model in models.items()}
    yield made
    for server, _ in made.values():
        server.kill()


@pytest.fixture
def sampler_of(running, tmp_path):
    """(kind) -> a sampler with that server."""

    def start(kind):
        server, model = running[kind]
        sampler = VLLMServerSampler(
            max_new_tokens=12,
            temperature=TEMPERATURE,
            urls=[server.url],
            weights_dir=str(tmp_path / "weights"),
            patience=Patience(start=PATIENCE, server=PATIENCE, request=60),
        )
        sampler.start(model, max_prompt_tokens=150)
        return sampler

    return start


def generate(sampler, model):
    """The first prompt fills a block of the prefix cache, so that stale states would show."""
    ids = torch.randint(4, model.config.vocab_size, (4, 150), generator=torch.Generator().manual_seed(0))
    mask = torch.arange(150) >= torch.tensor([[0], [140], [149], [100]])
    return sampler.generate(
        model,
        ids,
        mask,
        samples_per_group=5,
        eos_token_ids=torch.arange(1, model.config.vocab_size, 9),
        pad_token_id=0,
        generator=torch.Generator().manual_seed(1),
    )


def worst_gap(model, samples):
    """Nats between the sampler's log-probabilities and those of a forward pass over unpadded tokens."""
    gaps = []
    for row, mask in enumerate(samples.completion_mask):
        group = row // samples.samples_per_group
        prompt = samples.prompt_ids[group][samples.prompt_mask[group]]
        completion = samples.completion_ids[row][mask]
        with torch.no_grad():
            logits = model(torch.cat([prompt, completion])[None]).logits[0, len(prompt) - 1 : -1]
        expected = (logits / TEMPERATURE).log_softmax(-1).gather(-1, completion[:, None])[:, 0]
        gaps.append((expected - samples.sampler_logprobs[row][mask]).abs().max())
    return float(max(gaps))


def changed(model):
    with torch.no_grad():
        for index, weight in enumerate(model.parameters()):
            weight.add_(0.1 * weight.std() * torch.randn(weight.shape, generator=torch.Generator().manual_seed(index)))


@pytest.mark.parametrize("kind", ["tied", "untied"])
def test_logprobs_are_those_of_the_weights_that_were_sent_last(running, sampler_of, kind):
    model = running[kind][1]
    sampler = sampler_of(kind)
    for version in (0, 1):
        sampler.sync(model.state_dict().items(), version=version)
        samples = generate(sampler, model)
        assert worst_gap(model, samples) < 1e-3
        assert samples.weights_version == version
        assert samples.completion_mask.sum(-1).unique().numel() > 4
        changed(model)
        assert worst_gap(model, samples) > 0.05
    sampler.close()


def test_weights_of_another_shape_are_refused(running, sampler_of, make_policy):
    sampler, other = sampler_of("untied"), make_policy(hidden_size=32).model
    sampler.start(other)
    with pytest.raises(RuntimeError, match="It must serve the model that is trained"):
        sampler.sync(other.state_dict().items(), version=0)


def test_a_server_that_was_killed_and_started_again_gets_the_weights_again(running, sampler_of, caplog):
    server, model = running["tied"]
    sampler = sampler_of("tied")
    changed(model)
    sampler.sync(model.state_dict().items(), version=7)
    first = generate(sampler, model)
    server.kill()
    assert not is_alive(Server(server.url, timeout=5))
    threading.Timer(0.5, server.start).start()
    second = generate(sampler, model)
    assert "sampled with weights ('default',)" in caplog.text
    assert worst_gap(model, second) < 1e-3
    assert torch.equal(first.completion_ids, second.completion_ids)
