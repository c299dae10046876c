"""What the data modules of language tasks share: the task's data is surveyed once, and stays the same at a resume."""

from __future__ import annotations

from typing import TYPE_CHECKING

import lightning as L

from sgrpo_lightning.tasks.survey import check_fingerprint, survey

if TYPE_CHECKING:
    from sgrpo_lightning.modules import Policy
    from sgrpo_lightning.tasks import Task


class TaskDataModule(L.LightningDataModule):
    """Leaves out prompts that are too long, and keeps a fingerprint of the others in the checkpoint.

    Args:
        max_prompt_tokens: examples with a longer prompt are left out of the task, and counted in `notes`; None keeps
            all.
    """

    def __init__(self, policy: Policy, task: Task, *, max_prompt_tokens: int | None = None) -> None:
        super().__init__()
        self.task, self.max_prompt_tokens = task, max_prompt_tokens
        self.fingerprint, long = survey(task, policy.tokenizer, max_prompt_tokens=max_prompt_tokens)
        self.notes = [*getattr(task, "notes", ()), *long]

    def state_dict(self) -> dict[str, str]:
        return {"fingerprint": self.fingerprint}

    def load_state_dict(self, state_dict: dict[str, str]) -> None:
        """Raises `DataChanged` where the checkpoint is of a run on other data."""
        check_fingerprint(self.state_dict(), state_dict)
