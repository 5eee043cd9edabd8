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
from itertools import product
from pathlib import Path
from typing import Any

import babel
from babel import dates, numbers, units

from ..errors import UserError
from .files import cached_folder

LANGUAGES = ("en", "de")
Pair = tuple[str, str]
Template = tuple[tuple[str, ...], tuple[str, ...]]

# German uses these countries without an article.
_COUNTRIES = "AT BE BR CA CL CN HR CU CZ DK EG FI FR DE GR HU IN ID IE IL IT JP KE LT MX NO PE PL PT RO SE ES TH VN"
_LANGUAGES = "ar bg cs da de el en es et fi fr he hi hr hu id is it ja ko lt lv nl no pl pt ro ru sk sv th tr uk vi zh"
_CITIES = (
    "Africa/Cairo Africa/Nairobi America/Chicago America/Havana America/Lima America/Toronto Asia/Bangkok Asia/Beirut "
    "Asia/Jerusalem Asia/Seoul Asia/Tokyo Europe/Athens Europe/Berlin Europe/Brussels Europe/Copenhagen Europe/Lisbon "
    "Europe/London Europe/Moscow Europe/Oslo Europe/Paris Europe/Prague Europe/Rome Europe/Vienna Europe/Zurich"
)
_UNITS = {
    "distance": ("length-kilometer", "length-mile"),
    "duration": ("duration-minute", "duration-hour", "duration-day", "duration-week"),
    "weight": ("mass-gram", "mass-kilogram", "mass-pound", "mass-tonne"),
}
# English and German, in the nominative with the article. Things are objects too: their accusative is the same.
_NOUNS = {
    "event": "the meeting|die Sitzung, the course|der Kurs, the concert|das Konzert, the exam|die Prüfung, "
    "the exhibition|die Ausstellung, the workshop|der Workshop, the conference|die Konferenz, the game|das Spiel",
    "figure": "the revenue|der Umsatz, the profit|der Gewinn, the price|der Preis, "
    "the rent|die Miete, the salary|das Gehalt",
    "person": "Anna|Anna, Mr. Weber|Herr Weber, Ms. Keller|Frau Keller, the teacher|die Lehrerin, she|sie, he|er, "
    "my sister|meine Schwester, our neighbor|unser Nachbar, the doctor|der Arzt, the student|die Studentin",
    "thing": "the package|das Paket, the machine|die Maschine, the lamp|die Lampe, the book|das Buch, "
    "the statue|die Statue, the bicycle|das Fahrrad, the door|die Tür, the painting|das Gemälde",
    "vehicle": "the train|der Zug, the bus|der Bus, the ferry|die Fähre, the ship|das Schiff, the truck|der Lastwagen",
}
# The fields of a clause, which is a line of the table below.
_FIELDS = ("subject", "verb", "rest", "verb_de", "infinitive_de", "rest_de")
_CLAUSES = """
{event}|begin|at {time}|beginnt|beginnen|um {time} Uhr
{event} in {city}|begin|at {time}|beginnt|beginnen|um {time} Uhr
{person}|speak|{language}|spricht|sprechen|{language}
{thing}|cost|{money}|kostet|kosten|{money}
{event}|last|{duration}|dauert|dauern|{duration}
{event}|end|at {time}|endet|enden|um {time} Uhr
{event} in {city}|cost|{money}|kostet|kosten|{money}
{person}|live|in {country}|wohnt|wohnen|in {country}
{person}|come|from {country}|kommt|kommen|aus {country}
{person}|work|in {city}|arbeitet|arbeiten|in {city}
{person}|travel|to {city}|reist|reisen|nach {city}
{person}|pay|{money}|bezahlt|bezahlen|{money}
{person}|run|{distance}|läuft|laufen|{distance}
{person}|buy|{thing}|kauft|kaufen|{thing}
{person}|need|{thing}|braucht|brauchen|{thing}
{thing}|weigh|{weight}|wiegt|wiegen|{weight}
{thing}|come|from {country}|kommt|kommen|aus {country}
{vehicle}|stop|in {city}|hält|halten|in {city}
{vehicle}|travel|to {city}|fährt|fahren|nach {city}
{vehicle}|need|{duration}|braucht|brauchen|{duration}
{figure}|rise|by {percent}|steigt|steigen|um {percent}
{figure}|fall|by {percent}|fällt|fallen|um {percent}
"""
_FRAMES = """
{subject} {verb}s {rest}.|{subject} {verb_de} {rest_de}.
{subject} will {verb} {rest}.|{subject} wird {rest_de} {infinitive_de}.
{person1} knows that {subject} {verb}s {rest}.|{person1} weiß, dass {subject} {rest_de} {verb_de}.
On {weekday}, {subject} should {verb} {rest}.|Am {weekday} sollte {subject} {rest_de} {infinitive_de}.
{subject} should {verb} {rest}.|{subject} sollte {rest_de} {infinitive_de}.
On {date}, {subject} will {verb} {rest}.|Am {date} wird {subject} {rest_de} {infinitive_de}.
Perhaps {subject} {verb}s {rest}.|Vielleicht {verb_de} {subject} {rest_de}.
Of course {subject} {verb}s {rest}.|Natürlich {verb_de} {subject} {rest_de}.
Why does {subject} {verb} {rest}?|Warum {verb_de} {subject} {rest_de}?
Since when does {subject} {verb} {rest}?|Seit wann {verb_de} {subject} {rest_de}?
Do you know whether {subject} {verb}s {rest}?|Wissen Sie, ob {subject} {rest_de} {verb_de}?
{person1} says that {subject} should {verb} {rest}.|{person1} sagt, dass {subject} {rest_de} {infinitive_de} sollte.
{person1} hopes that {subject} will {verb} {rest}.|{person1} hofft, dass {subject} {rest_de} {infinitive_de} wird.
"""


def _rows(table: str) -> list[tuple[str, ...]]:
    return [tuple(line.split("|")) for line in table.strip().split("\n")]


CLAUSES, FRAMES = _rows(_CLAUSES), _rows(_FRAMES)


@dataclass(frozen=True)
class Phrase:
    """A phrase in both languages, its frame and clause, and its values as (kind, value)."""

    english: str
    german: str
    frame: tuple[str, ...]
    clause: tuple[str, ...]
    values: tuple[tuple[str, Pair], ...]


def _both(write: Callable[..., str], *values: Any, **options: Any) -> Pair:
    """`write(*values, locale=…)` in both languages, with plain spaces instead of CLDR's various ones."""
    plain = str.maketrans({"\u00a0": " ", "\u202f": " ", "\u2009": " ", "\u00ad": None})
    locales = [babel.Locale(language) for language in LANGUAGES]
    try:
        english, german = (write(*values, locale=locale, **options).translate(plain) for locale in locales)
    except (KeyError, AttributeError) as error:
        raise UserError(f"Babel has no name for {values[0]!r}; install babel>=2.18") from error
    return english, german


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
    return _both(units.format_unit, rng.randint(2, 10 ** rng.randint(1, 3)), rng.choice(_UNITS[kind]))


def all_values(seed: int = 0) -> dict[str, list[Pair]]:
    """The values of each kind of slot, without duplicates: all names, and 90 random dates, times or figures."""
    values = {
        kind: [(noun, german) for noun, german in _rows(nouns.replace(", ", "\n"))] for kind, nouns in _NOUNS.items()
    }
    for kind in ("date", "time", "percent", "money", *_UNITS):
        # Each kind has its own generator: a change of one does not change the others.
        rng, drawn = random.Random(f"{seed}/{kind}"), dict[Pair, None]()
        while len(drawn) < 90:
            drawn[_draw(kind, rng)] = None
        values[kind] = list(drawn)

    def city(zone: str, locale: Any) -> str:
        # CLDR may leave out a name that is in the identifier.
        return str(locale.time_zones.get(zone, {}).get("city", zone.partition("/")[2]))

    return {
        **values,
        "city": [_both(city, zone) for zone in _CITIES.split()],
        "country": [_both(lambda code, locale: locale.territories[code], code) for code in _COUNTRIES.split()],
        "language": [_both(lambda code, locale: locale.languages[code], code) for code in _LANGUAGES.split()],
        "weekday": [_both(lambda n, locale: locale.days["stand-alone"]["wide"][n], n) for n in range(7)],
    }


@cache
def make_phrases(train: int = 15_000, held_out: int = 500, seed: int = 0) -> dict[str, tuple[Phrase, ...]]:
    """The splits `train`, `valid`, `test` and `test_templates`: a function of the arguments and of Babel's data.

    No English or German phrase occurs twice. `train` has every value, frame and clause of the other splits. Each frame
    of `valid` and `test` has in `train` the same clause with other values; each of `test_templates` only other clauses.
    A small corpus has fewer frames, clauses and values. All splits but `train` have `held_out` phrases.
    """
    if train < 50 or held_out < 1:
        raise UserError(f"got train={train} and held_out={held_out} phrases; expected at least 50 and 1")
    rng = random.Random(seed)
    size = max(4, train // 100)
    values = {kind: pairs[:size] for kind, pairs in all_values(seed).items()}
    known: list[Template] = []
    unseen: list[Template] = []
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
                choices = [(kind, pair) for pair in values[kind]]
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


def write_phrases(folder: Path, train: int = 15_000, held_out: int = 500, seed: int = 0) -> None:
    """Write the splits of `make_phrases` as {split}.{en,de}."""
    folder.mkdir(parents=True, exist_ok=True)
    for split, phrases in make_phrases(train, held_out, seed).items():
        for language, side in zip(LANGUAGES, ("english", "german"), strict=True):
            path = folder / f"{split}.{language}"
            text = "".join(f"{getattr(phrase, side)}\n" for phrase in phrases)
            if path.exists() and path.read_bytes() != text.encode():
                raise UserError(f"{path}: exists with other text; choose another folder")
            path.with_suffix(".partial").write_bytes(text.encode())
            path.with_suffix(".partial").replace(path)


def default_data() -> Path:
    """The folder with the phrases in the user's cache; its name has a digest of the text."""
    digest = hashlib.sha256(repr(make_phrases()).encode()).hexdigest()[:12]
    return cached_folder(f"phrases-{digest}", write_phrases)
