"""The generated phrases: held-out phrases are new, their parts are known, and the result is always the same."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from synthetic_attention.data.phrases import (
    TEMPLATES,
    UNSEEN_TEMPLATES,
    Pair,
    Phrase,
    all_values,
    make_phrases,
    write_phrases,
)
from synthetic_attention.errors import UserError
from synthetic_attention.tasks import example_data
from synthetic_attention.tasks.translation import Translation

pytest.importorskip("babel", reason="Babel is not installed")
SIZES = [(60, 6), (15_000, 500)]
SPLITS = ("train", "valid", "test", "test_templates")


@pytest.fixture(params=SIZES, scope="module")
def corpus(request: pytest.FixtureRequest) -> dict[str, tuple[Phrase, ...]]:
    return make_phrases(*request.param)


@pytest.fixture(scope="module")
def values() -> dict[str, list[Pair]]:
    return all_values()


def _words(texts: list[str]) -> set[str]:
    return {word for text in texts for word in re.findall(r"[^\W\d]+", text)}


def test_no_phrase_occurs_twice(corpus: dict[str, tuple[Phrase, ...]]) -> None:
    assert tuple(corpus) == SPLITS
    sizes = [len(phrases) for phrases in corpus.values()]
    assert (sizes[0], sizes[1]) in SIZES
    assert len({*sizes[1:]}) == 1
    for side in ("english", "german"):
        texts = Counter(getattr(phrase, side) for phrases in corpus.values() for phrase in phrases)
        assert max(texts.values()) == 1


def test_held_out_phrases_have_known_parts(corpus: dict[str, tuple[Phrase, ...]]) -> None:
    values = {split: {value for phrase in corpus[split] for value in phrase.values} for split in SPLITS}
    templates = {split: {phrase.template for phrase in corpus[split]} for split in SPLITS}
    assert values["valid"] | values["test"] | values["test_templates"] <= values["train"]
    assert templates["valid"] | templates["test"] <= templates["train"]
    assert not templates["test_templates"] & templates["train"]
    for side in ("english", "german"):
        words = {split: _words([getattr(phrase, side) for phrase in corpus[split]]) for split in SPLITS}
        assert words["test_templates"] <= words["train"]


def test_the_whole_corpus_uses_every_template_and_value(values: dict[str, list[Pair]]) -> None:
    corpus = make_phrases()
    assert {phrase.template for phrase in corpus["train"]} == set(TEMPLATES)
    assert {phrase.template for phrase in corpus["test_templates"]} == set(UNSEEN_TEMPLATES)
    every = {(kind, pair) for kind, pairs in values.items() for pair in pairs}
    assert {value for phrase in corpus["train"] for value in phrase.values} == every


def test_phrases_are_plain_lines(corpus: dict[str, tuple[Phrase, ...]]) -> None:
    for phrases in corpus.values():
        for text in (text for phrase in phrases for text in (phrase.english, phrase.german)):
            assert not re.search(r"[\s\u00ad{}\[\]]", text.replace(" ", "")), text
            assert text == " ".join(text.split(" ")).strip()
            assert not text[0].islower(), text


def test_values_are_written_as_each_language_does(values: dict[str, list[Pair]]) -> None:
    assert ("Germany", "Deutschland") in values["country"]
    assert ("Vienna", "Wien") in values["city"]
    assert ("Tuesday", "Dienstag") in values["weekday"]
    for english, german in values["money"]:
        figure = re.search(r"[\d.,]+", english)
        assert figure is not None
        assert figure[0].translate(str.maketrans(",.", ".,")) in german
    for kind in ("date", "day", "month_year", "duration", "ago"):
        for english, german in values[kind]:
            assert sorted(re.findall(r"\d+", english)) == sorted(re.findall(r"\d+", german))
    for english, german in values["time"]:
        hour, minute, half = re.fullmatch(r"(\d+):(\d\d) ([AP])M", english).groups()  # type: ignore[union-attr]
        assert german == f"{int(hour) % 12 + 12 * (half == 'P'):02}:{minute}"


@pytest.mark.slow
def test_the_files_do_not_depend_on_the_hash_seed(tmp_path: Path) -> None:
    module = "synthetic_attention.data.phrases"
    code = f"import pathlib, {module} as phrases; phrases.write_phrases(pathlib.Path('other'), 400, 9)"
    environment = {**os.environ, "PYTHONHASHSEED": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", code], check=True, cwd=tmp_path, env=environment)
    write_phrases(tmp_path / "own", 400, 9)
    one, other = ({path.name: path.read_bytes() for path in (tmp_path / name).iterdir()} for name in ("own", "other"))
    assert one == other
    assert {*one} == {f"{split}.{language}" for split in SPLITS for language in ("en", "de")}


def test_other_files_and_impossible_sizes_are_refused(tmp_path: Path) -> None:
    write_phrases(tmp_path, 60, 6)
    test = make_phrases(60, 6)["test"]
    assert (tmp_path / "test.en").read_text("utf-8").splitlines() == [phrase.english for phrase in test]
    write_phrases(tmp_path, 60, 6)
    (tmp_path / "test.de").write_text("mine\n")
    with pytest.raises(UserError, match=r"test\.de"):
        write_phrases(tmp_path, 60, 6)
    assert (tmp_path / "test.de").read_text() == "mine\n"
    for train, held_out in ((49, 5), (60, 0), (100, 100)):
        with pytest.raises(UserError, match="phrases"):
            make_phrases(train, held_out)


def test_translation_without_data_uses_the_phrases(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder, options = example_data("translation") or (tmp_path, {})
    assert folder.is_relative_to(tmp_path)
    assert example_data("translation") == (folder, options)
    task = Translation.from_options(options)
    assert [len(task.read(folder, split)) for split in SPLITS] == [15_000, 500, 500, 500]
