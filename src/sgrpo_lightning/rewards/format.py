"""The form that thinking takes: one block, closed, before the answer."""

from sgrpo_lightning.rewards.answers import Answers
from sgrpo_lightning.rewards.outcome import Outcome
from sgrpo_lightning.rewards.reading import read_response, with_thinking_open


def format_reward(completion: object) -> float:
    """Return 1.0 for exactly one thinking block, closed, with an answer after it, and else 0.0.

    The text begins with `<think>`, holds it and `</think>` once each, and has more than whitespace within the block
    and after it.

    Args:
        completion: the generated text; nothing it holds, and no type it has, raises. Where the prompt itself opens
            the thinking, pass `"<think>" + completion`: a text that begins within the block scores 0.

    Edge cases:
        Whitespace may stand before the block. `<answer>` tags are not asked for, but an empty answer between them is
        none. Tags are matched letter for letter.

    >>> format_reward("<think>Short or long?</think>Snow falls.")
    1.0
    >>> format_reward("Short or long?</think>Snow falls.")
    0.0

    Reference: Appendix B.5, r_format.
    """
    if not isinstance(completion, str) or read_response(completion) is None:
        return 0.0
    before, _, rest = completion.partition("<think>")
    thinking, _, _ = rest.partition("</think>")
    once = completion.count("<think>") == completion.count("</think>") == 1
    return float(once and not before.strip() and bool(thinking.strip()))


class FormatGrader:
    """A grader of the form alone; see `format_reward`.

    Args:
        opened_by_prompt: whether the prompt ends in `<think>`, so that completions begin within the block.

    Its outcomes are `ok` or `wrong`, or `no_answer` where nothing follows the thinking; the answer is what does.

    >>> FormatGrader(opened_by_prompt=True)(Answers(["Short or long?</think>Snow falls."], golds=[None]))
    [Outcome(reward=1.0, status='ok', answer='Snow falls.', parts={})]
    """

    def __init__(self, *, opened_by_prompt: bool = False) -> None:
        self.opened_by_prompt = opened_by_prompt

    def __call__(self, answers: Answers) -> list[Outcome]:
        return [self._grade(completion) for completion in answers.completions]

    def _grade(self, completion: object) -> Outcome:
        text = with_thinking_open(completion) if self.opened_by_prompt else completion
        response, reward = read_response(text), format_reward(text)
        if response is None:
            return Outcome(0.0, "no_answer", None)
        return Outcome(reward, "ok" if reward else "wrong", response)
