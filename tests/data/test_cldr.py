"""The corpus made from locale data: what is held out is new, what it is made of is known, and it is always the same."""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from string import Formatter

import pytest

from synthetic_attention.data.cldr import names
from synthetic_attention.data.cldr.corpus import Phrase, make_corpus, write_cldr_corpus
from synthetic_attention.data.cldr.nouns import NOUNS
from synthetic_attention.data.cldr.templates import TEMPLATES, UNSEEN_TEMPLATES, Pair
from synthetic_attention.data.cldr.values import all_values
from synthetic_attention.tasks import UserError
from synthetic_attention.tasks.translation import Translation

SIZES = [(60, 6), (400, 40), (15_000, 500)]


@pytest.fixture(params=SIZES, ids=["60", "400", "15000"], scope="module")
def corpus(request: pytest.FixtureRequest) -> dict[str, tuple[Phrase, ...]]:
    return make_corpus(*request.param)


@pytest.fixture(scope="module")
def values() -> dict[str, list[Pair]]:
    return all_values(1)


def _words(texts: list[str]) -> set[str]:
    return {word for text in texts for word in re.findall(r"[^\W\d]+", text)}


def test_the_splits_have_the_sizes_asked_for(corpus: dict[str, tuple[Phrase, ...]]) -> None:
    sizes = {split: len(phrases) for split, phrases in corpus.items()}
    held_out = sizes["test"]
    assert (sizes["train"], held_out) in SIZES
    assert sizes == {"train": sizes["train"], "valid": held_out, "test": held_out, "test_templates": held_out}


def test_no_phrase_is_there_twice_in_either_language(corpus: dict[str, tuple[Phrase, ...]]) -> None:
    phrases = [phrase for split in corpus.values() for phrase in split]
    for side in ("english", "german"):
        most = Counter(getattr(phrase, side) for phrase in phrases).most_common(1)
        assert most[0][1] == 1, most


@pytest.mark.parametrize("split", ["valid", "test", "test_templates"])
def test_every_value_held_out_is_seen_in_training(corpus: dict[str, tuple[Phrase, ...]], split: str) -> None:
    seen = {value for phrase in corpus["train"] for value in phrase.values}
    assert {value for phrase in corpus[split] for value in phrase.values} <= seen


def test_only_the_last_split_has_templates_that_training_has_not(corpus: dict[str, tuple[Phrase, ...]]) -> None:
    templates = {split: {phrase.template for phrase in phrases} for split, phrases in corpus.items()}
    assert templates["valid"] | templates["test"] <= templates["train"]
    assert not templates["test_templates"] & templates["train"]


def test_unseen_templates_have_no_word_that_training_has_not(corpus: dict[str, tuple[Phrase, ...]]) -> None:
    for side in ("english", "german"):
        words = {split: _words([getattr(phrase, side) for phrase in phrases]) for split, phrases in corpus.items()}
        assert words["test_templates"] <= words["train"]


def test_the_whole_corpus_uses_every_template_and_every_value(values: dict[str, list[Pair]]) -> None:
    corpus = make_corpus()
    assert {phrase.template for phrase in corpus["train"]} == set(TEMPLATES)
    assert {phrase.template for phrase in corpus["test_templates"]} == set(UNSEEN_TEMPLATES)
    assert {value for phrase in corpus["train"] for value in phrase.values} == {
        (kind, pair) for kind, pairs in values.items() for pair in pairs
    }


def test_phrases_are_plain_lines(corpus: dict[str, tuple[Phrase, ...]]) -> None:
    for phrases in corpus.values():
        for text in (text for phrase in phrases for text in (phrase.english, phrase.german)):
            assert text == " ".join(text.split(" ")).strip()
            assert not re.search(r"[\s\u00ad{}]", text.replace(" ", "")), text
            assert not text[0].islower(), text


@pytest.mark.parametrize("template", TEMPLATES + UNSEEN_TEMPLATES, ids=lambda pair: pair[0])
def test_both_sides_of_a_template_have_the_same_slots(values: dict[str, list[Pair]], template: Pair) -> None:
    english, german = (sorted(slot for _, slot, _, _ in Formatter().parse(text) if slot) for text in template)
    assert english == german
    assert len(set(english)) == len(english)
    assert {slot.rstrip("0123456789") for slot in english} <= set(values)


def test_templates_and_nouns_are_distinct() -> None:
    assert len({pair[0] for pair in TEMPLATES + UNSEEN_TEMPLATES}) == len(TEMPLATES + UNSEEN_TEMPLATES) > 200
    for pairs in NOUNS.values():
        assert len({pair[0] for pair in pairs}) == len(pairs)


@pytest.mark.parametrize("kind", ["number", "count", "percent", "money", "amount"])
def test_german_swaps_point_and_comma(values: dict[str, list[Pair]], kind: str) -> None:
    swap = str.maketrans(",.", ".,")
    for english, german in values[kind]:
        figure = re.search(r"[\d.,]+", english)
        assert figure is not None
        assert figure[0].translate(swap) in german


@pytest.mark.parametrize("kind", ["date", "full_date", "day", "month_year", "duration", "temperature", "ago"])
def test_both_languages_write_the_same_figures(values: dict[str, list[Pair]], kind: str) -> None:
    for english, german in values[kind]:
        assert sorted(re.findall(r"\d+", english)) == sorted(re.findall(r"\d+", german))


def test_times_are_the_same_on_both_clocks(values: dict[str, list[Pair]]) -> None:
    for english, german in values["time"]:
        hour, minute, half = re.fullmatch(r"(\d+):(\d\d) ([AP])M", english).groups()  # type: ignore[union-attr]
        assert german == f"{int(hour) % 12 + 12 * (half == 'P'):02}:{minute}"


def test_values_come_from_the_locale_data(values: dict[str, list[Pair]]) -> None:
    assert ("Germany", "Deutschland") in values["country"]
    assert ("Vienna", "Wien") in values["city"]
    assert ("Tuesday", "Dienstag") in values["weekday"]
    assert len(values["place"]) > len(values["country"]) > 100


def test_the_hash_seed_of_python_changes_nothing(tmp_path: Path) -> None:
    contents = []
    for seed in ("1", "2"):
        folder = tmp_path / seed
        command = [sys.executable, "-m", "synthetic_attention.data.cldr", folder, "--train", "400", "--held-out", "9"]
        subprocess.run(command, check=True, env={**os.environ, "PYTHONHASHSEED": seed})
        contents.append({path.name: path.read_bytes() for path in folder.iterdir()})
    assert contents[0] == contents[1]
    assert set(contents[0]) == {
        "corpus.json",
        *(f"{split}.{language}" for split in ("train", "valid", "test", "test_templates") for language in ("en", "de")),
    }


def test_another_seed_makes_other_phrases() -> None:
    first, second = (make_corpus(400, 40, seed) for seed in (1, 2))
    assert {phrase.english for phrase in first["train"]} != {phrase.english for phrase in second["train"]}


def test_files_hold_the_phrases_and_are_not_overwritten(tmp_path: Path) -> None:
    write_cldr_corpus(tmp_path, 60, 6)
    test = make_corpus(60, 6)["test"]
    assert (tmp_path / "test.en").read_text("utf-8").splitlines() == [phrase.english for phrase in test]
    assert (tmp_path / "test.de").read_text("utf-8").splitlines() == [phrase.german for phrase in test]
    write_cldr_corpus(tmp_path, 60, 6)
    (tmp_path / "test.de").write_text("mine\n")
    with pytest.raises(UserError, match=r"test\.de: there already, with other text; choose another folder"):
        write_cldr_corpus(tmp_path, 60, 6)
    assert (tmp_path / "test.de").read_text() == "mine\n"
    assert not list(tmp_path.glob(".*"))
    origin = json.loads((tmp_path / "corpus.json").read_text())
    assert origin["sizes"] == {"train": 60, "valid": 6, "test": 6, "test_templates": 6}
    assert origin["babel"] == importlib.metadata.version("babel")
    assert origin["seed"] == 1


def test_without_data_translation_has_the_corpus_in_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = Translation.default_data()
    assert folder.is_relative_to(tmp_path)
    assert Translation.default_data() == folder
    task = Translation.from_options(Translation.default_options())
    assert [len(task.read(folder, split)) for split in ("train", "valid", "test", "test_templates")] == [
        *(15_000, 500, 500, 500),
    ]
    assert task.read(folder, "test").name == "test"
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(UserError, match="set XDG_CACHE_HOME"):
        Translation.default_data()


def test_sizes_that_cannot_be_are_refused() -> None:
    with pytest.raises(UserError, match="got 49 phrases to train on and 5 held out; expected at least 50, and 1"):
        make_corpus(49, 5)
    with pytest.raises(UserError, match="choose fewer"):
        make_corpus(100, 100)


def test_a_babel_without_a_name_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(names, "SCRIPTS", ("Latn", "Qqqq"))
    with pytest.raises(UserError, match=r"Babel .* has no name for 'Qqqq'; install babel>=2\.18"):
        all_values(1)
