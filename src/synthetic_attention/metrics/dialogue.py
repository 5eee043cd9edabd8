"""Scores of dialogue replies: BLEU-1, BLEU-4, ROUGE-L, METEOR, CIDEr. Embedding similarity is in `embeddings.py`."""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Sequence
from pathlib import Path
from subprocess import PIPE, Popen
from tempfile import TemporaryFile
from typing import Any

from sacrebleu.metrics.bleu import BLEU

from ..errors import UserError
from ..tasks.extras import require
from .checks import check_references
from .rouge import rouge_l, rouge_signature

__all__ = ["NEEDS_JAVA", "bleu", "cider", "dialogue_scores", "is_mended", "meteor", "quick_scores"]

NEEDS_JAVA = "needs Java"
_Texts = Sequence[str]


def dialogue_scores(hypotheses: _Texts, references: Sequence[_Texts]) -> dict[str, float | str]:
    """`quick_scores`, METEOR and CIDEr of replies, in percent.

    A score that cannot be computed here is a text that says why: "needs Java" for METEOR, or which extra to install for
    METEOR and CIDEr. The rest is there all the same.

    Raises:
        ValueError: not as many hypotheses as lists of references, none at all, or a hypothesis without reference.
    """
    scores = quick_scores(hypotheses, references)
    for name, metric in (("meteor", meteor), ("cider", cider)):
        try:
            scores[name] = metric(hypotheses, references)
        except UserError as error:
            scores[name] = str(error)
    return scores


def quick_scores(hypotheses: _Texts, references: Sequence[_Texts]) -> dict[str, float | str]:
    """BLEU-1, BLEU-4 and ROUGE-L of replies, in percent, with their signatures: what takes no time.

    Raises:
        ValueError: as in `dialogue_scores`.
    """
    scores: dict[str, float | str] = {}
    for order in (1, 4):
        scores[f"bleu{order}"], scores[f"bleu{order}_signature"] = bleu(hypotheses, references, order)
    return {**scores, "rougel": rouge_l(hypotheses, references), "rougel_signature": rouge_signature()}


def bleu(hypotheses: _Texts, references: Sequence[_Texts], order: int) -> tuple[float, str]:
    """Corpus BLEU with n-grams up to `order`, sacreBLEU's, and its signature.

    Raises:
        ValueError: as in `dialogue_scores`.
    """
    check_references(hypotheses, references)
    # sacreBLEU wants one list for the first references of all hypotheses, one for the second, …; None is no reference.
    most = max(map(len, references))
    streams: list[list[Any]] = [
        [several[turn] if turn < len(several) else None for several in references] for turn in range(most)
    ]
    # `force` keeps sacreBLEU from warning of tokenized text, which PersonaChat is.
    metric = BLEU(max_ngram_order=order, force=True)
    return metric.corpus_score(list(hypotheses), streams).score, str(metric.get_signature())


def cider(hypotheses: _Texts, references: Sequence[_Texts]) -> float:
    """CIDEr, pycocoevalcap's, times 100.

    Document frequencies are those of the references; words are what spaces divide.

    Raises:
        UserError: pycocoevalcap is not installed.
        ValueError: as in `dialogue_scores`.
    """
    check_references(hypotheses, references)
    scorer = require("pycocoevalcap.cider.cider", "dialogue", "CIDEr").Cider()
    score, _ = scorer.compute_score(*_coco(hypotheses, references))
    return 100 * float(score)


def is_mended(reason: str) -> bool:
    """Whether there is by now what a score was not computed for want of; a Java that does not work is not looked at."""
    if reason == NEEDS_JAVA:
        return shutil.which("java") is not None
    return "which is not installed" in reason and importlib.util.find_spec("pycocoevalcap") is not None


def meteor(hypotheses: _Texts, references: Sequence[_Texts]) -> float:
    """METEOR 1.5 for English, as pycocoevalcap runs it, times 100. It is written in Java.

    Raises:
        UserError: pycocoevalcap is not installed; or there is no Java ("needs Java"), or it does not work.
        ValueError: as in `dialogue_scores`.
    """
    check_references(hypotheses, references)
    home = require("pycocoevalcap.meteor", "dialogue", "METEOR").__path__[0]
    if shutil.which("java") is None:
        raise UserError(NEEDS_JAVA)
    golds, guesses = _coco(hypotheses, references)
    # pycocoevalcap's own class leaves pipes open, and hangs where Java fails; these are its command and its questions.
    command = ["java", "-jar", "-Xmx2G", str(Path(home) / "meteor-1.5.jar"), "-", "-", "-stdio", "-l", "en", "-norm"]
    with TemporaryFile() as errors:
        try:
            with Popen(command, stdin=PIPE, stdout=PIPE, stderr=errors, text=True, encoding="utf-8") as java:
                rows = [_ask(java, "SCORE", *golds[row], *guesses[row])[0] for row in golds]
                # A score for each row, then that of the corpus.
                return 100 * float(_ask(java, "EVAL", *rows, answers=len(rows) + 1)[-1])
        # Java ended: what is written to it goes nowhere, and an empty line comes back.
        except (BrokenPipeError, ValueError):
            errors.seek(0)
            said = errors.read().decode(errors="replace").split("\n")[0]
            raise UserError(f"{NEEDS_JAVA} that works; it said: {said}") from None


def _ask(java: Popen[str], *words: str, answers: int = 1) -> list[str]:
    """The lines with which METEOR answers a line."""
    assert java.stdin is not None
    assert java.stdout is not None
    java.stdin.write(" ||| ".join(words) + "\n")
    java.stdin.flush()
    return [java.stdout.readline().strip() for _ in range(answers)]


def _coco(hypotheses: _Texts, references: Sequence[_Texts]) -> tuple[dict[int, list[str]], dict[int, list[str]]]:
    """References and hypotheses as pycocoevalcap takes them: by number, on one line, without METEOR's separator."""

    def clean(text: str) -> str:
        return " ".join(text.replace("|||", " ").split())

    golds = {row: [clean(text) for text in several] for row, several in enumerate(references)}
    return golds, {row: [clean(text)] for row, text in enumerate(hypotheses)}
