"""Parallel English and German phrases, generated from the locale data (CLDR) of Babel: data for tests and demos.

A phrase is a template filled with dates, times, numbers, money, quantities and names. A model has to learn words, word
order and how each language writes figures. `test` has new combinations of known templates and values;
`test_templates` has new sentences of known words.
"""

from __future__ import annotations

import hashlib
import random
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, time, timedelta
from decimal import Decimal
from functools import cache, partial
from itertools import product
from pathlib import Path
from typing import Any

from ..errors import UserError, require
from .files import cached_folder

LANGUAGES = ("en", "de")
Pair = tuple[str, str]

# German uses these countries without an article.
_COUNTRIES = "AT BE BR CA CL CN HR CU CZ DK EG FI FR DE GR HU IN ID IE IL IT JP KE LT MX NO PE PL PT RO SE ES TH VN"
_LANGUAGES = "ar bg cs da de el en es et fi fr he hi hr hu id is it ja ko lt lv nl no pl pt ro ru sk sv th tr uk vi zh"
_CITIES = (
    "Africa/Cairo Africa/Nairobi America/Chicago America/Havana America/Lima America/Toronto Asia/Bangkok Asia/Beirut "
    "Asia/Jerusalem Asia/Seoul Asia/Tokyo Europe/Athens Europe/Berlin Europe/Brussels Europe/Copenhagen Europe/Lisbon "
    "Europe/London Europe/Moscow Europe/Oslo Europe/Paris Europe/Prague Europe/Rome Europe/Vienna Europe/Zurich"
)
_SKELETONS = {"date": "yMMMMd", "day": "MMMMd", "month_year": "yMMMM"}
# Phrases have quantities in the nominative or accusative.
_UNITS = {
    "distance": ("length-kilometer", "length-mile"),
    "duration": ("duration-minute", "duration-hour", "duration-day", "duration-week"),
    "weight": ("mass-gram", "mass-kilogram", "mass-pound", "mass-tonne"),
}
# English and German, in the nominative with the article.
_NOUNS = {
    "event": "the meeting|die Sitzung, the course|der Kurs, the concert|das Konzert, the exam|die Prüfung, "
    "the exhibition|die Ausstellung, the workshop|der Workshop, the conference|die Konferenz, the game|das Spiel",
    "figure": "revenue|der Umsatz, profit|der Gewinn, the price|der Preis, the rent|die Miete, the salary|das Gehalt",
    "person": "she|sie, he|er, Anna|Anna, Mr. Weber|Herr Weber, Ms. Keller|Frau Keller, the teacher|die Lehrerin, "
    "my sister|meine Schwester, our neighbor|unser Nachbar, the doctor|der Arzt, the student|die Studentin",
    "thing": "the package|das Paket, the machine|die Maschine, the table|der Tisch, the suitcase|der Koffer, "
    "the statue|die Statue, the bicycle|das Fahrrad, the door|die Tür, the painting|das Gemälde",
    "vehicle": "the train|der Zug, the bus|der Bus, the ferry|die Fähre, the ship|das Schiff, the truck|der Lastwagen",
}
# A line stands for all templates with and without its [optional] parts.
_FRAMES = """
{event} begins[ on {weekday}][ in {city}].|{event} beginnt[ am {weekday}][ in {city}].
{event} lasts {duration}.|{event} dauert {duration}.
{event} was canceled[ {ago}].|{event} wurde[ {ago}] abgesagt.
{event} is on {date}.|{event} ist am {date}.
When does {event} begin[ in {city}]?|Wann beginnt {event}[ in {city}]?
On {weekday}, {event} begins[ at {time}][ in {city}].|Am {weekday} beginnt {event}[ um {time} Uhr][ in {city}].
{person} has lived in {country}[ since {month_year}].|{person} wohnt[ seit {month_year}] in {country}.
{person} speaks {language1}[ and {language2}].|{person} spricht {language1}[ und {language2}].
{person} flew[ from {city1}] to {city2}[ {ago}].|{person} ist[ {ago}][ von {city1}] nach {city2} geflogen.
{person} comes from {country}[ and works in {city}].|{person} kommt aus {country}[ und arbeitet in {city}].
On {day}, {person} paid {money}[ in {city}].|Am {day} hat {person}[ in {city}] {money} bezahlt.
{person} runs {distance}[ every {weekday}].|{person} läuft[ jeden {weekday}] {distance}.
{person} knows that {event} begins[ at {time}].|{person} weiß, dass {event}[ um {time} Uhr] beginnt.
{person} says that {thing} costs {money}.|{person} sagt, dass {thing} {money} kostet.
{event} in {city} begins at {time}.|{event} in {city} beginnt um {time} Uhr.
{vehicle}[ from {city1}] to {city2} leaves at {time}.|{vehicle}[ von {city1}] nach {city2} fährt um {time} Uhr ab.
{thing} weighs {weight}[ and costs {money}].|{thing} wiegt {weight}[ und kostet {money}].
{figure} rose by {percent}[ in {month_year}].|{figure} ist[ im {month_year}] um {percent} gestiegen.
Please pay {money}[ by {day}].|Bitte zahlen Sie {money}[ bis zum {day}].
"""
# New sentences of words from the frames above.
_UNSEEN = """
When was {event} canceled in {city}?|Wann wurde {event} in {city} abgesagt?
{event} lasts {duration} in {city}.|{event} dauert in {city} {duration}.
{person} says that {event} lasts {duration}.|{person} sagt, dass {event} {duration} dauert.
{person} knows that {thing} weighs {weight}.|{person} weiß, dass {thing} {weight} wiegt.
{event} begins on {date} in {city}.|{event} beginnt am {date} in {city}.
{person} works in {city} every {weekday}.|{person} arbeitet jeden {weekday} in {city}.
{person} flew to {country} on {date}.|{person} ist am {date} nach {country} geflogen.
Please pay {money} on {weekday}.|Bitte zahlen Sie am {weekday} {money}.
"""


@dataclass(frozen=True)
class Phrase:
    """A phrase in both languages, its template, and its values as (kind, value)."""

    english: str
    german: str
    template: Pair
    values: tuple[tuple[str, Pair], ...]


def _pairs(lines: str) -> list[Pair]:
    return [(english, german) for english, german in (line.split("|") for line in lines.strip().split("\n"))]


def _expand(frame: Pair) -> Iterator[Pair]:
    """The frame with each choice of its optional parts, which the two sides share by their slots."""
    parts = [{tuple(_slots(part)): part for part in re.findall(r"\[.*?\]", text)} for text in frame]
    for choice in product((True, False), repeat=len(parts[0])):
        sides = list(frame)
        for used, slots in zip(choice, parts[0], strict=True):
            for side in range(2):
                sides[side] = sides[side].replace(parts[side][slots], parts[side][slots][1:-1] if used else "")
        yield sides[0], sides[1]


def _slots(text: str) -> list[str]:
    return re.findall(r"{(\w+)}", text)


TEMPLATES = tuple(template for frame in _pairs(_FRAMES) for template in _expand(frame))
UNSEEN_TEMPLATES = tuple(_pairs(_UNSEEN))


def _babel(module: str) -> Any:
    return require(f"babel.{module}", "phrases", "generating example phrases")


def _both(write: Callable[..., str], *values: Any, **options: Any) -> Pair:
    """`write(*values, locale=…)` in both languages, with plain spaces instead of CLDR's various ones."""
    plain = str.maketrans({"\u00a0": " ", "\u202f": " ", "\u2009": " ", "\u00ad": None})
    locales = [_babel("core").Locale(language) for language in LANGUAGES]
    try:
        english, german = (write(*values, locale=locale, **options).translate(plain) for locale in locales)
    except (KeyError, AttributeError) as error:
        raise UserError(f"Babel has no name for {values[0]!r}; install babel>=2.18") from error
    return english, german


def _draw(kind: str, rng: random.Random) -> Pair:
    """A random date, time or figure."""
    dates, numbers, units = _babel("dates"), _babel("numbers"), _babel("units")
    if kind in _SKELETONS:
        day = date(2019, 1, 1) + timedelta(days=rng.randrange(12 * 365))
        return _both(lambda value, locale: dates.format_skeleton(_SKELETONS[kind], value, locale=locale), day)
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
    values = {kind: _pairs(nouns.replace(", ", "\n")) for kind, nouns in _NOUNS.items()}
    for kind in (*_SKELETONS, "time", "percent", "money", *_UNITS):
        # Each kind has its own generator: a change of one does not change the others.
        rng, drawn = random.Random(f"{seed}/{kind}"), dict[Pair, None]()
        while len(drawn) < 90:
            drawn[_draw(kind, rng)] = None
        values[kind] = list(drawn)

    def city(zone: str, locale: Any) -> str:
        # CLDR may leave out a name that is in the identifier.
        return str(locale.time_zones.get(zone, {}).get("city", zone.partition("/")[2]))

    ago = partial(_both, _babel("dates").format_timedelta, threshold=1, add_direction=True)
    return {
        **values,
        "ago": [ago(timedelta(days=-days)) for days in (*range(1, 8), 14, 21, *range(365, 7000, 365))],
        "city": [_both(city, zone) for zone in _CITIES.split()],
        "country": [_both(lambda code, locale: locale.territories[code], code) for code in _COUNTRIES.split()],
        "language": [_both(lambda code, locale: locale.languages[code], code) for code in _LANGUAGES.split()],
        "weekday": [_both(lambda n, locale: locale.days["stand-alone"]["wide"][n], n) for n in range(7)],
    }


@cache
def make_phrases(train: int = 15_000, held_out: int = 500, seed: int = 0) -> dict[str, tuple[Phrase, ...]]:
    """The splits `train`, `valid`, `test` and `test_templates`: a function of the arguments and of Babel's data.

    No English or German phrase occurs twice. `train` has every value of the other splits, and every template of `valid`
    and `test`, but none of `test_templates`. A small corpus has fewer templates and values, each several times. All
    splits but `train` have `held_out` phrases.
    """
    if train < 50 or held_out < 1:
        raise UserError(f"got train={train} and held_out={held_out} phrases; expected at least 50 and 1")
    rng = random.Random(seed)
    templates = TEMPLATES[: max(8, train // 20)]
    values = {kind: pairs[: max(4, train // 60)] for kind, pairs in all_values(seed).items()}
    seen: set[str] = set()
    phrases = _fill(rng, templates, values, train + 3 * held_out, seen)
    rng.shuffle(phrases)
    training = phrases[:train]
    parts = {part for phrase in training for part in (phrase.template, *phrase.values)}
    rest = [phrase for phrase in phrases[train:] if {phrase.template, *phrase.values} <= parts][: 2 * held_out]
    if len(rest) < 2 * held_out:
        raise UserError(f"can only hold out {len(rest)} phrases of {2 * held_out}; choose fewer, or more to train on")
    known = {kind: [pair for pair in pairs if (kind, pair) in parts] for kind, pairs in values.items()}
    unseen = [pair for pair in UNSEEN_TEMPLATES if _words([pair]) <= _words(templates)]
    others = _fill(rng, unseen, known, held_out, seen)
    splits = {"train": training, "valid": rest[::2], "test": rest[1::2], "test_templates": others}
    return {split: tuple(members) for split, members in splits.items()}


def _words(templates: Sequence[Pair]) -> set[tuple[int, str]]:
    texts = ((side, re.sub(r"{\w+}", "", pair[side])) for pair in templates for side in range(2))
    return {(side, word) for side, text in texts for word in re.findall(r"\w+", text)}


def _fill(
    rng: random.Random, templates: Sequence[Pair], values: Mapping[str, list[Pair]], size: int, seen: set[str]
) -> list[Phrase]:
    """`size` phrases that are not in `seen`, from each template in turn."""
    made: list[Phrase] = []
    for attempt in range(10 * size + 1000):
        if len(made) == size:
            return made
        template = templates[attempt % len(templates)]
        filled: dict[str, tuple[str, Pair]] = {}
        for slot in _slots(template[0]):
            kind = slot.rstrip("12")
            choices = [(kind, pair) for pair in values[kind]]
            filled[slot] = rng.choice([value for value in choices if value not in filled.values()])
        words = ({slot: pair[side] for slot, (_, pair) in filled.items()} for side in range(2))
        texts = (side.format_map(filling) for side, filling in zip(template, words, strict=True))
        english, german = (text[0].upper() + text[1:] for text in texts)
        if not {english, german} & seen:
            seen |= {english, german}
            made.append(Phrase(english, german, template, tuple(filled.values())))
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
