"""Held-out texts: ROUGE and BLEU beside their references, to watch and not to train on."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn
from torchmetrics import MeanMetric, MetricCollection
from torchmetrics.functional.text import rouge_score
from torchmetrics.text import SacreBLEUScore

ROUGE = ("rouge1", "rouge2", "rougeL")


class TextOverlap(nn.Module):
    """Accumulates `rouge1`, `rouge2`, `rougeL` and `bleu`, all in [0, 1], over batches and ranks.

    ROUGE is the mean F-measure over texts: lower case, letters and digits of ASCII, no stemming. BLEU is that of the
    corpus, up to 4-grams, as sacrebleu's `-tok 13a -smooth none`: case counts, punctuation marks are words, and it is 0
    until one 4-gram is found.

    Edge cases:
        A rank may have no text. Without any, ROUGE is NaN and BLEU 0. Time is torchmetrics' Python loops: 500 pairs of
        200 words take about 12 s of one core, so evaluate some hundreds.

    >>> overlap = TextOverlap()
    >>> overlap.update(["the cat sat on the mat"], ["the cat sat on a mat"])
    >>> {name: round(value, 4) for name, value in overlap.compute().items()}  # 5/6, 3/5, 5/6, (5/6 3/5 2/4 1/3)^(1/4)
    {'rouge1': 0.8333, 'rouge2': 0.6, 'rougeL': 0.8333, 'bleu': 0.5373}

    Reference: Appendix B.3, MeetingBank.
    """

    def __init__(self) -> None:
        super().__init__()
        # Means, and not torchmetrics' ROUGEScore: its lists, one entry per text, cannot be gathered from ranks that
        # have different numbers of texts.
        self.rouge = MetricCollection({name: MeanMetric() for name in ROUGE}, compute_groups=False)
        self.bleu = SacreBLEUScore(tokenize="13a")

    def update(self, responses: Sequence[str | None], references: Sequence[str]) -> None:
        """Add texts, each beside its reference; None, where nothing was said, counts as the empty text."""
        if len(responses) != len(references):
            raise ValueError(f"expected as many references as responses, got {len(references)} and {len(responses)}")
        if not responses:
            return
        texts = [response or "" for response in responses]
        scores = rouge_score(texts, list(references), rouge_keys=ROUGE)
        for name in ROUGE:
            self.rouge[name].update(scores[f"{name}_fmeasure"], weight=len(texts))
        self.bleu.update(texts, [[reference] for reference in references])

    def compute(self) -> dict[str, float]:
        values = self.rouge.compute() | {"bleu": self.bleu.compute()}
        return {name: value.item() for name, value in values.items()}
