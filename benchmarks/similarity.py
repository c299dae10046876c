"""Speed of ROUGE-L against rouge-score's, and answers per second of the whole reward.

    python benchmarks/similarity.py [--samples 8]

CPU time of one thread. Words are drawn as Zipf's law has it, with capitals and punctuation, and a third of an answer is
pieces of its reference. Tokenising counts on both sides. Ours takes all answers, the median over the rounds.
rouge-score would need minutes, so it takes the first answers and as many drawn from the others, on which values are
compared, and its time is scaled up.
"""

import argparse
import random
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from rouge_score.rouge_scorer import RougeScorer

from sgrpo_lightning.rewards.answers import Answers
from sgrpo_lightning.rewards.overlap import rouge_l_against
from sgrpo_lightning.rewards.similarity import SimilarityGrader

WORDS = 20_000


def text(words: Sequence[str], rng: random.Random) -> str:
    marked = (word + rng.choice(["", "", "", "", "", "", ",", ".", "!\n"]) for word in words)
    return " ".join(word.capitalize() if rng.random() < 0.1 else word for word in marked)


def made_up(arguments: argparse.Namespace, rng: random.Random) -> tuple[list[str], list[str]]:
    """Answers, and the reference of each: `samples` answers have the same."""
    vocabulary = ["".join(rng.choices("etaoinshrdlu", k=rng.randint(2, 9))) for _ in range(WORDS)]
    weights = [1 / rank for rank in range(1, WORDS + 1)]
    answers, references = [], []
    for _ in range(arguments.answers // arguments.samples):
        reference = rng.choices(vocabulary, weights, k=arguments.reference_words)
        references += [text(reference, rng)] * arguments.samples
        for _ in range(arguments.samples):
            words = rng.choices(vocabulary, weights, k=arguments.answer_words)
            for start in range(0, arguments.answer_words - 8, 24):
                piece = rng.randrange(arguments.reference_words - 8)
                words[start : start + 8] = reference[piece : piece + 8]
            answers.append(text(words, rng))
    return answers, references


def rouge_l(answers: Sequence[str], references: Sequence[str]) -> list[float]:
    """Ours, of a whole batch."""
    measures = {reference: rouge_l_against(reference) for reference in set(references)}
    return [measures[reference](answer) for answer, reference in zip(answers, references, strict=True)]


def rouge_score(answers: Sequence[str], references: Sequence[str]) -> list[float]:
    scorer = RougeScorer(["rougeL"])
    pairs = zip(references, answers, strict=True)
    return [scorer.score(reference, answer)["rougeL"].fmeasure for reference, answer in pairs]


def timed(function: Callable[[], Any], rounds: int = 1) -> tuple[float, Any]:
    """Median seconds, and the last result."""
    seconds = []
    for _ in range(rounds):
        start = time.process_time()
        result = function()
        seconds.append(time.process_time() - start)
    return statistics.median(seconds), result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--answers", type=int, default=4096)
    parser.add_argument("--answer-words", type=int, default=512)
    parser.add_argument("--reference-words", type=int, default=256)
    parser.add_argument("--samples", type=int, default=8, help="answers that share a reference")
    parser.add_argument("--compared", type=int, default=64, help="answers of either subset that rouge-score takes")
    parser.add_argument("--rounds", type=int, default=7)
    arguments = parser.parse_args()
    rng = random.Random(0)
    answers, references = made_up(arguments, rng)
    ours, values = timed(partial(rouge_l, answers, references), arguments.rounds)
    rows = [*range(arguments.compared), *rng.sample(range(arguments.compared, len(answers)), arguments.compared)]
    theirs, expected = timed(partial(rouge_score, [answers[i] for i in rows], [references[i] for i in rows]))
    theirs *= len(answers) / len(rows)
    difference = max(abs(values[i] - value) for i, value in zip(rows, expected, strict=True))
    print(f"{len(answers)} answers of {arguments.answer_words} words, references of {arguments.reference_words}")
    print(f"ROUGE-L: {ours:.3f} s; rouge-score: {theirs:.1f} s, scaled from {len(rows)} answers")
    print(f"rouge-score / ours: {theirs / ours:.0f}; largest difference: {difference:.1e}")
    for tokenizer, ending in (("rouge", ""), ("unicode", ""), ("unicode", " \N{EM DASH}")):
        batch = Answers([answer + ending for answer in answers], golds=[None] * len(answers), references=references)
        seconds, _ = timed(partial(SimilarityGrader(tokenizer=tokenizer), batch), arguments.rounds)
        texts = "beyond ASCII" if ending else "ASCII"
        print(f"whole reward, tokenizer={tokenizer}, {texts}: {len(answers) / seconds:.0f} answers/s")


if __name__ == "__main__":
    main()
