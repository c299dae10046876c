"""Tasks of the language-model domain: what is asked, how an answer is graded, demonstrations."""

from sgrpo_lightning.tasks.base import Example, Task, answers_to
from sgrpo_lightning.tasks.countdown import CountdownTask
from sgrpo_lightning.tasks.questions import QuestionTask
from sgrpo_lightning.tasks.rows import Question

__all__ = ["CountdownTask", "Example", "Question", "QuestionTask", "Task", "answers_to"]
