"""The phrases: an English and a German sentence with the same slots.

A slot {city} takes a value of that kind; {city1} and {city2} take two different ones. What stands in [brackets] may be
left out: a frame stands for as many templates as there are choices.
"""

from __future__ import annotations

import re
from itertools import product

__all__ = ["TEMPLATES", "UNSEEN_TEMPLATES", "Pair"]

Pair = tuple[str, str]

_SLOT, _PART = re.compile(r"{(\w+)}"), re.compile(r"\[(.*?)\]")

_FRAMES: tuple[Pair, ...] = (
    # Events
    ("{event} is on {full_date}[ at {time}].", "{event} ist am {full_date}[ um {time} Uhr]."),
    (
        "{event} begins[ on {weekday}][ at {time}][ in {city}].",
        "{event} beginnt[ am {weekday}][ um {time} Uhr][ in {city}].",
    ),
    ("{event} will take place[ on {date}][ in {city}].", "{event} findet[ am {date}][ in {city}] statt."),
    ("{event} ends[ on {day}] at {time}.", "{event} endet[ am {day}] um {time} Uhr."),
    ("{event} lasts {duration}.", "{event} dauert {duration}."),
    ("{event}[ lasts {duration} and] costs {money}.", "{event}[ dauert {duration} und] kostet {money}."),
    (
        "On {weekday}, {event} begins[ at {time}][ in {city}].",
        "Am {weekday} beginnt {event}[ um {time} Uhr][ in {city}].",
    ),
    ("{event}[ in {city}] was canceled[ {ago}].", "{event}[ in {city}] wurde[ {ago}] abgesagt."),
    (
        "{event}[ in {city}] was moved from {weekday} to {day}.",
        "{event}[ in {city}] wurde von {weekday} auf den {day} verschoben.",
    ),
    (
        "In {month_year}, {event} will take place[ in {country}].",
        "Im {month_year} findet {event}[ in {country}] statt.",
    ),
    ("{event} begins {ahead}[ in {city}].", "{event} beginnt {ahead}[ in {city}]."),
    ("{event} will be held[ in {language}][ on {weekday}].", "{event} wird[ am {weekday}][ auf {language}] gehalten."),
    ("{event} is not on {weekday} but on {day}.", "{event} ist nicht am {weekday}, sondern am {day}."),
    ("When does {event} begin[ in {city}]?", "Wann beginnt {event}[ in {city}]?"),
    ("Tickets for {month_year} cost {money}.", "Karten für {month_year} kosten {money}."),
    ("Opening hours on {weekday}: {hours}", "Öffnungszeiten am {weekday}: {hours}"),
    # People
    ("{person} has lived in {country}[ since {month_year}].", "{person} wohnt[ seit {month_year}] in {country}."),
    ("{person} was born[ on {date}] in {city}.", "{person} wurde[ am {date}] in {city} geboren."),
    ("{person} speaks {language1}[ and {language2}].", "{person} spricht {language1}[ und {language2}]."),
    ("{person} is learning {language}[ in {city}].", "{person} lernt[ in {city}] {language}."),
    ("{person} flew[ from {city1}] to {city2}[ {ago}].", "{person} ist[ {ago}][ von {city1}] nach {city2} geflogen."),
    ("{person} comes from {country}[ and works in {city}].", "{person} kommt aus {country}[ und arbeitet in {city}]."),
    ("{person} will travel to {country}[ in {month}].", "{person} reist[ im {month}] nach {country}."),
    (
        "{person} arrived[ in {city}][ on {weekday}][ at {time}].",
        "{person} ist[ am {weekday}][ um {time} Uhr][ in {city}] angekommen.",
    ),
    ("On {day}, {person} paid {money}[ in {city}].", "Am {day} hat {person}[ in {city}] {money} bezahlt."),
    ("{person} runs {distance}[ every {weekday}].", "{person} läuft[ jeden {weekday}] {distance}."),
    ("{person} is on vacation from {day1} to {day2}.", "{person} ist vom {day1} bis zum {day2} im Urlaub."),
    ("{person} has to be in {city}[ by {time}].", "{person} muss[ bis {time} Uhr] in {city} sein."),
    ("{person} wants to stay in {country}[ for {duration}].", "{person} will[ {duration}] in {country} bleiben."),
    ("{person} knows that {event} costs {price}.", "{person} weiß, dass {event} {price} kostet."),
    (
        "{person} knows that {event} begins[ on {weekday}][ at {time}].",
        "{person} weiß, dass {event}[ am {weekday}][ um {time} Uhr] beginnt.",
    ),
    (
        "{person} says that {vehicle}[ to {city}] leaves at {time}.",
        "{person} sagt, dass {vehicle}[ nach {city}] um {time} Uhr abfährt.",
    ),
    ("{person} says that {thing} costs {money}.", "{person} sagt, dass {thing} {money} kostet."),
    (
        "{person} says that {text} is written in {language}.",
        "{person} sagt, dass {text} auf {language} geschrieben ist.",
    ),
    (
        "If {event} lasts {duration}, {person} will stay[ in {city}] until {time}.",
        "Wenn {event} {duration} dauert, bleibt {person} bis {time} Uhr[ in {city}].",
    ),
    ("Does {person} speak {language}?", "Spricht {person} {language}?"),
    ("{person} does not speak {language}.", "{person} spricht kein {language}."),
    ("Is {person} coming[ on {weekday}][ at {time}]?", "Kommt {person}[ am {weekday}][ um {time} Uhr]?"),
    ("{person} is not coming on {day}.", "{person} kommt am {day} nicht."),
    ("Please come to {city}[ on {full_date}].", "Bitte kommen Sie[ am {full_date}] nach {city}."),
    ("Please call[ on {weekday}] before {time}.", "Bitte rufen Sie[ am {weekday}] vor {time} Uhr an."),
    # Texts
    (
        "{text} is written in {language}[ and has {count} words].",
        "{text} ist auf {language} geschrieben[ und hat {count} Wörter].",
    ),
    (
        "{text} has been available[ in {language}] since {date}.",
        "{text} ist seit dem {date}[ auf {language}] verfügbar.",
    ),
    ("{text} is available in {language}.", "{text} ist auf {language} verfügbar."),
    ("{text} was published[ in {city}] in {month_year}.", "{text} wurde im {month_year}[ in {city}] veröffentlicht."),
    # Travel
    (
        "{vehicle}[ from {city1}] to {city2} leaves at {time}.",
        "{vehicle}[ von {city1}] nach {city2} fährt um {time} Uhr ab.",
    ),
    ("{vehicle} leaves[ on {weekday}] at {time}.", "{vehicle} fährt[ am {weekday}] um {time} Uhr ab."),
    (
        "{vehicle} arrives[ in {city}][ on {weekday}] at {time}.",
        "{vehicle} kommt[ am {weekday}] um {time} Uhr[ in {city}] an.",
    ),
    ("{vehicle}[ reaches {speed} and] weighs {weight}.", "{vehicle}[ erreicht {speed} und] wiegt {weight}."),
    ("{vehicle}[ to {city}] is {duration} late.", "{vehicle}[ nach {city}] hat {duration} Verspätung."),
    ("{vehicle} needs {duration}[ for {distance}].", "{vehicle} braucht {duration}[ für {distance}]."),
    (
        "The distance from {city1} to {city2} is {distance}.",
        "Die Entfernung von {city1} nach {city2} beträgt {distance}.",
    ),
    ("How far is it from {city1} to {city2}?", "Wie weit ist es von {city1} nach {city2}?"),
    # Things and quantities
    ("{thing} weighs {weight}[ and costs {money}].", "{thing} wiegt {weight}[ und kostet {money}]."),
    ("{thing} is {length1} wide[ and {length2} high].", "{thing} ist {length1} breit[ und {length2} hoch]."),
    ("Is {thing} {length} wide?", "Ist {thing} {length} breit?"),
    ("{thing} was made in {country}[ {ago}].", "{thing} wurde[ {ago}] in {country} hergestellt."),
    ("{thing} will be delivered[ to {city}] on {full_date}.", "{thing} wird am {full_date}[ nach {city}] geliefert."),
    ("{thing} was sold for {price}[ in {city}].", "{thing} wurde[ in {city}] für {price} verkauft."),
    ("Why does {thing} cost {money}?", "Warum kostet {thing} {money}?"),
    ("The power plant[ in {country}] delivers {power}.", "Das Kraftwerk[ in {country}] liefert {power}."),
    (
        "In {month}, the factory[ in {city}] used {energy}.",
        "Im {month} hat die Fabrik[ in {city}] {energy} verbraucht.",
    ),
    ("The tank holds {volume}[ and weighs {weight}].", "Der Tank fasst {volume}[ und wiegt {weight}]."),
    ("The garden in {city} measures {area}.", "Der Garten in {city} misst {area}."),
    ("The file[ from {date}] is {data} in size.", "Die Datei[ vom {date}] ist {data} groß."),
    ("In {city}, it is {temperature} today.", "In {city} sind es heute {temperature}."),
    ("On {day}, it was {temperature}[ in {city}].", "Am {day} waren es[ in {city}] {temperature}."),
    ("Temperature in {country}[ at {time}]: {temperature}", "Temperatur in {country}[ um {time} Uhr]: {temperature}"),
    # Figures
    (
        "{figure}[ in {country}] rose by {percent}[ in {month_year}].",
        "{figure} ist[ im {month_year}][ in {country}] um {percent} gestiegen.",
    ),
    ("{figure} fell from {number1} to {number2}.", "{figure} ist von {number1} auf {number2} gefallen."),
    ("In {month_year}, {figure} fell by {percent}.", "Im {month_year} ist {figure} um {percent} gefallen."),
    ("In the {quarter}, {figure}[ in {country}] was {price}.", "Im {quarter} betrug {figure}[ in {country}] {price}."),
    (
        "{figure} in {country} is {percent} higher[ than in {month_year}].",
        "{figure} ist in {country} um {percent} höher[ als im {month_year}].",
    ),
    ("{count} people live in {city}.", "In {city} leben {count} Menschen."),
    ("{amount} people live in {country}.", "In {country} leben {amount} Menschen."),
    (
        "{percent} of the people in {country} speak {language}.",
        "{percent} der Menschen in {country} sprechen {language}.",
    ),
    (
        "The exchange rate of the currency {currency} is {number}.",
        "Der Wechselkurs der Währung {currency} ist {number}.",
    ),
    ("The average is {number}[, the maximum {count}].", "Der Durchschnitt ist {number}[, das Maximum {count}]."),
    ("The invoice[ of {medium_date}] is for {money}.", "Die Rechnung[ vom {medium_date}] beträgt {money}."),
    ("Please pay {money}[ by {short_date}].", "Bitte zahlen Sie {money}[ bis zum {short_date}]."),
    ("Valid from {short_date1} to {short_date2}", "Gültig vom {short_date1} bis zum {short_date2}"),
    ("Total: {money}[, of which {percent} tax]", "Summe: {money}[, davon {percent} Steuer]"),
    # Labels
    ("Country: {place}; language: {language}", "Land: {place}; Sprache: {language}"),
    ("Language: {language}[; script: {script}]", "Sprache: {language}[; Schrift: {script}]"),
    ("The script {script} is used for {language}.", "Die Schrift {script} wird für {language} verwendet."),
    ("Currency: {currency}[; amount: {number}]", "Währung: {currency}[; Betrag: {number}]"),
    ("Time zone: {zone}; city: {city}", "Zeitzone: {zone}; Stadt: {city}"),
    ("Date: {medium_date}[; time: {time}]", "Datum: {medium_date}[; Uhrzeit: {time} Uhr]"),
    ("On the list: {place1}, {place2}, and {place3}", "Auf der Liste: {place1}, {place2} und {place3}"),
    ("The map shows: {place1}, {place2}", "Die Karte zeigt: {place1}, {place2}"),
    ("Office[ in {city}] closed: {days}", "Büro[ in {city}] geschlossen: {days}"),
    ("Season in {country}: {months}", "Saison in {country}: {months}"),
)


def _expand(frame: Pair) -> list[Pair]:
    """The frame with each choice of its optional parts; the two sides of a part are known by the slots in it."""
    parts = [{tuple(_SLOT.findall(part)): part for part in _PART.findall(text)} for text in frame]
    assert parts[0].keys() == parts[1].keys(), frame
    expanded = []
    for choice in product((True, False), repeat=len(parts[0])):
        sides = list(frame)
        for kept, key in zip(choice, parts[0], strict=True):
            for side in range(2):
                sides[side] = sides[side].replace(f"[{parts[side][key]}]", parts[side][key] if kept else "")
        expanded.append((sides[0], sides[1]))
    return expanded


TEMPLATES: tuple[Pair, ...] = tuple(template for frame in _FRAMES for template in _expand(frame))

# Made of words that occur in the templates above, in both languages: what is new is how they are put together.
UNSEEN_TEMPLATES: tuple[Pair, ...] = (
    ("{event} begins on {full_date} in {city}.", "{event} beginnt am {full_date} in {city}."),
    ("{event} was moved to {date}.", "{event} wurde auf den {date} verschoben."),
    ("When is {event} in {city}?", "Wann ist {event} in {city}?"),
    ("Is {event} in {country} on {weekday}?", "Ist {event} am {weekday} in {country}?"),
    ("Why was {event} canceled {ago}?", "Warum wurde {event} {ago} abgesagt?"),
    ("{person} says that {event} lasts {duration}.", "{person} sagt, dass {event} {duration} dauert."),
    ("{person} knows that {thing} weighs {weight}.", "{person} weiß, dass {thing} {weight} wiegt."),
    ("On {day}, {person} arrived in {city}.", "Am {day} ist {person} in {city} angekommen."),
    ("{person} has been in {country} since {date}.", "{person} ist seit dem {date} in {country}."),
    ("{person} does not come from {country}.", "{person} kommt nicht aus {country}."),
    ("{person} works in {city} every {weekday}.", "{person} arbeitet jeden {weekday} in {city}."),
    ("{person} flew to {country} on {date}.", "{person} ist am {date} nach {country} geflogen."),
    ("{person} paid {price} in {city}.", "{person} hat in {city} {price} bezahlt."),
    (
        "If {vehicle} needs {duration}, {person} will stay in {city}.",
        "Wenn {vehicle} {duration} braucht, bleibt {person} in {city}.",
    ),
    (
        "{vehicle} to {city} leaves on {weekday} at {time}.",
        "{vehicle} nach {city} fährt am {weekday} um {time} Uhr ab.",
    ),
    ("{thing} costs {price} in {country}.", "{thing} kostet in {country} {price}."),
    ("{thing} is {length} high and weighs {weight}.", "{thing} ist {length} hoch und wiegt {weight}."),
    ("{text} costs {money} and is available in {language}.", "{text} kostet {money} und ist auf {language} verfügbar."),
    ("In {month}, {figure} rose by {percent}.", "Im {month} ist {figure} um {percent} gestiegen."),
    (
        "In the {quarter}, {figure} in {country} fell by {percent}.",
        "Im {quarter} ist {figure} in {country} um {percent} gefallen.",
    ),
    ("Please pay {price} on {weekday}.", "Bitte zahlen Sie am {weekday} {price}."),
    ("Temperature in {city}: {temperature}", "Temperatur in {city}: {temperature}"),
    ("Country: {place}; currency: {currency}", "Land: {place}; Währung: {currency}"),
    (
        "The list shows: {language1}, {language2}, and {language3}",
        "Die Liste zeigt: {language1}, {language2} und {language3}",
    ),
)
