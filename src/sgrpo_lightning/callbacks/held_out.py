"""Held-out accuracy before, during and after training."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import lightning as L

from sgrpo_lightning.evaluation import TextOverlap, pass_statistics
from sgrpo_lightning.rewards import read_reference, read_response


class Evaluation(L.Callback, ABC):
    """Measures before training, every n iterations, at the end, and when the run is stopped.

    Args:
        every_n_iterations: also every so often between the first and the last iteration; 0 never does.
    """

    def __init__(self, *, every_n_iterations: int) -> None:
        self.every = every_n_iterations

    @abstractmethod
    def measure(self, trainer: L.Trainer, module: Any) -> dict[str, float]:
        """Metrics over all ranks, for the iteration's row."""

    def on_train_start(self, trainer: L.Trainer, pl_module: Any) -> None:
        if trainer.current_epoch == 0:
            row = {"iteration": 0.0, **self.measure(trainer, pl_module)}
            for logger in trainer.loggers:
                logger.log_metrics(row, step=0)

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: Any) -> None:
        done = trainer.current_epoch + 1
        due = self.every and done % self.every == 0
        if due or done == trainer.max_epochs or trainer.should_stop:
            row = pl_module.row  # before the evaluation: its time is not the iteration's
            row.update(self.measure(trainer, pl_module))


class HeldOutEvaluation(Evaluation):
    """Samples the held-out questions and adds `eval/...` to the iteration's row.

    Args:
        every_n_iterations: as for `Evaluation`.
        samples_per_question: at the training temperature, so that pass@1 is the mean reward of the policy.
        ks: of pass@k; those above `samples_per_question` are left out.
        max_questions: only the first so many; None takes all.
        text_overlap: also ROUGE-1/2/L and BLEU of the first sample of each question against its reference.
    """

    def __init__(
        self,
        *,
        every_n_iterations: int = 20,
        samples_per_question: int = 16,
        ks: Sequence[int] = (1, 2, 4, 8, 16),
        max_questions: int | None = None,
        text_overlap: bool = False,
    ) -> None:
        if samples_per_question < 1:
            raise ValueError(f"samples_per_question must be >= 1, got {samples_per_question}")
        super().__init__(every_n_iterations=every_n_iterations)
        self.samples, self.max_questions = samples_per_question, max_questions
        self.ks = [k for k in ks if k <= samples_per_question]
        self.text_overlap = text_overlap

    def measure(self, trainer: L.Trainer, module: Any) -> dict[str, float]:
        """pass@k, majority vote, the mean reward and its parts, the overlap of texts, and the number of samples."""
        questions = module.task.held_out[: self.max_questions]
        mine = questions[trainer.global_rank :: trainer.world_size]
        # A rank without a question asks one that does not count: all ranks have to take the same steps.
        rollout = module.roll_out(mine or questions[:1], samples_per_group=self.samples, key=("held-out",))
        sums = pass_statistics(rollout.outcomes, samples=self.samples, ks=self.ks)
        sums |= {"reward": rollout.rewards.mean(1).sum()}
        sums |= {f"reward/{name}": part.mean(1).sum() for name, part in rollout.parts.items()}
        sums = {name: module.over_ranks("/sum", value if mine else 0.0) for name, value in sums.items()}
        count = sums.pop("questions")
        means = {name: value / count for name, value in sums.items()}
        if self.text_overlap:
            means |= self._overlap(rollout, len(mine), module.device)
        return {f"eval/{name}": value for name, value in means.items()} | {"eval/samples": count * self.samples}

    def _overlap(self, rollout: Any, questions: int, device: Any) -> dict[str, float]:
        """Of the first sample of each of so many questions."""
        overlap = TextOverlap().to(device)
        first = rollout.completions[:: self.samples][:questions]
        references = [read_reference(example.reference) for example in rollout.examples[:questions]]
        overlap.update([read_response(text) for text in first], references)
        return overlap.compute()


class ImageEvaluation(Evaluation):
    """Classifies the images of every held-out split and adds `<split>/...` to the iteration's row.

    Args:
        every_n_iterations: as for `Evaluation`.
        ks: of pass@k, the chance that one of k sampled labels is right; known exactly, so nothing is sampled.
    """

    def __init__(self, *, every_n_iterations: int = 8, ks: Sequence[int] = (1, 4, 16, 64, 128, 256, 1024)) -> None:
        super().__init__(every_n_iterations=every_n_iterations)
        self.ks = tuple(ks)

    def measure(self, trainer: L.Trainer, module: Any) -> dict[str, float]:
        loaders = trainer.datamodule.held_out_dataloaders()  # type: ignore[attr-defined]
        measured = {split: module.evaluate(batches, ks=self.ks) for split, batches in loaders.items()}
        return {f"{split}/{name}": value for split, values in measured.items() for name, value in values.items()}
