"""Parallel English and German phrases, generated from the locale data (CLDR) of Babel: data for tests and demos.

A phrase is a clause in a frame, filled with names and figures. A model has to learn words, forms of verbs, word order,
and how each language writes figures. `test` combines known values anew; `test_templates` has clauses in frames that
`train` has only apart.
"""

from __future__ import annotations

import hashlib
import random
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, time, timedelta
from decimal import Decimal
from functools import cache
from importlib.resources import files
from itertools import product
from pathlib import Path
from typing import Any

import babel
import yaml
from babel import dates, numbers, units

from ..errors import UserError
from .files import cached_folder

LANGUAGES = ("en", "de")
Pair = tuple[str, ...]
Template = tuple[Pair, Pair]

# The words and the sentences that they are put into.
_TABLES: dict[str, Any] = yaml.safe_load(files(__package__).joinpath("phrases.yaml").read_text(encoding="utf-8"))
# The fields of a clause.
_FIELDS = ("subject", "verb", "rest", "verb_de", "infinitive_de", "rest_de")


def _rows(table: str) -> list[Pair]:
    return [tuple(line.split("|")) for line in table.strip().split("\n")]


CLAUSES, FRAMES = _rows(_TABLES["clauses"]), _rows(_TABLES["frames"])


@dataclass(frozen=True)
class Phrase:
    """A phrase in both languages, its frame and clause, and its values as (kind, value)."""

    english: str
    german: str
    frame: Pair
    clause: Pair
    values: tuple[tuple[str, Pair], ...]


def _both(write: Callable[..., str], *values: Any, **options: Any) -> Pair:
    """`write(*values, locale=…)` in both languages, with plain spaces instead of CLDR's various ones."""
    plain = str.maketrans({"\u00a0": " ", "\u202f": " ", "\u2009": " ", "\u00ad": None})
    locales = [babel.Locale(language) for language in LANGUAGES]
    return tuple(write(*values, locale=locale, **options).translate(plain) for locale in locales)


def _draw(kind: str, rng: random.Random) -> Pair:
    """A random date, time or figure."""
    if kind == "date":
        return _both(dates.format_date, date(2019, 1, 1) + timedelta(days=rng.randrange(12 * 365)), format="long")
    if kind == "time":
        return _both(dates.format_time, time(rng.randrange(24), 5 * rng.randrange(12)), format="short")
    if kind == "percent":
        return _both(numbers.format_percent, Decimal(rng.randint(2, 99)) / 100)
    if kind == "money":
        amount = Decimal(rng.randint(200, 10 ** rng.randint(3, 6))) / 100
        return _both(numbers.format_currency, amount, rng.choice(("EUR", "USD", "GBP", "JPY")))
    return _both(units.format_unit, rng.randint(2, 10 ** rng.randint(1, 3)), rng.choice(_TABLES["units"][kind]))


def _all_values() -> dict[str, list[Pair]]:
    """The values of each kind of slot, without duplicates: all names, and 90 random dates, times or figures."""
    values: dict[str, list[Pair]] = {kind: [*nouns.items()] for kind, nouns in _TABLES["nouns"].items()}
    for kind in ("date", "time", "percent", "money", *_TABLES["units"]):
        # Each kind has its own generator: a change of one does not change the others.
        rng, drawn = random.Random(f"0/{kind}"), dict[Pair, None]()
        while len(drawn) < 90:
            drawn[_draw(kind, rng)] = None
        values[kind] = list(drawn)

    def city(zone: str, locale: Any) -> str:
        # CLDR may leave out a name that is in the identifier.
        return str(locale.time_zones.get(zone, {}).get("city", zone.partition("/")[2]))

    return {
        **values,
        "city": [_both(city, zone) for zone in _TABLES["cities"].split()],
        "country": [
            _both(lambda code, locale: locale.territories[code], code) for code in _TABLES["countries"].split()
        ],
        "language": [_both(lambda code, locale: locale.languages[code], code) for code in _TABLES["languages"].split()],
        "weekday": [_both(lambda n, locale: locale.days["stand-alone"]["wide"][n], n) for n in range(7)],
    }


@cache
def make_phrases(train: int = 15_000, held_out: int = 500) -> dict[str, tuple[Phrase, ...]]:
    """The splits `train`, `valid`, `test` and `test_templates`: a function of the arguments and of Babel's data.

    No English or German phrase occurs twice. `train` has every value, frame and clause of the other splits. Each frame
    of `valid` and `test` has in `train` the same clause with other values; each of `test_templates` only other clauses.
    A small corpus has fewer frames, clauses and values. All splits but `train` have `held_out` phrases.
    """
    rng = random.Random(0)
    size = max(4, train // 100)
    values = {kind: pairs[:size] for kind, pairs in _all_values().items()}
    known, unseen = list[Template](), list[Template]()
    # Every fifth diagonal of the table of frames and clauses is held out.
    for (row, frame), (column, clause) in product(enumerate(FRAMES[:size]), enumerate(CLAUSES[:size])):
        (known if (row + column) % 5 else unseen).append((frame, clause))
    seen: set[str] = set()
    phrases = _fill(rng, known, values, train + 3 * held_out, seen)
    rng.shuffle(phrases)
    training = phrases[:train]
    parts = {part for phrase in training for part in ((phrase.frame, phrase.clause), *phrase.values)}
    rest = [each for each in phrases[train:] if {(each.frame, each.clause), *each.values} <= parts][: 2 * held_out]
    if len(rest) < 2 * held_out:
        raise UserError(f"can only hold out {len(rest)} phrases of {2 * held_out}; choose fewer, or more to train on")
    values = {kind: [pair for pair in pairs if (kind, pair) in parts] for kind, pairs in values.items()}
    others = _fill(rng, unseen, values, held_out, seen)
    rng.shuffle(others)
    splits = {"train": training, "valid": rest[::2], "test": rest[1::2], "test_templates": others}
    return {split: tuple(members) for split, members in splits.items()}


def _fill(
    rng: random.Random, templates: Sequence[Template], values: Mapping[str, list[Pair]], size: int, seen: set[str]
) -> list[Phrase]:
    """`size` phrases that are not in `seen`, from each template in turn."""
    made: list[Phrase] = []
    for attempt in range(10 * size + 1000):
        if len(made) == size:
            return made
        frame, clause = templates[attempt % len(templates)]
        filled: dict[str, tuple[str, Pair]] = {}
        for slot in re.findall(r"{(\w+)}", " ".join((frame[0], *clause[:3]))):
            kind = slot.rstrip("1")
            if kind in values:
                choices = ((kind, pair) for pair in values[kind])
                filled[slot] = rng.choice([value for value in choices if value not in filled.values()])
        texts = []
        for side in range(2):
            words = {slot: pair[side] for slot, (_, pair) in filled.items()}
            fields = dict(zip(_FIELDS, (field.format_map(words) for field in clause), strict=True))
            text = frame[side].format_map(words | fields)
            texts.append(text[0].upper() + text[1:])
        if seen.isdisjoint(texts):
            seen.update(texts)
            made.append(Phrase(texts[0], texts[1], frame, clause, tuple(filled.values())))
    raise UserError(f"can only make {len(made)} phrases of {size}; choose fewer held out, or more to train on")


def write_phrases(folder: Path, train: int = 15_000, held_out: int = 500) -> None:
    """Write the splits of `make_phrases` as {split}.{en,de}."""
    folder.mkdir(parents=True, exist_ok=True)
    for split, phrases in make_phrases(train, held_out).items():
        for language, side in zip(LANGUAGES, ("english", "german"), strict=True):
            path = folder / f"{split}.{language}"
            text = "".join(f"{getattr(phrase, side)}\n" for phrase in phrases).encode()
            if path.exists() and path.read_bytes() != text:
                raise UserError(f"{path}: exists with other text; choose another folder")
            path.write_bytes(text)


def default_data() -> Path:
    """The folder with the phrases in the user's cache; its name has a digest of the text."""
    return cached_folder(f"phrases-{hashlib.sha256(repr(make_phrases()).encode()).hexdigest()[:12]}", write_phrases)
