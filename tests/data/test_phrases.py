"""The generated phrases: held-out phrases are new, their parts are known, and the result is always the same."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

from synthesizer_lab.data.phrases import Phrase, make_phrases, write_phrases
from synthesizer_lab.errors import UserError
from synthesizer_lab.tasks import example_data, make_task

pytest.importorskip("babel", reason="Babel is not installed")
SIZES = [(60, 6), (15_000, 500)]
SPLITS = ("train", "valid", "test", "test_templates")


@pytest.fixture(params=SIZES, scope="module")
def corpus(request: pytest.FixtureRequest) -> dict[str, tuple[Phrase, ...]]:
    return make_phrases(*request.param)


def _words(texts: list[str]) -> set[str]:
    return {word for text in texts for word in re.findall(r"[^\W\d]+", text)}


def test_no_phrase_occurs_twice(corpus: dict[str, tuple[Phrase, ...]]) -> None:
    assert tuple(corpus) == SPLITS
    sizes = [len(phrases) for phrases in corpus.values()]
    assert (sizes[0], sizes[1]) in SIZES
    assert len({*sizes[1:]}) == 1
    for side in ("english", "german"):
        assert max(Counter(getattr(phrase, side) for phrases in corpus.values() for phrase in phrases).values()) == 1


def test_held_out_phrases_combine_known_parts(corpus: dict[str, tuple[Phrase, ...]]) -> None:
    """New sentences: `train` has the frame, the clause, all values and words, but never this frame with this clause."""
    train = corpus["train"]
    values = {value for phrase in train for value in phrase.values}
    combinations = {(phrase.frame, phrase.clause) for phrase in train}
    frames, clauses = map(set, zip(*combinations, strict=True))
    words = _words([text for phrase in train for text in (phrase.english, phrase.german)])
    for split in SPLITS[1:]:
        for phrase in corpus[split]:
            assert values.issuperset(phrase.values)
            assert phrase.frame in frames
            assert phrase.clause in clauses
            assert _words([phrase.english, phrase.german]) <= words
            assert ((phrase.frame, phrase.clause) in combinations) == (split != "test_templates")


def test_other_files_and_impossible_sizes_are_refused(tmp_path: Path) -> None:
    write_phrases(tmp_path, 60, 6)
    test = make_phrases(60, 6)["test"]
    assert (tmp_path / "test.en").read_text("utf-8").splitlines() == [phrase.english for phrase in test]
    write_phrases(tmp_path, 60, 6)
    (tmp_path / "test.de").write_text("mine\n")
    with pytest.raises(UserError, match=r"test\.de"):
        write_phrases(tmp_path, 60, 6)
    assert (tmp_path / "test.de").read_text() == "mine\n"
    with pytest.raises(UserError, match="phrases"):
        make_phrases(100, 500)


def test_translation_without_data_uses_the_phrases(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder, options = example_data("translation") or (tmp_path, {})
    assert folder.is_relative_to(tmp_path)
    assert example_data("translation") == (folder, options)
    task = make_task("translation", options)
    assert [len(task.records(folder, split).load()) for split in SPLITS] == [15_000, 500, 500, 500]
