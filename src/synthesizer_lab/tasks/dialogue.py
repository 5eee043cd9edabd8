"""Dialogue: the next reply from a persona and a history; ConvAI2's persona text or JSON lines {train,valid,test…}.

ConvAI2's text has a numbered line for each fact and each turn; the numbers restart with each dialogue:

    1 your persona: i like to ski.
    2 partner's persona: i am a vet.
    3 hello there .<TAB>hi , do you ski ?[<TAB>reward<TAB>candidate|candidate|…]

A turn is an utterance of the partner and the reply; only replies are learned and scored. `__SILENCE__` in place of an
utterance means that the partner says nothing: in the first turn, the reply opens the dialogue.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, dropwhile
from pathlib import Path
from typing import Any, ClassVar, Literal, cast

from transformers import GenerationConfig

from ..data.files import MalformedLineError, texts_of
from ..data.source import Records, Source, is_hub_name
from ..data.tokenizer import Tokenizer, encode
from ..errors import UserError
from ..metrics.text import OWN_VECTORS, dialogue_scores, embedding_scores, read_word_vectors
from .base import EvaluationLoop, Scores
from .generation import make_generation_config
from .seq2seq import PairRecord, SequenceToSequence, TextPairs

SILENCE = "__SILENCE__"
_PERSONAS = {"your persona:": "persona", "partner's persona:": "partner_persona"}
# Splits a source before each utterance.
_UTTERANCE = re.compile(r"(?:^|\s+)(?=(?:partner|self):\s)")


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


@dataclass(frozen=True)
class Dialogue(SequenceToSequence):
    """The next reply in a dialogue. Trained on the first reference, scored against all.

    Args:
        history: the number of utterances before the reply that the model reads; null for all.
        persona: whose facts the model reads: those of the one who replies ("own"), the partner's, both, or none.
        vectors: a file of word vectors in the text format of GloVe or word2vec for embedding similarity; by default
            the model's input embeddings of tokens.
        max_reply_tokens: the longest generated reply.
        skip_bad_lines: skip and count malformed lines.
    """

    history: int | None = 5
    persona: Literal["own", "partner", "both", "none"] = "own"
    vectors: str | None = None
    max_reply_tokens: int = 64
    skip_bad_lines: bool = False
    name: ClassVar[str] = "dialogue"
    score_labels: ClassVar[Mapping[str, str]] = {
        "bleu1": "BLEU-1",
        "bleu4": "BLEU-4",
        "rougel": "ROUGE-L",
        "meteor": "METEOR",
        "cider": "CIDEr",
        "embedding_average": "embedding average",
        "embedding_extrema": "extrema",
        "embedding_greedy": "greedy",
        "loss": "loss",
    }
    # Text scores say little about small models: the best have a BLEU-4 of about 3.
    metric_for_best_model: ClassVar[str] = "loss"
    unit: ClassVar[str] = "replies"
    evaluation_options: ClassVar[frozenset[str]] = frozenset({"vectors"})

    def __post_init__(self) -> None:
        if self.vectors is not None:
            # Independent of the working directory.
            object.__setattr__(self, "vectors", str(Path(self.vectors).absolute()))

    def check_requirements(self) -> None:
        """Check that the file of word vectors exists."""
        if self.vectors is not None and not Path(self.vectors).is_file():
            raise UserError(f"{self.vectors}: no such file of word vectors")

    def records(self, data: Path, split: str) -> Records:
        """The replies in the file of a split, gzip or not: .txt is ConvAI2's persona text, .jsonl JSON lines."""
        if is_hub_name(data):
            raise UserError(f"got {data}, but task {self.name} reads local files only; expected a folder of them")
        source = Source.of(data, split, (".txt", ".jsonl", ".json"))

        def read() -> Iterator[PairRecord | None]:
            # A new state of the dialogue that is read.
            parse = ConvAI2().turns if ".txt" in source.files[0].suffixes else json_turn
            for turn in source.parse(parse, self.skip_bad_lines):
                yield None if turn is None else (turn.id, self.source(turn), turn.references)

        return Records(source, read, partial(TextPairs.of, source.split))

    def source(self, turn: Turn) -> str:
        """The model's input: facts, then utterances, each after the name of its side; the last is the partner's."""
        both = turn.persona + turn.partner_persona
        facts = {"own": turn.persona, "partner": turn.partner_persona, "both": both, "none": ()}[self.persona]
        # The sides alternate, and the partner speaks before a reply.
        sides = ("partner:" if place % 2 else "self:" for place in range(len(turn.history), 0, -1))
        said = [f"{side} {text}" for side, text in zip(sides, turn.history, strict=True) if text]
        first = 0 if self.history is None else max(0, len(said) - self.history)
        return " ".join(" ".join([*(f"persona: {fact}" for fact in facts), *said[first:], "reply:"]).split())

    def shorten(self, source: str, reference: Any, tokenizer: Tokenizer, max_length: int) -> str:
        """Leave the oldest utterances out; the last always stays."""
        facts, *said = _UTTERANCE.split(source)
        while len(said) > 1 and len(encode(tokenizer, [source])[0]) > max_length:
            said = said[1:]
            source = " ".join([facts, *said]).strip()
        return source

    def generation_config(self, options: Mapping[str, Any]) -> GenerationConfig:
        """Beam search of at most `max_reply_tokens` tokens, updated by `options`."""
        return make_generation_config(options, max_new_tokens=self.max_reply_tokens)

    def score(self, outputs: Sequence[str], references: Sequence[Any], loop: EvaluationLoop | None = None) -> Scores:
        """BLEU-1, BLEU-4 and ROUGE-L; in an evaluation also METEOR, CIDEr and embedding similarity."""
        if loop is None:
            return dialogue_scores(outputs, references, quick=True)
        if self.vectors is None:
            weight = cast(Any, loop.model.get_input_embeddings()).weight.detach().float().cpu().numpy()
            scores = embedding_scores(outputs, references, lambda text: weight[encode(loop.tokenizer, [text])[0][:-1]])
            signature = OWN_VECTORS
        else:
            words = {word for text in chain(outputs, *references) for word in text.split()}
            scores = embedding_scores(outputs, references, read_word_vectors(Path(self.vectors), words))
            signature = f"vectors:{Path(self.vectors).name}"
        signatures = {f"embedding_{way}_signature": signature for way in ("average", "extrema", "greedy")}
        return {**dialogue_scores(outputs, references), **scores, **signatures}
