"""The values of the slots: for each kind, what CLDR writes in English and in German."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from functools import partial
from typing import Any

from babel import Locale, __version__
from babel.dates import format_date, format_interval, format_skeleton, format_time, format_timedelta
from babel.numbers import format_compact_decimal, format_currency, format_decimal, format_percent
from babel.units import format_unit

from ...errors import UserError
from . import names
from .nouns import NOUNS
from .templates import Pair

__all__ = ["all_values"]

Draw = Callable[[random.Random], Pair]

_ENGLISH, _GERMAN = Locale("en"), Locale("de")
# CLDR has spaces of several widths, and soft hyphens; where it puts them changes with its version.
_PLAIN = str.maketrans({"\u00a0": " ", "\u202f": " ", "\u2009": " ", "\u00ad": None})
_FIRST_DAY, _DAYS = date(2019, 1, 1), 16 * 365
# How far a relative time goes in days, in the unit that CLDR then chooses: 1 … 6 days, 1 … 4 weeks, and so on.
_SPANS = [
    *(timedelta(minutes=minutes) for minutes in range(2, 60, 3)),
    *(timedelta(hours=hours) for hours in range(1, 24)),
    *(timedelta(days=days) for days in range(1, 7)),
    *(timedelta(weeks=weeks) for weeks in range(1, 5)),
    *(timedelta(days=30 * months) for months in range(1, 12)),
    *(timedelta(days=365 * years) for years in range(1, 31)),
]


def all_values(seed: int) -> dict[str, list[Pair]]:
    """(English, German) values by kind, a function of the seed and of the data in Babel; none twice in a kind.

    Raises:
        UserError: the installed Babel does not name something.
    """
    values = {kind: list(nouns) for kind, nouns in NOUNS.items()}
    values.update(_listed())
    for kind, (size, draw) in _drawn().items():
        # A generator of its own for each kind: a change to one leaves the others as they are.
        rng = random.Random(f"{seed}/{kind}")
        distinct: dict[Pair, None] = {}
        while len(distinct) < size:
            distinct[draw(rng)] = None
        values[kind] = list(distinct)
    return values


def _listed() -> dict[str, list[Pair]]:
    """The kinds with few values, which are all taken."""
    return {
        "ago": [_both(_relative, -span) for span in _SPANS],
        "ahead": [_both(_relative, span) for span in _SPANS],
        "city": _named(names.CITIES, _city),
        "country": _named(names.COUNTRIES, lambda code, locale: locale.territories[code]),
        "currency": _named(names.CURRENCIES, lambda code, locale: locale.currencies[code]),
        "language": _named(names.LANGUAGES, lambda code, locale: locale.languages[code]),
        "month": _named(range(1, 13), lambda month, locale: locale.months["stand-alone"]["wide"][month]),
        "place": _named(names.COUNTRIES + names.TERRITORIES, lambda code, locale: locale.territories[code]),
        "quarter": _named(range(1, 5), lambda quarter, locale: locale.quarters["format"]["wide"][quarter]),
        "script": _named(names.SCRIPTS, lambda code, locale: locale.scripts[code]),
        "weekday": _named(range(7), lambda day, locale: locale.days["stand-alone"]["wide"][day]),
        "zone": _named(names.ZONES, lambda code, locale: locale.meta_zones[code]["long"]["standard"]),
    }


def _drawn() -> dict[str, tuple[int, Draw]]:
    """The kinds with many values: how many, and what draws one."""
    return {
        "amount": (60, _amount),
        "count": (240, partial(_number, low=100, high=9_999_999, decimals=0)),
        "date": (240, partial(_date, style="long")),
        "day": (200, _day),
        "days": (120, _days),
        "full_date": (240, partial(_date, style="full")),
        "hours": (60, _hours),
        "medium_date": (120, partial(_date, style="medium")),
        "money": (240, _money),
        "month_year": (140, _month_year),
        "months": (60, _months),
        "number": (240, partial(_number, low=1, high=99_999, decimals=2)),
        "percent": (160, _percent),
        "price": (240, _price),
        "short_date": (160, partial(_date, style="short")),
        "time": (200, _time),
        **{kind: (60, partial(_quantity, units=units)) for kind, units in names.UNITS.items()},
    }


def _both(write: Callable[..., str], value: Any, **options: Any) -> Pair:
    """`write(value, locale=…)` in both languages."""
    english, german = (write(value, locale=locale, **options).translate(_PLAIN) for locale in (_ENGLISH, _GERMAN))
    return english, german


def _named(codes: Iterable[Any], name: Callable[[Any, Locale], str]) -> list[Pair]:
    pairs = []
    for code in codes:
        try:
            pairs.append(_both(name, code))
        except (KeyError, AttributeError) as error:
            raise UserError(f"Babel {__version__} has no name for {code!r}; install babel>=2.18") from error
    return list(dict.fromkeys(pairs))


def _city(zone: str, locale: Locale) -> str:
    # Where the name is that of the identifier, the data may leave it out.
    return locale.time_zones.get(zone, {}).get("city", zone.rpartition("/")[2].replace("_", " "))


def _relative(span: timedelta, locale: Locale) -> str:
    return format_timedelta(span, threshold=1, add_direction=True, locale=locale)


def _random_date(rng: random.Random) -> date:
    return _FIRST_DAY + timedelta(days=rng.randrange(_DAYS))


def _random_figure(rng: random.Random, low: int, high: int, decimals: int) -> Decimal:
    """As often with few digits as with many; every other one with decimals, if it may have any."""
    digits = rng.randint(len(str(max(low, 1))), len(str(high)))
    figure = rng.randint(max(low, 10 ** (digits - 1)) if low > 0 else low, min(high, 10**digits - 1))
    if not decimals or rng.random() < 0.5:
        return Decimal(figure)
    # No zero at the end: it would not be written, but would ask for the plural.
    places = rng.randint(1, decimals)
    fraction = rng.randrange(10 ** (places - 1)) * 10 + rng.randint(1, 9)
    return figure + Decimal(fraction).scaleb(-places)


def _date(rng: random.Random, style: Any) -> Pair:
    return _both(format_date, _random_date(rng), format=style)


def _skeleton(when: datetime, skeleton: str) -> Pair:
    return _both(lambda value, locale: format_skeleton(skeleton, value, locale=locale), when)


def _day(rng: random.Random) -> Pair:
    return _skeleton(datetime.combine(_random_date(rng), time()), "MMMMd")


def _month_year(rng: random.Random) -> Pair:
    return _skeleton(datetime.combine(_random_date(rng), time()), "yMMMM")


def _interval(start: datetime, end: datetime, skeletons: Sequence[str]) -> Pair:
    english, german = (
        format_interval(start, end, skeleton, locale=locale).translate(_PLAIN)
        for skeleton, locale in zip(skeletons, (_ENGLISH, _GERMAN), strict=True)
    )
    return english, german


def _days(rng: random.Random) -> Pair:
    start = datetime.combine(_random_date(rng), time())
    return _interval(start, start + timedelta(days=rng.randint(1, 20)), ("yMMMd", "yMMMd"))


def _months(rng: random.Random) -> Pair:
    first, last = sorted(rng.sample(range(1, 13), 2))
    year = _random_date(rng).year
    return _interval(datetime(year, first, 1), datetime(year, last, 1), ("yMMMM", "yMMMM"))


def _hours(rng: random.Random) -> Pair:
    start = datetime(2025, 1, 1) + timedelta(minutes=30 * rng.randint(12, 30))
    return _interval(start, start + timedelta(minutes=30 * rng.randint(2, 16)), ("hm", "Hm"))


def _time(rng: random.Random) -> Pair:
    return _both(format_time, time(rng.randrange(24), 5 * rng.randrange(12)), format="short")


def _number(rng: random.Random, low: int, high: int, decimals: int) -> Pair:
    return _both(format_decimal, _random_figure(rng, low, high, decimals))


def _percent(rng: random.Random) -> Pair:
    share = _random_figure(rng, 1, 99, 1) / 100
    return _both(format_percent, share, decimal_quantization=False)


def _amount(rng: random.Random) -> Pair:
    figure = _random_figure(rng, 2, 99, 1) * 10 ** rng.choice((6, 9, 12))
    return _both(format_compact_decimal, figure, format_type="long", fraction_digits=1)


def _money(rng: random.Random) -> Pair:
    currency = rng.choice(names.SYMBOL_CURRENCIES)
    return _both(
        lambda value, locale: format_currency(value, currency, locale=locale), _random_figure(rng, 1, 99_999, 2)
    )


def _price(rng: random.Random) -> Pair:
    currency, figure = rng.choice(names.CURRENCIES), Decimal(_random_figure(rng, 2, 9_999, 0))
    return _both(
        lambda value, locale: format_currency(
            value, currency, "#,##0", locale=locale, format_type="name", currency_digits=False
        ),
        figure,
    )


def _quantity(rng: random.Random, units: Sequence[tuple[str, int, int, int]]) -> Pair:
    unit, *limits = rng.choice(units)
    return _both(lambda value, locale: format_unit(value, unit, locale=locale), _random_figure(rng, *limits))
