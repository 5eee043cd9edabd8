"""Phrases from templates and values, split so that what is held out is new, and all that it is made of is not."""

from __future__ import annotations

import hashlib
import json
import random
import re
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from string import Formatter

from babel import __version__
from babel.core import get_cldr_version

from ...errors import UserError
from ..user_cache import made_once
from .templates import TEMPLATES, UNSEEN_TEMPLATES, Pair
from .values import all_values

__all__ = ["LANGUAGES", "Phrase", "default_data", "make_corpus", "write_cldr_corpus"]

LANGUAGES = ("en", "de")
# A template gives up after so many phrases in a row that are there already.
_TRIES = 30


@dataclass(frozen=True)
class Phrase:
    """An English phrase, its German translation, and what they are made of: a template, and (kind, value) by slot."""

    english: str
    german: str
    template: Pair
    values: tuple[tuple[str, Pair], ...]


@cache
def make_corpus(train: int = 15_000, held_out: int = 500, seed: int = 1) -> dict[str, tuple[Phrase, ...]]:
    """The splits `train`, `valid`, `test` and `test_templates`, a function of the arguments and of Babel's data.

    No English and no German phrase is there twice, be it in two splits. Every value in a held-out phrase is in a
    phrase of `train`. So is the template of one in `valid` or `test`, and none of `test_templates`. A small corpus
    has fewer templates and fewer values, so that each is still seen several times.

    Args:
        train: phrases to train on.
        held_out: phrases in each of the other splits.

    Raises:
        UserError: the numbers are too small or too large for it, or the installed Babel lacks data.
    """
    if train < 50 or held_out < 1:
        raise UserError(f"got {train} phrases to train on and {held_out} held out; expected at least 50, and 1")
    rng = random.Random(seed)
    templates = TEMPLATES[: max(8, train // 20)]
    values = {kind: pairs[: max(4, train // 60)] for kind, pairs in all_values(seed).items()}
    maker = _Maker(rng, values)
    phrases = maker.phrases(templates, train + 2 * held_out)
    rng.shuffle(phrases)
    chosen = _known_parts(phrases, 2 * held_out)
    splits = {
        "train": tuple(phrase for phrase in phrases if phrase not in chosen),
        "valid": tuple(chosen)[::2],
        "test": tuple(chosen)[1::2],
    }
    maker.restrict(splits["train"])
    splits["test_templates"] = tuple(maker.phrases(_known_words(templates, maker.values), held_out))
    return splits


def write_cldr_corpus(folder: Path, train: int = 15_000, held_out: int = 500, seed: int = 1) -> None:
    """Write the splits of `make_corpus` as {split}.{en,de}, and corpus.json, which says how they were made.

    The folder is made if it is not there; files that are there and have the same text may stay.

    Raises:
        UserError: a file of the same name has other text, or what `make_corpus` raises.
    """
    corpus = make_corpus(train, held_out, seed)
    texts = _texts(corpus)
    for name, text in texts.items():
        if (folder / name).exists() and (folder / name).read_bytes() != text:
            raise UserError(f"{folder / name}: there already, with other text; choose another folder")
    origin = {
        "made_by": "synthetic_attention.data.cldr",
        "sizes": {split: len(phrases) for split, phrases in corpus.items()},
        "seed": seed,
        "babel": __version__,
        "cldr": get_cldr_version(),
    }
    texts["corpus.json"] = f"{json.dumps(origin, indent=2)}\n".encode()
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix=".partial-") as stage:
        for name, text in texts.items():
            (Path(stage) / name).write_bytes(text)
            (Path(stage) / name).replace(folder / name)


def default_data() -> Path:
    """The folder of the corpus in its default size; it is made in the user's cache if it is not there.

    Its name has a digest of the text: where another version of CLDR changes that, old runs keep theirs.

    Raises:
        UserError: it cannot be written.
    """
    digest = hashlib.sha256(b"\0".join(_texts(make_corpus()).values())).hexdigest()[:12]
    return made_once(f"cldr-{digest}", write_cldr_corpus)


def _texts(corpus: Mapping[str, Sequence[Phrase]]) -> dict[str, bytes]:
    """The content of the files of text, by their names."""
    lines = {
        f"{split}.{language}": [getattr(phrase, side) for phrase in phrases]
        for split, phrases in corpus.items()
        for language, side in zip(LANGUAGES, ("english", "german"), strict=True)
    }
    return {name: "".join(f"{line}\n" for line in texts).encode() for name, texts in lines.items()}


class _Maker:
    """Fills templates. Each kind is a deck of its values: all are dealt before one is dealt again."""

    def __init__(self, rng: random.Random, values: dict[str, list[Pair]]) -> None:
        self.rng = rng
        self.values = values
        self._decks: dict[str, list[Pair]] = {}
        self._seen: set[str] = set()

    def restrict(self, phrases: Sequence[Phrase]) -> None:
        """Deal only values that are in `phrases`."""
        used = {value for phrase in phrases for value in phrase.values}
        self.values = {kind: [pair for pair in pairs if (kind, pair) in used] for kind, pairs in self.values.items()}
        self._decks = {}

    def phrases(self, templates: Sequence[Pair], size: int) -> list[Phrase]:
        """`size` new phrases, as many from each template as it has.

        Raises:
            UserError: the templates do not have so many.
        """
        left = list(templates)
        made: list[Phrase] = []
        while len(made) < size:
            if not left:
                raise UserError(
                    f"only {len(made)} phrases of {size} can be made; choose fewer held out, or more to train on"
                )
            for template in tuple(left[: size - len(made)]):
                phrase = self._new(template)
                if phrase is None:
                    left.remove(template)
                else:
                    made.append(phrase)
        return made

    def _new(self, template: Pair) -> Phrase | None:
        for _ in range(_TRIES):
            phrase = self._fill(template)
            if phrase.english not in self._seen and phrase.german not in self._seen:
                self._seen |= {phrase.english, phrase.german}
                return phrase
        return None

    def _fill(self, template: Pair) -> Phrase:
        filled: dict[str, tuple[str, Pair]] = {}
        for slot in _slots(template[0]):
            kind = _kind(slot)
            value = self._deal(kind)
            while (kind, value) in filled.values():
                value = self._deal(kind)
            filled[slot] = (kind, value)
        english, german = (
            text.format_map({slot: value[side] for slot, (_, value) in filled.items()})
            for side, text in enumerate(template)
        )
        return Phrase(_capitalized(english), _capitalized(german), template, tuple(filled.values()))

    def _deal(self, kind: str) -> Pair:
        if not self._decks.get(kind):
            self._decks[kind] = self.rng.sample(self.values[kind], len(self.values[kind]))
        return self._decks[kind].pop()


def _known_parts(phrases: Sequence[Phrase], size: int) -> dict[Phrase, None]:
    """The first `size` phrases that can be held out with their template and all their values still in the rest."""
    left = Counter(part for phrase in phrases for part in (phrase.template, *phrase.values))
    chosen: dict[Phrase, None] = {}
    for phrase in phrases:
        parts = (phrase.template, *phrase.values)
        if len(chosen) < size and all(left[part] > 1 for part in parts):
            chosen[phrase] = None
            left.subtract(parts)
    if len(chosen) < size:
        raise UserError(f"only {len(chosen)} phrases of {size} can be held out; choose fewer, or more to train on")
    return chosen


def _known_words(templates: Sequence[Pair], values: dict[str, list[Pair]]) -> list[Pair]:
    """The unseen templates of which `templates` have every word, and `values` at least three for each slot."""
    known = [{word for template in templates for word in _words(template[side])} for side in range(2)]
    return [
        template
        for template in UNSEEN_TEMPLATES
        if all(_words(template[side]) <= known[side] for side in range(2))
        and all(len(values[_kind(slot)]) >= 3 for slot in _slots(template[0]))
    ]


def _slots(text: str) -> Iterator[str]:
    return (slot for _, slot, _, _ in Formatter().parse(text) if slot)


def _kind(slot: str) -> str:
    return slot.rstrip("0123456789")


def _words(text: str) -> set[str]:
    """The words of a template, without its slots and punctuation."""
    return {word for literal, *_ in Formatter().parse(text) for word in re.findall(r"\w+", literal)}


def _capitalized(text: str) -> str:
    return text[0].upper() + text[1:]
