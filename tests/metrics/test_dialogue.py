"""Scores of replies against sacreBLEU, pycocoevalcap and counting by hand."""

import math
import shutil
import sys
from pathlib import Path

import pytest
import sacrebleu

from synthetic_attention.metrics.dialogue import NEEDS_JAVA, bleu, cider, dialogue_scores, meteor
from synthetic_attention.tasks import UserError

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
    assert "tok:13a" in signature
    assert "nrefs:var" in signature


def test_bleu_that_can_be_counted_by_hand() -> None:
    # 5 of 6 words, 4 of 5 pairs, 2 of 4 triples, 1 of 3 quadruples; as long as the reference.
    score, _ = bleu(["the cat sat on the mat"], [["the dog sat on the mat"]], 4)
    assert score == pytest.approx(100 * math.exp(sum(map(math.log, (5 / 6, 3 / 5, 2 / 4, 1 / 3))) / 4))
    # 3 of 3 words, half as long: the brevity penalty alone.
    assert bleu(["a b c"], [["a b c d e f"]], 1)[0] == pytest.approx(100 * math.exp(1 - 2))
    # The same words again are clipped.
    assert bleu(["the the the"], [["the cat"]], 1)[0] == pytest.approx(100 / 3)


def test_cider_is_pycocoevalcap() -> None:
    module = pytest.importorskip("pycocoevalcap.cider.cider", reason="pycocoevalcap is not installed")
    golds = {row: [" ".join(text.split()) for text in several] for row, several in enumerate(REFERENCES)}
    guesses = {row: [" ".join(text.replace("|||", " ").split())] for row, text in enumerate(HYPOTHESES)}
    expected, _ = module.Cider().compute_score(golds, guesses)
    assert cider(HYPOTHESES, REFERENCES) == pytest.approx(100 * expected, abs=1e-4)
    # Alone in its corpus an n-gram is in every document: all weights are 0.
    assert cider(["a b"], [["a b"]]) == 0
    # Of two texts that share nothing: cosine 1 for each order there is, 10 of 10.
    assert cider(["a b c d", "e f g h"], [["a b c d"], ["e f g h"]]) == pytest.approx(1000)


@pytest.mark.skipif(shutil.which("java") is None, reason="METEOR needs Java")
def test_meteor_is_pycocoevalcap() -> None:
    pytest.importorskip("pycocoevalcap.meteor", reason="pycocoevalcap is not installed")
    # What pycocoevalcap 1.2's own Meteor().compute_score gives for these texts, without "|||" and the line end.
    assert meteor(HYPOTHESES, REFERENCES) == pytest.approx(41.451852, abs=1e-4)


def _java_on_path(folder: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "java").write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    (folder / "java").chmod(0o755)
    monkeypatch.setenv("PATH", str(folder))


def test_without_java_the_rest_is_scored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pycocoevalcap.meteor", reason="pycocoevalcap is not installed")
    monkeypatch.setenv("PATH", str(tmp_path))
    scores = dialogue_scores(HYPOTHESES, REFERENCES)
    assert scores["meteor"] == NEEDS_JAVA == "needs Java"
    assert {name for name, score in scores.items() if isinstance(score, float)} == {"bleu1", "bleu4", "rougel", "cider"}
    _java_on_path(tmp_path, "echo no memory >&2", monkeypatch)
    assert dialogue_scores(["a"], [["a"]])["meteor"] == "needs Java that works; it said: no memory"


def test_without_pycocoevalcap_the_columns_name_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("pycocoevalcap.meteor", "pycocoevalcap.cider.cider"):
        monkeypatch.setitem(sys.modules, module, None)
    scores = dialogue_scores(HYPOTHESES, REFERENCES)
    for column, name in (("meteor", "METEOR"), ("cider", "CIDEr")):
        assert str(scores[column]).startswith(f"{name} needs pycocoevalcap")
        assert str(scores[column]).endswith("pip install -e '.[dialogue]'")
    with pytest.raises(UserError, match="which is not installed"):
        cider(["a"], [["a"]])


def test_nothing_generated_scores_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    scores = dialogue_scores(["", ""], [["a b"], ["c"]])
    assert scores["bleu1"] == scores["bleu4"] == scores["rougel"] == 0
    for metric in (cider, meteor):
        with pytest.raises(ValueError, match="at least one"):
            metric([], [])
