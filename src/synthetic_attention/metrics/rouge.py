"""ROUGE for summaries: rouge-score, with stemming, best of several references."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import version

from rouge_score.rouge_scorer import RougeScorer
from sentencex import segment

from .checks import check_references

__all__ = ["rouge", "rouge_l", "rouge_l_per_example", "rouge_per_example", "rouge_signature", "split_sentences"]

_TYPES = {"rouge1": "rouge1", "rouge2": "rouge2", "rougeL": "rougel", "rougeLsum": "rougelsum"}


def split_sentences(text: str) -> list[str]:
    """Sentences, the units of ROUGE-Lsum: a line break ends one, within a line sentencex finds the ends (English)."""
    pieces = (piece.strip() for line in text.split("\n") for piece in segment("en", line))
    return [piece for piece in pieces if piece]


def rouge_per_example(hypotheses: Sequence[str], references: Sequence[Sequence[str]]) -> list[dict[str, float]]:
    """F-measure of ROUGE-1, -2, -L and -Lsum of each hypothesis, in percent, under rouge1, rouge2, rougel, rougelsum.

    Of several references the best one counts, for each measure its own. For Lsum, texts are cut with `split_sentences`;
    the other measures do not see sentences. The words are rouge-score's: runs of a–z and 0–9, stemmed with Porter's
    stemmer, so other scripts score 0.

    Raises:
        ValueError: not as many hypotheses as lists of references, none at all, or a hypothesis without reference.
    """
    check_references(hypotheses, references)
    scorer = RougeScorer([*_TYPES], use_stemmer=True)
    scores = []
    for hypothesis, several in zip(hypotheses, references, strict=True):
        lines = "\n".join(split_sentences(hypothesis))
        best = scorer.score_multi(["\n".join(split_sentences(text)) for text in several], lines)
        scores.append({ours: 100 * best[theirs].fmeasure for theirs, ours in _TYPES.items()})
    return scores


def rouge(hypotheses: Sequence[str], references: Sequence[Sequence[str]]) -> dict[str, float]:
    """Means of `rouge_per_example` over the hypotheses.

    Raises:
        ValueError: as there.
    """
    scores = rouge_per_example(hypotheses, references)
    return {name: sum(score[name] for score in scores) / len(scores) for name in scores[0]}


def rouge_l_per_example(hypotheses: Sequence[str], references: Sequence[Sequence[str]]) -> list[float]:
    """ROUGE-L alone of each hypothesis; see `rouge_per_example`.

    Raises:
        ValueError: as there.
    """
    check_references(hypotheses, references)
    scorer = RougeScorer(["rougeL"], use_stemmer=True)
    pairs = zip(hypotheses, references, strict=True)
    return [100 * scorer.score_multi(several, one)["rougeL"].fmeasure for one, several in pairs]


def rouge_l(hypotheses: Sequence[str], references: Sequence[Sequence[str]]) -> float:
    """The mean of `rouge_l_per_example`.

    Raises:
        ValueError: as there.
    """
    return sum(rouge_l_per_example(hypotheses, references)) / len(hypotheses)


def rouge_signature() -> str:
    """What makes a ROUGE score comparable."""
    return f"rouge-score:{version('rouge-score')}|stem:yes|measure:f|refs:best|lsum:sentencex:{version('sentencex')}"
