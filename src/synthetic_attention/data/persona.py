"""Dialogues with a persona: ConvAI2's text, or JSON lines.

ConvAI2's text has a numbered line for each fact and each turn; the numbering restarts with each dialogue:

    1 your persona: i like to ski.
    2 partner's persona: i am a vet.
    3 hello there .<TAB>hi , do you ski ?[<TAB>reward<TAB>candidate|candidate|…]

A turn is what the partner says and what is replied; only replies are learned and scored. Where the partner says
`__SILENCE__` there is nothing to reply to: at the beginning the reply opens the dialogue, later the turn is blank.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from .lines import MalformedLineError, Parsed, collect, json_object, numbered_lines, texts_of

__all__ = ["SILENCE", "Turn", "read_convai2", "read_dialogue_json"]

SILENCE = "__SILENCE__"
_NUMBERED = re.compile(r"(\d+) (.*)", re.DOTALL)
_PERSONAS = {"your persona:": "persona", "partner's persona:": "partner_persona"}


@dataclass(frozen=True)
class Turn:
    """One reply to learn.

    Args:
        id: dialogue and turn, both from 1: "12.3"; or the id of the file.
        history: what both said in turn before the reply, oldest first; its end is the partner's. Blank where one was
            silent.
        references: the reply; files of JSON lines may have several.
        persona, partner_persona: facts about the one who replies, and about the other.
        candidates: replies to choose from, the right one among them, where the file has them.
    """

    id: str
    history: tuple[str, ...]
    references: tuple[str, ...]
    persona: tuple[str, ...] = ()
    partner_persona: tuple[str, ...] = ()
    candidates: tuple[str, ...] = ()


def read_convai2(path: Path, skip_bad_lines: bool = False) -> Parsed[Turn]:
    """Read ConvAI2's persona text, a record for each reply.

    Args:
        skip_bad_lines: leave malformed lines out and count them. The history of later turns then lacks them.

    Raises:
        UserError: the file cannot be read, or a line is malformed: without number, out of order, a fact after the
            first turn, a turn without reply.
    """
    return collect(path, numbered_lines(path), _ConvAI2().turns, skip_bad_lines)


def _said(utterance: str) -> str:
    """What was said; nothing where the file says so."""
    return "" if utterance.strip() == SILENCE else utterance.strip()


class _ConvAI2:
    """The dialogue that is being read."""

    def __init__(self) -> None:
        self.dialogue = 0
        self.number = 0
        self._start()

    def _start(self) -> None:
        self.personas: dict[str, list[str]] = {name: [] for name in _PERSONAS.values()}
        self.history: list[str] = []
        self.replies = 0

    def turns(self, _: int, line: str) -> Iterator[Turn]:
        """The turn on a line; none where the line has a fact. The number of the line in the file is not needed."""
        text = self._follow(line)
        for mark, name in _PERSONAS.items():
            if text.startswith(mark):
                self._add_fact(name, text.removeprefix(mark).strip())
                return
        yield from self._turn(text)

    def _follow(self, line: str) -> str:
        """The line without its number, which says whether it goes on with the dialogue or begins another."""
        match = _NUMBERED.fullmatch(line)
        if match is None:
            # The line takes a number all the same, or the next one would be out of order too.
            self.number += 1
            raise MalformedLineError("no number before the text; expected 'N text'")
        number, previous = int(match[1]), self.number
        self.number = number
        if number <= previous or previous == 0:
            self.dialogue += 1
            self._start()
        if number not in (1, previous + 1):
            raise MalformedLineError(f"number {number} follows {previous}; expected {previous + 1}, or 1 to restart")
        return match[2]

    def _add_fact(self, name: str, fact: str) -> None:
        if self.history:
            raise MalformedLineError("a persona after the first turn; expected personas first")
        if not fact:
            raise MalformedLineError("the persona is blank")
        self.personas[name].append(fact)

    def _turn(self, text: str) -> Iterator[Turn]:
        """The turn, unless nothing was replied."""
        utterance, *rest = text.split("\t")
        if not rest:
            raise MalformedLineError("no tab; expected 'utterance<TAB>reply'")
        # After the reply come a reward, unused here, and the candidates.
        reply, _, candidates, *more = [*rest, *[""] * max(0, 3 - len(rest))]
        if more:
            raise MalformedLineError(f"got {len(rest) + 1} columns; expected at most 4")
        if not utterance.strip() or not reply.strip():
            raise MalformedLineError(f"the {'reply' if utterance.strip() else 'utterance'} is blank")
        if utterance.strip() != SILENCE or self.history:
            self.history.append(_said(utterance))
        if reply.strip() != SILENCE:
            self.replies += 1
            yield Turn(
                id=f"{self.dialogue}.{self.replies}",
                history=tuple(self.history),
                references=(reply.strip(),),
                candidates=tuple(candidate.strip() for candidate in candidates.split("|") if candidate.strip()),
                **{name: tuple(facts) for name, facts in self.personas.items()},
            )
        self.history.append(_said(reply))


def read_dialogue_json(
    path: Path,
    persona_field: str = "persona",
    history_field: str = "history",
    reply_field: str = "reply",
    skip_bad_lines: bool = False,
) -> Parsed[Turn]:
    """Read JSON lines, a reply each, gzip or not.

    `history` is a text or a list of utterances, oldest first; `reply` a text, or a list of several references;
    `persona`, which may be missing, a text or a list of facts. An `id` is kept, else it is the number of the line.

    Raises:
        UserError: the file cannot be read, or a line is malformed and `skip_bad_lines` is off.
    """

    def parse(number: int, line: str) -> Iterator[Turn]:
        row = json_object(line)
        persona = texts_of(row, persona_field) if persona_field in row else []
        history = [_said(text) for text in texts_of(row, history_field)]
        while history and not history[0]:
            history.pop(0)
        references = tuple(text.strip() for text in texts_of(row, reply_field) if text.strip())
        if not references:
            raise MalformedLineError(f"field {reply_field!r} is blank")
        yield Turn(
            id=str(row.get("id", number)),
            history=tuple(history),
            references=references,
            persona=tuple(text.strip() for text in persona if text.strip()),
        )

    return collect(path, numbered_lines(path), parse, skip_bad_lines)
