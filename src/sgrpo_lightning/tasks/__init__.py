"""Tasks of the language-model domain: what is asked, how an answer is graded, demonstrations."""

from sgrpo_lightning.tasks.base import Example, Task
from sgrpo_lightning.tasks.countdown import CountdownTask

__all__ = ["CountdownTask", "Example", "Task"]
