"""What can be known of a run before it costs anything."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import lightning as L

__all__ = ["examine", "failures_of", "without_traces"]

VERDICT = "SGRPO_LIGHTNING_VERDICT"
"""Names the file in which processes that were launched from here leave the number of failures."""


def examine(module: Any, datamodule: Any, trainer: L.Trainer, run_dir: Path) -> int:
    """Print what is found, line by line, and return how many checks failed. Nothing stays of it.

    Args:
        module, datamodule, trainer: of the run as `run.build` makes them; they serve for nothing else afterwards.
        run_dir: where the run will be.
    """
    failed = examination_of(module)(module, datamodule, trainer, run_dir).run()
    if (file := os.environ.get(VERDICT)) and trainer.is_global_zero:
        Path(file).write_text(str(failed))
    return 0 if file else failed


def examination_of(module: Any) -> Callable[..., Any]:
    """The kind of examination. Each is imported when it is used: images need no transformers."""
    if hasattr(module, "sampler"):
        from sgrpo_lightning.doctor.policy import PolicyExamination

        return PolicyExamination
    if hasattr(module, "policy"):
        from sgrpo_lightning.doctor.supervised import SupervisedExamination

        return SupervisedExamination
    from sgrpo_lightning.doctor.images import ImageExamination

    return ImageExamination


def failures_of(launched: Callable[[], None]) -> int:
    """What the processes that `launched` starts have found; an exit code of theirs would bring torchrun's report."""
    with tempfile.NamedTemporaryFile("r") as file:
        os.environ[VERDICT] = file.name
        try:
            launched()
        finally:
            del os.environ[VERDICT]
        return int(file.read() or 1)


@contextmanager
def without_traces(settings: Any, run_dir: str) -> Iterator[Any]:
    """The settings with all that would go into the run's folder in another one, which goes away afterwards.

    That lies where the run's folder would, for servers of a sampler may have to see it. It has no random name, for all
    nodes use the same.
    """
    above = Path(run_dir).absolute().parent
    while not above.is_dir():
        above = above.parent
    scratch = above / f".doctor-{Path(run_dir).name}"
    try:
        yield _moved(settings, run_dir, str(scratch))
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _moved(settings: Any, run_dir: str, scratch: str) -> Any:
    if isinstance(settings, dict):
        return {key: _moved(value, run_dir, scratch) for key, value in settings.items()}
    if isinstance(settings, list):
        return [_moved(value, run_dir, scratch) for value in settings]
    inside = isinstance(settings, str) and (settings == run_dir or settings.startswith(f"{run_dir}/"))
    return scratch + settings[len(run_dir) :] if inside else settings
