"""Where the time of an iteration goes: weight sync, sampling, reward, learning, and what lies between iterations.

    python benchmarks/iteration.py                          # runs sampler=hf, and sampler=vllm where it is installed
    python benchmarks/iteration.py task=gsm8k model=qwen2.5-1.5b sampler.max_rows=256
    python benchmarks/iteration.py --folder runs/llm/gsm8k/softmax_grpo/0-20260101-120000

Shares of the whole are of medians over the iterations, the first of which does not count, for things warm up in it. The
reference and behaviour passes are part of learning. What lies between iterations is the checkpoint, the log, and
every so often an evaluation, which is told apart by comparing iterations with and without one. With overrides of
`train.py` those are run, each sampler in a folder of its own; without, six iterations of the embedded policy.
"""

from __future__ import annotations

import argparse
import itertools
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from statistics import median

from sgrpo_lightning.report import read_rows

ROOT = Path(__file__).parents[1]
PARTS = ("sync", "sample", "reward", "learn")
SMALL = (
    *("iterations=6", "prompts_per_iteration=16", "trainer.devices=1", "logger.tensorboard=null"),
    *("callbacks.evaluation.every_n_iterations=3", "callbacks.evaluation.max_questions=16"),
    "callbacks.evaluation.samples_per_question=4",
)

Row = Mapping[str, float]


def run(overrides: Sequence[str], folder: Path) -> None:
    command = [sys.executable, str(ROOT / "train.py"), *overrides, f"run_dir={folder}"]
    subprocess.run(command, check=True, cwd=ROOT, stdout=subprocess.DEVNULL)


def parts(rows: Sequence[Row]) -> dict[str, float]:
    """Seconds of each part of an iteration, and of what comes between two."""
    pairs = list(itertools.pairwise(rows))
    between = [
        (later["elapsed"] - earlier["elapsed"] - sum(later[f"seconds/{part}"] for part in PARTS), _evaluates(later))
        for earlier, later in pairs
    ]
    plain = [seconds for seconds, evaluated in between if not evaluated]
    evaluated = [seconds for seconds, evaluated in between if evaluated]
    checkpoint = median(plain) if plain else 0.0
    once = max(0.0, median(evaluated) - checkpoint) if evaluated else 0.0
    found = {part: median(row[f"seconds/{part}"] for row in rows[1:]) for part in PARTS}
    return {**found, "checkpoint, log": checkpoint, "evaluation": once * len(evaluated) / max(1, len(between))}


def _evaluates(row: Row) -> bool:
    return any(name.startswith("eval") for name in row)


def report(title: str, folder: Path) -> None:
    rows = [row for row in read_rows(folder) if "seconds/learn" in row]
    if len(rows) < 2:
        sys.exit(f"{folder}: two iterations are needed, found {len(rows)}")
    seconds = parts(rows)
    whole = sum(seconds.values())
    print(f"\n{title}: {whole:.2f} s an iteration, medians of {len(rows) - 1}")
    for part, spent in seconds.items():
        print(f"  {part:16} {spent:9.3f} s {spent / whole:7.1%}", flush=True)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("overrides", nargs="*", help="of train.py")
    parser.add_argument("--folder", type=Path, nargs="*", default=[], help="runs that there are, instead")
    parser.add_argument("--samplers", nargs="*", default=["hf", *(["vllm"] if find_spec("vllm") else [])])
    return parser.parse_args()


def main() -> None:
    arguments = parse()
    for folder in arguments.folder:
        report(str(folder), folder)
    if arguments.folder:
        return
    with tempfile.TemporaryDirectory() as scratch:
        for sampler in arguments.samplers:
            folder = Path(scratch) / sampler
            run([*(arguments.overrides or SMALL), f"sampler={sampler}"], folder)
            report(f"sampler={sampler}", folder)


if __name__ == "__main__":
    main()
