"""Policies of a few thousand weights, and the command line run in this process."""

import atexit
import logging
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass

import absl.logging
import pytest
import torch
from places import ROOT, TOYS

# Before the first import of a library that reads them.
_cache = tempfile.TemporaryDirectory()
atexit.register(_cache.cleanup)
os.environ |= {"HF_HUB_OFFLINE": "1", "HF_DATASETS_CACHE": _cache.name}

torch.set_num_threads(1)
# rouge-score brings absl, whose handler closes the stream that it found, here pytest's own, when Hydra sets up logging.
absl.logging.get_absl_handler().python_handler.setStream(sys.__stderr__)

sys.path.insert(0, str(TOYS))


@pytest.fixture(scope="session")
def make_policy():
    """(hidden_size, layers, seed, sharpness) -> a fresh random policy with heads of size 32.

    With a `sharpness` its logits spread by about 0.16 times that, and depend on every earlier token; without,
    all tokens are about as likely, whatever came before.
    """
    from sgrpo_lightning.modules.tiny import tiny_policy

    def make(*, hidden_size=32, layers=1, seed=0, sharpness=None):
        policy = tiny_policy(hidden_size=hidden_size, layers=layers, heads=hidden_size // 32, seed=seed)
        if sharpness is not None:
            with torch.no_grad():
                policy.model.model.norm.weight.mul_(sharpness)
                for weight in policy.model.model.layers.parameters():
                    weight.mul_(10 if weight.ndim == 2 else 1)
        return policy

    return make


@pytest.fixture(scope="session")
def gemma():
    """A random Gemma 2: attention in a window of 4, and logits that end in a soft cap."""
    from transformers import Gemma2Config, Gemma2ForCausalLM

    config = Gemma2Config(
        vocab_size=300,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=32,
        sliding_window=4,
        final_logit_softcapping=2.0,
        initializer_range=0.2,
        attn_implementation="eager",
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return Gemma2ForCausalLM(config).eval()


@pytest.fixture(scope="session")
def policy_folder(make_policy, tmp_path_factory):
    """A random policy as a transformers folder."""
    folder, policy = tmp_path_factory.mktemp("policy"), make_policy()
    policy.model.save_pretrained(folder)
    policy.tokenizer.save_pretrained(folder)
    return folder


@dataclass(frozen=True)
class Ended:
    """How a command ended: its exit code (0 or None is success), or the message it was ended with, and its output."""

    code: int | str | None
    output: str


@pytest.fixture
def quick(policy_folder):
    """The arguments of a run that takes a second: a random policy, and a toy task with a reward for letters."""
    return [
        f"--config-dir={TOYS / 'conf'}",
        "task=letters",
        f"model.path={policy_folder}",
        "trainer.accelerator=cpu",
        "iterations=2",
        "prompts_per_iteration=4",
        "samples_per_group=4",
        "max_new_tokens=4",
        "minibatches=2",
        "learning_rate=0.01",
        "logger.tensorboard=null",
        "callbacks.evaluation.every_n_iterations=1",
        "callbacks.evaluation.max_questions=4",
        "callbacks.evaluation.samples_per_question=2",
    ]


@pytest.fixture
def cli(monkeypatch, capfd, tmp_path):
    """(*arguments) -> how `python train.py *arguments` ends, in an empty working directory."""
    from sgrpo_lightning.run import command, train

    monkeypatch.chdir(tmp_path)
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", [str(ROOT / "train.py"), *map(str, arguments)])
        code = None
        try:
            command(train, str(ROOT / "train.py"), config_name="train")
        except SystemExit as ended:
            code = ended.code
        root.handlers[:], root.level = handlers, level  # Hydra puts its own in their place
        out, err = capfd.readouterr()
        return Ended(code, out + err)

    return run


@pytest.fixture(scope="session")
def on_two_ranks(environment, tmp_path_factory):
    """(script) -> what it saves to the file that is its argument, from two processes of torchrun."""

    def run(script):
        file = tmp_path_factory.mktemp("ranks") / "results.pt"
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
        path = f"{script.parent}{os.pathsep}{environment['PYTHONPATH']}"
        subprocess.run(
            [*command, str(script), str(file)], env=environment | {"PYTHONPATH": path}, check=True, timeout=280
        )
        return torch.load(file)

    return run


@pytest.fixture(scope="session")
def environment():
    """Of a subprocess that runs the toys."""
    path = os.pathsep.join([str(TOYS), os.environ.get("PYTHONPATH", "")])
    return {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}


@pytest.fixture(scope="session")
def glyph_scan():
    """(candidates, usable): code -> its ink in each style, of all that the fonts share and of those that are kept."""
    from datamodules import _glyph_fonts as fonts

    candidates = {}
    choose = fonts.distinct_glyphs

    def recorded(some):
        candidates.update(some)
        return choose(candidates.items())

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fonts, "distinct_glyphs", recorded)
        return candidates, fonts.usable_glyphs()


@pytest.fixture
def usable(glyph_scan, monkeypatch):
    """The usable characters, without drawing them anew."""
    monkeypatch.setattr("datamodules._glyph_fonts.usable_glyphs", lambda: glyph_scan[1])
    return glyph_scan[1]


@pytest.fixture
def plain(monkeypatch):
    """Glyphs of which nothing varies but the style: white on black."""
    plain = {
        "SCALE": (1.0, 1.0),
        "SHIFT": 0.0,
        "ROTATION": 0.0,
        "NOISE": 0.0,
        "BACKGROUND": (0.0, 0.0),
        "INK": (1.0, 1.0),
    }
    for name, value in plain.items():
        monkeypatch.setattr(f"datamodules._glyph_variations.{name}", value)
