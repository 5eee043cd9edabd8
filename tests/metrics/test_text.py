"""Scores of text against rouge-score, sacreBLEU, pycocoevalcap and counting by hand; small word vectors."""

import gzip
import math
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import sacrebleu
from rouge_score.rouge_scorer import RougeScorer

from synthesizer_lab.metrics.text import (
    NEEDS_JAVA,
    bleu,
    can_compute,
    cider,
    dialogue_scores,
    embedding_scores,
    meteor,
    read_word_vectors,
    rouge,
    rouge_signature,
)
from synthesizer_lab.tasks import UserError

# Empty, one word, several references, non-ASCII, stems, lines.
SUMMARIES = ["the cats sat on the mats", "", "Le café de Zoë ferme à minuit", "A first line.\nThe second one", "数える"]
SUMMARY_REFERENCES = [
    ["The cat is sitting on a mat", "cats sat on mats", "a dog"],
    ["something"],
    ["Le café de Zoë ouvre à midi", "Chez Zoë"],
    ["The second one.\nA first line came."],
    ["数える"],
]
NAMES = {"rouge1": "rouge1", "rouge2": "rouge2", "rougeL": "rougel", "rougeLsum": "rougelsum"}


def test_every_measure_equals_rouge_score_and_the_best_reference_counts() -> None:
    scorer = RougeScorer([*NAMES], use_stemmer=True)
    mine = [rouge([text], [several]) for text, several in zip(SUMMARIES, SUMMARY_REFERENCES, strict=True)]
    for row, (hypothesis, several) in enumerate(zip(SUMMARIES, SUMMARY_REFERENCES, strict=True)):
        # None of these texts has two sentences on a line, so rouge-score's own splitting at line ends is the same.
        theirs = [scorer.score(reference, hypothesis) for reference in several]
        for name, ours in NAMES.items():
            assert mine[row][ours] == pytest.approx(100 * max(score[name].fmeasure for score in theirs), abs=1e-4)
    assert rouge_signature().startswith("rouge-score:0.1.2|stem:yes|measure:f|refs:best|lsum:sentencex:")
    means = rouge(SUMMARIES, SUMMARY_REFERENCES)
    for ours in NAMES.values():
        assert means[ours] == pytest.approx(sum(score[ours] for score in mine) / len(mine))


def test_sentences_are_found_for_lsum() -> None:
    # L sees one of two swapped sentences, Lsum both.
    swapped = rouge(["We ran home. It was dark."], [["It was dark. We ran home."]])
    assert swapped["rougel"] == pytest.approx(50)
    assert swapped["rougelsum"] == pytest.approx(100)


# Empty, one word, several references, non-ASCII, METEOR's separator and its line end.
HYPOTHESES = ["the cat sat on the mat", "", "one", "naïve café zoë .", "a ||| b\nc", "i like red boats a lot"]
REFERENCES = [
    ["the cat is on the mat", "a cat sat there", "there is a cat on the mat"],
    ["something was said"],
    ["one", "one two"],
    ["naïve café zoë ."],
    ["a b c d"],
    ["i like blue boats a lot"],
]


@pytest.mark.parametrize("order", [1, 4])
def test_bleu_is_sacrebleu(order: int) -> None:
    streams = [[several[turn] if turn < len(several) else None for several in REFERENCES] for turn in range(3)]
    expected = sacrebleu.BLEU(max_ngram_order=order).corpus_score(HYPOTHESES, streams)
    score, signature = bleu(HYPOTHESES, REFERENCES, order)
    assert score == pytest.approx(expected.score, abs=1e-4)
    assert all(part in signature for part in ("tok:13a", "nrefs:var"))


def test_cider_is_pycocoevalcap() -> None:
    module = pytest.importorskip("pycocoevalcap.cider.cider", reason="pycocoevalcap is not installed")
    golds = {row: [" ".join(text.split()) for text in several] for row, several in enumerate(REFERENCES)}
    guesses = {row: [" ".join(text.replace("|||", " ").split())] for row, text in enumerate(HYPOTHESES)}
    expected, _ = module.Cider().compute_score(golds, guesses)
    assert cider(HYPOTHESES, REFERENCES) == pytest.approx(100 * expected, abs=1e-4)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("java") is None, reason="METEOR needs Java")
def test_meteor_is_pycocoevalcap() -> None:
    pytest.importorskip("pycocoevalcap.meteor", reason="pycocoevalcap is not installed")
    # What pycocoevalcap 1.2's own Meteor().compute_score gives for these texts, without "|||" and the line end.
    assert meteor(HYPOTHESES, REFERENCES) == pytest.approx(41.451852, abs=1e-4)


def test_without_java_the_rest_is_scored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pycocoevalcap.meteor", reason="pycocoevalcap is not installed")
    monkeypatch.setenv("PATH", str(tmp_path))
    scores = dialogue_scores(HYPOTHESES, REFERENCES)
    assert scores["meteor"] == NEEDS_JAVA == "needs Java"
    assert {name for name, score in scores.items() if isinstance(score, float)} == {"bleu1", "bleu4", "rougel", "cider"}
    (tmp_path / "java").write_text("#!/bin/sh\necho hello\n", encoding="utf-8")
    (tmp_path / "java").chmod(0o755)
    assert can_compute("needs Java")
    assert can_compute("CIDEr needs pycocoevalcap, which is not installed")
    assert not can_compute("not a finite number")
    assert dialogue_scores(HYPOTHESES, REFERENCES)["meteor"] == "needs Java that works; it printed: hello"


def test_without_pycocoevalcap_the_columns_name_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("pycocoevalcap.meteor", "pycocoevalcap.cider.cider"):
        monkeypatch.setitem(sys.modules, module, None)
    scores = dialogue_scores(HYPOTHESES, REFERENCES)
    for column, name in (("meteor", "METEOR"), ("cider", "CIDEr")):
        assert all(fact in str(scores[column]) for fact in (name, "pycocoevalcap", "[dialogue]"))


VECTORS = {"east": (1, 0), "north": (0, 1), "west": (-1, 0), "diagonal": (3, 3), "zoë": (0, 2), "none": (0, 0)}
HALF = 1 / math.sqrt(2)


def _embed(text: str) -> np.ndarray:
    return np.array([VECTORS[word] for word in text.split() if word in VECTORS])


@pytest.mark.parametrize(
    ("hypothesis", "references", "scores"),
    [
        # The same words in any order; one word, and one that is longer in the same direction; opposites.
        ("east north", ["north east"], (100, 100, 100)),
        ("north", ["zoë"], (100, 100, 100)),
        ("east", ["west"], (-100, -100, -100)),
        # Means (½, ½) and (0, 1). Extrema (1, 1) and (0, 1). Greedy: (0 + 1) / 2 one way, 1 the other.
        ("east north", ["north"], (100 * HALF, 100 * HALF, 75)),
        # Mean (0, 0) has no direction. Extrema: of 1 and −1, which are as far from 0, the positive one.
        # Greedy: (1 − 1) / 2 one way, 1 the other.
        ("east west", ["east"], (0, 100, 50)),
        # The value farthest from 0 is negative: −1 of (0, −1). Greedy: (0 − 1) / 2 one way, 0 the other.
        ("north west", ["east"], (-100 * HALF, -100 * HALF, -25)),
        # Words without vector are left out, and empty sides score 0.
        ("unknown east", ["east other"], (100, 100, 100)),
        ("", ["east"], (0, 0, 0)),
        ("east", [""], (0, 0, 0)),
        ("none", ["east"], (0, 0, 0)),
        # The best reference counts.
        ("east", ["west", "diagonal", "unknown"], (100 * HALF,) * 3),
    ],
)
def test_similarities_by_hand(hypothesis: str, references: list[str], scores: tuple[float, ...]) -> None:
    found = embedding_scores([hypothesis], [references], _embed)
    assert [*found] == ["embedding_average", "embedding_extrema", "embedding_greedy"]
    assert [*found.values()] == pytest.approx(scores)
    twice = embedding_scores([hypothesis, "east"], [references, ["east"]], _embed)
    assert [*twice.values()] == pytest.approx([(score + 100) / 2 for score in scores])


def test_both_text_formats_packed_or_not(tmp_path: Path) -> None:
    lines = "zoë 0.5 -1 2e-1\n. . 1 2 3\nthe 1 1 1\nzoë 9 9 9\n"
    (tmp_path / "glove.txt").write_text(lines, encoding="utf-8")
    (tmp_path / "word2vec.txt.gz").write_bytes(gzip.compress(f"4 3\n{lines}".encode()))
    for name in ("glove.txt", "word2vec.txt.gz"):
        embed = read_word_vectors(tmp_path / name, {"zoë", "the", "nobody"})
        np.testing.assert_allclose(embed("the zoë nobody . ."), [[1, 1, 1], [0.5, -1, 0.2]])
        assert len(embed("nobody")) == 0
    with pytest.raises(UserError, match="none of the 1 words of the text has a vector there"):
        read_word_vectors(tmp_path / "glove.txt", {"other"})


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("a 1 2\nb 1\n", "line 2: expected a word and 2 numbers"),
        *((f"a 1 2\nb {value} 1\n", "line 2: expected a word and 2 numbers") for value in ("x", "nan", "1e400")),
        ("alone\n", "line 1: expected a word and 0 numbers"),
    ],
)
def test_malformed_vectors_name_the_line(tmp_path: Path, lines: str, message: str) -> None:
    (tmp_path / "v.txt").write_text(lines, encoding="utf-8")
    with pytest.raises(UserError, match=f"v.txt, {message}"):
        read_word_vectors(tmp_path / "v.txt", {"a", "b"})
