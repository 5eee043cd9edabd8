"""Dialogues with a persona: ConvAI2's text, or JSON lines.

ConvAI2's text has a numbered line for each fact and each turn; the numbers restart with each dialogue:

    1 your persona: i like to ski.
    2 partner's persona: i am a vet.
    3 hello there .<TAB>hi , do you ski ?[<TAB>reward<TAB>candidate|candidate|…]

A turn is an utterance of the partner and the reply; only replies are learned and scored. `__SILENCE__` in place of an
utterance means that the partner says nothing: in the first turn, the reply opens the dialogue.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import dropwhile
from typing import Any

from .files import MalformedLineError, texts_of

SILENCE = "__SILENCE__"
_PERSONAS = {"your persona:": "persona", "partner's persona:": "partner_persona"}


@dataclass(frozen=True)
class Turn:
    """A reply, with its id ("12.3" is the third of the twelfth dialogue), the history with the oldest utterance first
    (blank for silence), one or several references, and facts about the speaker of the reply and the partner.
    """

    id: str
    history: tuple[str, ...]
    references: tuple[str, ...]
    persona: tuple[str, ...] = ()
    partner_persona: tuple[str, ...] = ()


def _utterance(text: str) -> str:
    return "" if text.strip() == SILENCE else text.strip()


class ConvAI2:
    """Reads ConvAI2's persona text line by line. Skipped lines are missing in the history of later turns."""

    def __init__(self) -> None:
        self.dialogue = self.number = self.replies = 0
        self.personas: dict[str, tuple[str, ...]] = {}
        self.history: list[str] = []

    def turns(self, _: int, line: str) -> Iterator[Turn]:
        """The turn on a line; none if the line is blank or has a fact, or the reply is silence."""
        if not line.strip():
            return
        text = self._follow(line)
        for mark, name in _PERSONAS.items():
            if text.startswith(mark):
                fact = text.removeprefix(mark).strip()
                if self.history or not fact:
                    raise MalformedLineError("the persona is blank, or after the first turn")
                self.personas[name] = (*self.personas.get(name, ()), fact)
                return
        if "\t" not in text:
            raise MalformedLineError("no tab; expected 'utterance<TAB>reply'")
        # A reward and candidates may follow, which are not used.
        utterance, reply = (column.strip() for column in text.split("\t")[:2])
        if not utterance or not reply:
            raise MalformedLineError(f"the {'reply' if utterance else 'utterance'} is blank")
        if utterance != SILENCE or self.history:
            self.history.append(_utterance(utterance))
        if reply != SILENCE:
            self.replies += 1
            yield Turn(f"{self.dialogue}.{self.replies}", tuple(self.history), (reply,), **self.personas)
        self.history.append(_utterance(reply))

    def _follow(self, line: str) -> str:
        """The line without its number, which continues the dialogue or starts another."""
        number, _, text = line.partition(" ")
        # A line without number counts, or the next one would be out of order too.
        is_number = number.isdecimal() and len(number) < 10
        previous, self.number = self.number, int(number) if is_number else self.number + 1
        if not is_number:
            raise MalformedLineError("no number before the text; expected 'N text'")
        if self.number <= previous or previous == 0:
            self.dialogue += 1
            self.personas, self.history, self.replies = {}, [], 0
        if self.number not in (1, previous + 1):
            raise MalformedLineError(f"number {number} follows {previous}; expected {previous + 1}, or 1 to restart")
        return text


def json_turn(number: int, row: Mapping[str, Any]) -> Iterator[Turn]:
    """A turn from an object with `history` and `reply`.

    The history is a text or a list of utterances, oldest first; the reply a text, or a list of references; the persona
    is optional, a text or a list of facts. The id is the field `id`, else the number of the line.
    """
    persona = texts_of(row, "persona") if "persona" in row else []
    history = dropwhile(lambda text: not text, map(_utterance, texts_of(row, "history")))
    references = tuple(text.strip() for text in texts_of(row, "reply") if text.strip())
    if not references:
        raise MalformedLineError("field 'reply' is blank")
    facts = tuple(text.strip() for text in persona if text.strip())
    yield Turn(str(row.get("id", number)), tuple(history), references, facts)
