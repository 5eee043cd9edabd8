"""Dialogue: from a persona and what was said to the reply; ConvAI2's persona text or JSON lines {train,valid,test…}."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, cast

from ..data.files import split_file
from ..data.hub import is_hub_name
from ..data.persona import Turn, read_convai2, read_dialogue_json
from ..data.text import fingerprint
from ..data.tokenizer import encode
from ..errors import UserError
from ..metrics.dialogue import dialogue_scores, is_mended, quick_scores
from ..metrics.embeddings import OWN_VECTORS, Embed, embedding_scores, read_word_vectors
from ..metrics.rouge import rouge_l_per_example
from .generation import GREEDY, BeamSearch
from .seq2seq import SequenceToSequence, TextPairs
from .side_by_side import Scored, best_and_worst
from .types import Scores

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerFast

__all__ = ["Dialogue", "Turns"]

# Before each utterance of what `Dialogue.source` makes.
_UTTERANCE = re.compile(r"(?:^|\s+)(?=(?:partner|self):\s)")


@dataclass(frozen=True)
class Turns(TextPairs):
    """A split: `sources` are personas and histories as text, `targets` the first reference of each reply."""

    turns: list[Turn]

    def fingerprint(self) -> dict[str, str | int]:
        """What tells whether two runs read the same text."""
        texts = ["\0".join(turn.references) for turn in self.turns]
        return {**super().fingerprint(), "references_sha256": fingerprint(texts)}


@dataclass(frozen=True)
class Dialogue(SequenceToSequence):
    """The next reply in a dialogue. Trained on the first reference, scored against all.

    Args:
        history: how many utterances before the reply are read, the last ones; null for all.
        persona: whose facts are read: those of the one who replies ("own"), of the partner, of both, or none.
        persona_field, history_field, reply_field: the fields of JSON lines.
        vectors: a file of word vectors in GloVe's or word2vec's text format, for embedding similarity; without it
            the model's own input embeddings serve, and its pieces are the words.
        max_reply_tokens: the longest reply that is written.
        skip_bad_lines: leave malformed lines out and count them, rather than refuse them.
    """

    history: int | None = 5
    persona: Literal["own", "partner", "both", "none"] = "own"
    persona_field: str = "persona"
    history_field: str = "history"
    reply_field: str = "reply"
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
    # The scores of text say little of small models: BLEU-4 is about 3 for the best.
    selects_by: ClassVar[str] = "loss"
    larger_is_better: ClassVar[bool] = False
    unit: ClassVar[str] = "replies"
    packages: ClassVar[tuple[str, ...]] = ("sacrebleu", "rouge-score", "pycocoevalcap")
    scoring_options: ClassVar[frozenset[str]] = frozenset({"vectors"})

    def __post_init__(self) -> None:
        for name, value, least in (("history", self.history, 0), ("max_reply_tokens", self.max_reply_tokens, 1)):
            if value is not None and value < least:
                raise UserError(f"got {name}={value}; expected at least {least}")
        if self.vectors is not None:
            # From wherever the run is scored, it means the same.
            object.__setattr__(self, "vectors", str(Path(self.vectors).absolute()))

    def check(self) -> None:
        """Refuse a file of word vectors that is not there."""
        if self.vectors is not None and not Path(self.vectors).is_file():
            raise UserError(f"{self.vectors}: no such file of word vectors")

    def read(self, data: Path, split: str) -> Turns:
        """Read the file of a split: .txt is ConvAI2's persona text, .jsonl JSON lines; either may be packed.

        Raises:
            UserError: it is missing or cannot be read, or a line is malformed and `skip_bad_lines` is off.
        """
        if is_hub_name(data):
            raise UserError(f"got {data}, but task {self.name} reads local files only; expected a folder of them")
        path = split_file(data, split, (".txt", ".jsonl", ".json"))
        if path.name.removesuffix(".gz").endswith(".txt"):
            parsed = read_convai2(path, self.skip_bad_lines)
        else:
            fields = (self.persona_field, self.history_field, self.reply_field)
            parsed = read_dialogue_json(path, *fields, self.skip_bad_lines)
        turns = parsed.records
        return Turns(
            path.name.split(".")[0],
            [self.source(turn) for turn in turns],
            [" ".join(turn.references[0].split()) for turn in turns],
            turns,
            skipped=parsed.skipped,
        )

    def source(self, turn: Turn, history: int | None = None) -> str:
        """What a model reads: facts, then utterances, each after the name of its side; the last is the partner's.

        Args:
            history: utterances, if fewer than the task's.
        """
        facts = {"own": turn.persona, "partner": turn.partner_persona, "none": ()}
        chosen = facts["own"] + facts["partner"] if self.persona == "both" else facts[self.persona]
        kept = self._kept(turn) if history is None else history
        # Who speaks alternates, and before a reply it was the partner's turn.
        sides = ("partner:" if place % 2 else "self:" for place in range(len(turn.history), 0, -1))
        said = [f"{side} {text}" for side, text in zip(sides, turn.history, strict=True) if text]
        lines = [*(f"persona: {fact}" for fact in chosen), *said[len(said) - kept :], "reply:"]
        return " ".join(" ".join(lines).split())

    def _kept(self, turn: Turn) -> int:
        said = sum(map(bool, turn.history))
        return said if self.history is None else min(self.history, said)

    def shorten(self, split: TextPairs, tokenizer: PreTrainedTokenizerFast, maximum: int) -> tuple[TextPairs, int]:
        """As much history in each source as fits: what a source loses is its oldest utterances, not its end."""
        assert isinstance(split, Turns)
        sources = list(split.sources)
        rows = [row for row, ids in enumerate(encode(tokenizer, sources)) if len(ids) > maximum]
        for row in rows:
            for kept in range(self._kept(split.turns[row]) - 1, -1, -1):
                sources[row] = self.source(split.turns[row], kept)
                if len(encode(tokenizer, [sources[row]])[0]) <= maximum:
                    break
        return replace(split, sources=sources), len(rows)

    def shorten_lines(
        self, lines: Sequence[str], tokenizer: PreTrainedTokenizerFast, maximum: int
    ) -> tuple[Sequence[str], int]:
        """Those that are too long without their oldest utterances, as long as there are two."""
        return _without_oldest(lines, tokenizer, maximum)

    def references(self, split: TextPairs, rows: Sequence[int]) -> Sequence[tuple[str, ...]]:
        """All references of each reply."""
        assert isinstance(split, Turns)
        return [split.turns[row].references for row in rows]

    def score(self, predictions: Sequence[str], references: Sequence[tuple[str, ...]]) -> Scores:
        """BLEU-1, BLEU-4 and ROUGE-L."""
        return quick_scores(predictions, references)

    def can_compute(self, score: str, reason: str) -> bool:
        """METEOR wants Java, and it and CIDEr want pycocoevalcap."""
        return is_mended(reason)

    def final_scores(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerFast,
        predictions: Sequence[str],
        references: Sequence[tuple[str, ...]],
    ) -> Scores:
        """METEOR, CIDEr and embedding similarity besides. What cannot be computed here is a text that says why."""
        scores = dialogue_scores(predictions, references)
        if self.vectors is None:
            embed, signature = _input_embeddings(model, tokenizer), OWN_VECTORS
        else:
            words = {word for text in chain(predictions, *references) for word in text.split()}
            embed, signature = read_word_vectors(Path(self.vectors), words), f"vectors:{Path(self.vectors).name}"
        return {
            **scores,
            **embedding_scores(predictions, references, embed),
            **{f"embedding_{way}_signature": signature for way in ("average", "extrema", "greedy")},
        }

    def greedy(self, split: TextPairs, tokenizer: PreTrainedTokenizerFast) -> BeamSearch:
        """Greedy, to the longest reply."""
        return replace(GREEDY, max_tokens=self.max_reply_tokens)

    def search(self, options: Mapping[str, Any]) -> BeamSearch:
        """Beam search to the longest reply, unless `options` say otherwise."""
        return super().search({"max_tokens": self.max_reply_tokens, **options})

    def shown(self, split: TextPairs, texts: Sequence[str]) -> dict[str, str]:
        """The best and the worst replies by ROUGE-L."""
        assert isinstance(split, Turns)
        references = [turn.references for turn in split.turns]
        scores = rouge_l_per_example(texts, references)
        rows = zip([turn.id for turn in split.turns], split.sources, references, texts, scores, strict=True)
        return {"examples.md": best_and_worst(split.name, "ROUGE-L", [Scored(*row) for row in rows])}

    def predictions(self, split: TextPairs, texts: Sequence[str]) -> tuple[str, str]:
        """JSON lines: id, what was read, gold (the references), predicted, score (ROUGE-L)."""
        assert isinstance(split, Turns)
        scores = rouge_l_per_example(texts, [turn.references for turn in split.turns])
        lines = [
            {"id": turn.id, "source": source, "gold": turn.references, "predicted": text, "score": score}
            for turn, source, text, score in zip(split.turns, split.sources, texts, scores, strict=True)
        ]
        return "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines), "jsonl"


def _without_oldest(
    lines: Sequence[str], tokenizer: PreTrainedTokenizerFast, maximum: int
) -> tuple[Sequence[str], int]:
    """The lines, those over `maximum` tokens without the first of their utterances; how many those are."""
    shortened = list(lines)
    rows = [row for row, ids in enumerate(encode(tokenizer, lines)) if len(ids) > maximum]
    for row in rows:
        facts, *said = _UTTERANCE.split(lines[row])
        while len(said) > 1 and len(encode(tokenizer, [shortened[row]])[0]) > maximum:
            said = said[1:]
            shortened[row] = " ".join([facts, *said]).strip()
    return shortened, len(rows)


def _input_embeddings(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast) -> Embed:
    """The vectors of the pieces of a text, without `</s>`."""
    weight = cast(Any, model.get_input_embeddings()).weight.detach().float().cpu().numpy()
    return lambda text: weight[encode(tokenizer, [text])[0][:-1]]
