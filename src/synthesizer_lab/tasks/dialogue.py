"""Dialogue: the next reply from a persona and a history; ConvAI2's persona text or JSON lines {train,valid,test…}."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar, Literal, cast

from transformers import GenerationConfig

from ..data.persona import ConvAI2, Turn, json_turn
from ..data.source import Records, Source, is_hub_name
from ..data.tokenizer import Tokenizer, encode
from ..errors import UserError
from ..metrics.embeddings import OWN_VECTORS, embedding_scores, read_word_vectors
from ..metrics.text import dialogue_scores
from .base import EvaluationLoop, Scores
from .generation import make_generation_config
from .seq2seq import PairRecord, SequenceToSequence, TextPairs

# Splits a source before each utterance.
_UTTERANCE = re.compile(r"(?:^|\s+)(?=(?:partner|self):\s)")


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
            weight = cast(Any, loop.model.get_input_embeddings()).weight.detach()
            weight = (weight.full_tensor() if loop.is_sharded else weight).float().cpu().numpy()
            scores = embedding_scores(outputs, references, lambda text: weight[encode(loop.tokenizer, [text])[0][:-1]])
            signature = OWN_VECTORS
        else:
            words = {word for text in chain(outputs, *references) for word in text.split()}
            scores = embedding_scores(outputs, references, read_word_vectors(Path(self.vectors), words))
            signature = f"vectors:{Path(self.vectors).name}"
        signatures = {f"embedding_{way}_signature": signature for way in ("average", "extrema", "greedy")}
        return {**dialogue_scores(outputs, references), **scores, **signatures}
