"""Scores of generated text, which has one or several references: ROUGE, BLEU, METEOR, CIDEr, word vectors."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Collection, Sequence
from importlib.metadata import version
from importlib.util import find_spec
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np

from ..data.files import as_number, numbered_lines
from ..errors import UserError, require

NEEDS_JAVA = "needs Java"
# The signature of similarities with the input embeddings of the scored model.
OWN_VECTORS = "vectors:the model's input embeddings"
# Maps a text to (N, D): a vector for each of its words that has one.
Embed = Callable[[str], np.ndarray]
_Texts = Sequence[str]
_References = Sequence[Sequence[str]]
_ROUGE = ("rouge1", "rouge2", "rougeL", "rougeLsum")


def rouge(hypotheses: _Texts, references: _References) -> dict[str, float]:
    """The mean F-measure of ROUGE-1, -2, -L and -Lsum, in percent: rouge1, rouge2, rougel, rougelsum.

    Each measure takes the best reference. Words are runs of a–z and 0–9 with Porter's stemmer, as in rouge-score, so
    other scripts score 0. A sentence of Lsum ends at a line break, or where sentencex finds its end (English).
    """
    from rouge_score.rouge_scorer import RougeScorer
    from sentencex import segment

    def one_per_line(text: str) -> str:
        sentences = (sentence.strip() for line in text.split("\n") for sentence in segment("en", line))
        return "\n".join(filter(None, sentences))

    scorer = RougeScorer([*_ROUGE], use_stemmer=True)
    scores = [
        scorer.score_multi([one_per_line(text) for text in several], one_per_line(hypothesis))
        for hypothesis, several in zip(hypotheses, references, strict=True)
    ]
    return {name.lower(): sum(100 * score[name].fmeasure for score in scores) / len(scores) for name in _ROUGE}


def rouge_signature() -> str:
    """The settings and versions that make a ROUGE score comparable."""
    return f"rouge-score:{version('rouge-score')}|stem:yes|measure:f|refs:best|lsum:sentencex:{version('sentencex')}"


def dialogue_scores(hypotheses: _Texts, references: _References, quick: bool = False) -> dict[str, float | str]:
    """BLEU-1, BLEU-4, ROUGE-L and, unless `quick`, METEOR and CIDEr of replies, in percent; signatures.

    If METEOR or CIDEr cannot be computed, its score is a text with the reason ("needs Java", or the missing package).
    """
    scores: dict[str, float | str] = {}
    for order in (1, 4):
        scores[f"bleu{order}"], scores[f"bleu{order}_signature"] = bleu(hypotheses, references, order)
    scores |= {"rougel": rouge(hypotheses, references)["rougel"], "rougel_signature": rouge_signature()}
    for name, metric in () if quick else (("meteor", meteor), ("cider", cider)):
        try:
            scores[name] = metric(hypotheses, references)
        except UserError as error:
            scores[name] = str(error)
    return scores


def can_compute(reason: str) -> bool:
    """Whether a score that was replaced by `reason` can be computed now."""
    if reason.startswith(NEEDS_JAVA):
        return shutil.which("java") is not None
    return "pycocoevalcap" in reason and find_spec("pycocoevalcap") is not None


def bleu(hypotheses: _Texts, references: _References, order: int) -> tuple[float, str]:
    """Corpus BLEU of sacreBLEU with n-grams up to `order`, and its signature."""
    from sacrebleu.metrics.bleu import BLEU

    # sacreBLEU takes a list of all first references, a list of all second references, …, with None where there is none.
    streams: list[list[Any]] = [[*turn] for turn in zip_longest(*references)]
    # `force` stops sacreBLEU's warning about tokenized text, which PersonaChat is.
    metric = BLEU(max_ngram_order=order, force=True)
    return metric.corpus_score(list(hypotheses), streams).score, str(metric.get_signature())


def cider(hypotheses: _Texts, references: _References) -> float:
    """CIDEr of pycocoevalcap, times 100. Document frequencies are those of the references."""
    scorer = require("pycocoevalcap.cider.cider", "dialogue", "CIDEr").Cider()
    score, _ = scorer.compute_score(_coco(references), _coco([[text] for text in hypotheses]))
    return 100 * float(score)


def meteor(hypotheses: _Texts, references: _References) -> float:
    """METEOR 1.5 for English with the Java program of pycocoevalcap, times 100."""
    home = require("pycocoevalcap.meteor", "dialogue", "METEOR").__path__[0]
    if shutil.which("java") is None:
        raise UserError(NEEDS_JAVA)
    golds, guesses = _coco(references), _coco([[text] for text in hypotheses])
    # pycocoevalcap's own class leaves pipes open and hangs if Java fails; this is its command and protocol.
    command = ["java", "-jar", "-Xmx2G", str(Path(home) / "meteor-1.5.jar"), "-", "-", "-stdio", "-l", "en", "-norm"]

    def answers(count: int, *requests: list[str]) -> list[str]:
        lines = "".join(" ||| ".join(request) + "\n" for request in requests)
        java = subprocess.run(command, input=lines, capture_output=True, text=True, encoding="utf-8", errors="replace")
        found = java.stdout.split("\n")[:-1]
        if java.returncode or len(found) != count:
            message, *_ = (java.stderr or java.stdout).split("\n")
            raise UserError(f"{NEEDS_JAVA} that works; it printed: {message}")
        return found

    statistics = answers(len(golds), *(["SCORE", *golds[row], *guesses[row]] for row in golds))
    # One score per row, then the score of the corpus.
    return 100 * float(answers(len(golds) + 1, ["EVAL", *statistics])[-1])


def _coco(texts: _References) -> dict[int, list[str]]:
    """Texts as pycocoevalcap takes them: by number, on one line, without METEOR's separator."""
    return {row: [" ".join(text.replace("|||", " ").split()) for text in several] for row, several in enumerate(texts)}


def read_word_vectors(path: Path, words: Collection[str]) -> Embed:
    """Read the vectors of `words` in the text format of GloVe or word2vec, gzip or not; all values have to be finite.

    The first line of word2vec, two whole numbers, is skipped. Words may contain spaces; of duplicates the first counts.
    """
    vectors: dict[str, np.ndarray] = {}
    width = 0
    for number, line in numbered_lines(path):
        if number == 1 and len(line.split()) == 2:
            continue
        width = width or len(line.split()) - 1
        word, *numbers = line.rstrip().rsplit(" ", width)
        is_wanted = word in words and word not in vectors
        vector = [as_number(text) for text in numbers] if is_wanted else numbers
        if len(numbers) != width or not width or None in vector:
            raise UserError(f"{path}, line {number}: expected a word and {width} numbers")
        if is_wanted:
            vectors[word] = np.array(vector, dtype=np.float32)
    if not vectors:
        raise UserError(f"{path}: none of the {len(words)} words of the text has a vector there")
    return lambda text: np.array([vectors[word] for word in text.split() if word in vectors])


def embedding_scores(hypotheses: Sequence[str], references: Sequence[Sequence[str]], embed: Embed) -> dict[str, float]:
    """Mean similarity of hypotheses and references in percent, in three ways; of several references the best counts.

    They are those of Liu et al. 2016, "How NOT to evaluate your dialogue system".

    embedding_average: cosine of the mean vectors. embedding_extrema: cosine of the vectors with the value farthest
    from 0 in each dimension. embedding_greedy: cosine of each word with the nearest word of the other side, averaged
    over the words of a side, then over the sides. A side without vectors has similarity 0.
    """
    sums = np.zeros(3)
    for hypothesis, several in zip(hypotheses, references, strict=True):
        ours = embed(hypothesis).astype(np.float64)
        sums += np.max([_similarities(ours, embed(reference).astype(np.float64)) for reference in several], axis=0)
    names = ("embedding_average", "embedding_extrema", "embedding_greedy")
    return dict(zip(names, (100 * sums / len(hypotheses)).tolist(), strict=True))


def _similarities(ours: np.ndarray, theirs: np.ndarray) -> tuple[float, float, float]:
    """Average, extrema, greedy."""
    if not len(ours) or not len(theirs):
        return 0.0, 0.0, 0.0
    average = _unit(ours.mean(axis=0)) @ _unit(theirs.mean(axis=0))
    bounds = [(side.min(axis=0), side.max(axis=0)) for side in (ours, theirs)]
    one, other = (_unit(np.where(np.abs(low) > high, low, high)) for low, high in bounds)
    cosines = _unit(ours) @ _unit(theirs).T
    return average, one @ other, (cosines.max(axis=1).mean() + cosines.max(axis=0).mean()) / 2


def _unit(vectors: np.ndarray) -> np.ndarray:
    """`vectors` scaled to length 1; zero vectors stay."""
    norms = np.linalg.norm(vectors, axis=-1, keepdims=True)
    return vectors / np.where(norms > 0, norms, 1)
