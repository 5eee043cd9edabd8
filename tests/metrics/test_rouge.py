"""ROUGE against rouge-score itself and against counting by hand."""

import pytest
from rouge_score.rouge_scorer import RougeScorer

from synthetic_attention.metrics.rouge import rouge, rouge_l, rouge_per_example, rouge_signature, split_sentences

# Empty, one word, several references, non-ASCII, stems, lines.
HYPOTHESES = [
    "the cats sat on the mats",
    "",
    "word",
    "Le café de Zoë ferme à minuit",
    "A first line.\nThe second one",
    "nothing alike",
    "数える",
]
REFERENCES = [
    ["The cat is sitting on a mat", "cats sat on mats", "a dog"],
    ["something"],
    ["word"],
    ["Le café de Zoë ouvre à midi", "Chez Zoë"],
    ["The second one.\nA first line came."],
    [""],
    ["数える"],
]
NAMES = {"rouge1": "rouge1", "rouge2": "rouge2", "rougeL": "rougel", "rougeLsum": "rougelsum"}


def test_every_measure_equals_rouge_score_and_the_best_reference_counts() -> None:
    scorer = RougeScorer([*NAMES], use_stemmer=True)
    mine = rouge_per_example(HYPOTHESES, REFERENCES)
    for row, (hypothesis, several) in enumerate(zip(HYPOTHESES, REFERENCES, strict=True)):
        # None of these texts has two sentences on a line, so rouge-score's own splitting at line ends is the same.
        theirs = [scorer.score(reference, hypothesis) for reference in several]
        for name, ours in NAMES.items():
            assert mine[row][ours] == pytest.approx(100 * max(score[name].fmeasure for score in theirs), abs=1e-4)
    means = rouge(HYPOTHESES, REFERENCES)
    for ours in NAMES.values():
        assert means[ours] == pytest.approx(sum(score[ours] for score in mine) / len(mine))
    assert rouge_l(HYPOTHESES, REFERENCES) == pytest.approx(means["rougel"])


def test_scores_that_can_be_counted_by_hand() -> None:
    # 3 of 3 and 3 of 6 words, 2 of 2 and 2 of 5 pairs, a common subsequence of 3.
    scores = rouge(["the cat sat"], [["the cat sat on the mat"]])
    assert scores["rouge1"] == pytest.approx(100 * 6 / 9)
    assert scores["rouge2"] == pytest.approx(100 * 4 / 7)
    assert scores["rougel"] == pytest.approx(100 * 6 / 9)
    # Swapped sentences: L sees one of the two, Lsum both.
    swapped = rouge(["We ran home. It was dark."], [["It was dark. We ran home."]])
    assert swapped["rougel"] == pytest.approx(50)
    assert swapped["rougelsum"] == pytest.approx(100)
    # Stemming: ran/running are different stems, walk/walking/walks one.
    assert rouge(["he walks"], [["he was walking"]])["rouge1"] == pytest.approx(100 * 4 / 5)


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("One here. Two there!  Three?", ["One here.", "Two there!", "Three?"]),
        ("tokenized text . it goes on .", ["tokenized text .", "it goes on ."]),
        ("A line\nand another. And more", ["A line", "and another.", "And more"]),
        ("Mr. Lee met the U.S. envoy. He left.", ["Mr. Lee met the U.S. envoy.", "He left."]),
        (" \n ", []),
        ("", []),
    ],
)
def test_sentences(text: str, sentences: list[str]) -> None:
    assert split_sentences(text) == sentences


def test_what_cannot_be_scored_is_refused() -> None:
    with pytest.raises(ValueError, match="got 1 predictions and 2 references"):
        rouge(["a"], [["a"], ["b"]])
    with pytest.raises(ValueError, match="and at least one"):
        rouge([], [])
    with pytest.raises(ValueError, match=r"got references\[1\]='b'; expected a list"):
        rouge(["a", "b"], [["a"], "b"])
    with pytest.raises(ValueError, match=r"got references\[0\]=\[\]"):
        rouge_l(["a"], [[]])


def test_the_signature_says_what_was_scored() -> None:
    assert rouge_signature().startswith("rouge-score:0.1.2|stem:yes|measure:f|refs:best|lsum:sentencex:")
