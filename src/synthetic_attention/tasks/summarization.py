"""Summarization: JSON lines {train,valid,test…}.jsonl of documents and summaries or the hub, scored with ROUGE."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from ..data.files import split_file
from ..data.hub import HubSet, is_hub_name
from ..data.summarization import read_hub_summaries, read_summaries
from ..data.text import fingerprint
from ..errors import UserError
from ..metrics.rouge import rouge, rouge_l_per_example, rouge_per_example, rouge_signature
from .generation import GREEDY, BeamSearch
from .seq2seq import SequenceToSequence, TextPairs
from .side_by_side import Scored, best_and_worst
from .types import Scores

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

__all__ = ["Summaries", "Summarization"]


@dataclass(frozen=True)
class Summaries(TextPairs):
    """A split: `sources` are documents, `targets` the first summary of each on one line, `references` all of them."""

    ids: list[str]
    references: list[tuple[str, ...]]

    def fingerprint(self) -> dict[str, str | int]:
        """What tells whether two runs read the same text."""
        texts = ["\0".join(several) for several in self.references]
        return {**super().fingerprint(), "references_sha256": fingerprint(texts)}


@dataclass(frozen=True)
class Summarization(SequenceToSequence):
    """Summaries of documents. Trained on the first reference, scored against the best of all.

    Args:
        document_field, summary_field: the fields of a JSON line; by default those that known data sets have. Of a data
            set on the hub, the columns; by default article and highlights.
        max_summary_tokens: the longest summary that is written.
        skip_bad_lines: leave malformed lines out and count them, rather than refuse them.
        subset, revision: of a data set on the hub (hub:OWNER/NAME).
    """

    document_field: str | None = None
    summary_field: str | None = None
    max_summary_tokens: int = 128
    skip_bad_lines: bool = False
    subset: str | None = None
    revision: str | None = None
    name: ClassVar[str] = "summarization"
    score_labels: ClassVar[Mapping[str, str]] = {
        "rouge1": "ROUGE-1",
        "rouge2": "ROUGE-2",
        "rougel": "ROUGE-L",
        "rougelsum": "ROUGE-Lsum",
    }
    selects_by: ClassVar[str] = "rougelsum"
    packages: ClassVar[tuple[str, ...]] = ("rouge-score", "sentencex")

    def __post_init__(self) -> None:
        if self.max_summary_tokens < 1:
            raise UserError(f"got max_summary_tokens={self.max_summary_tokens}; expected at least 1")

    def read(self, data: Path, split: str) -> Summaries:
        """Read the file of a split, packed or not, or a split of a data set on the hub.

        Raises:
            UserError: it is missing or cannot be read, or a line is malformed and `skip_bad_lines` is off.
        """
        fields = (self.document_field, self.summary_field)
        if is_hub_name(data):
            source = HubSet.of(data, self.subset, self.revision)
            name, parsed = split, read_hub_summaries(source, split, *fields, self.skip_bad_lines)
        else:
            path = split_file(data, split, (".jsonl", ".json"))
            name, parsed = path.name.split(".")[0], read_summaries(path, *fields, self.skip_bad_lines)
        return Summaries(
            name,
            [row.document for row in parsed.records],
            [" ".join(row.summaries[0].split()) for row in parsed.records],
            [row.id for row in parsed.records],
            [row.summaries for row in parsed.records],
            skipped=parsed.skipped,
        )

    def references(self, split: TextPairs, rows: Sequence[int]) -> Sequence[tuple[str, ...]]:
        """All summaries of each document."""
        assert isinstance(split, Summaries)
        return [split.references[row] for row in rows]

    def score(self, predictions: Sequence[str], references: Sequence[tuple[str, ...]]) -> Scores:
        """ROUGE-1, -2, -L and -Lsum with rouge-score, best over the references."""
        scores: Scores = {**rouge(predictions, references)}
        return {**scores, "rouge1_signature": rouge_signature()}

    def greedy(self, split: TextPairs, tokenizer: PreTrainedTokenizerFast) -> BeamSearch:
        """Greedy, to the longest summary."""
        return replace(GREEDY, max_tokens=self.max_summary_tokens)

    def search(self, options: Mapping[str, Any]) -> BeamSearch:
        """Beam search to the longest summary, unless `options` say otherwise."""
        return super().search({"max_tokens": self.max_summary_tokens, **options})

    def shown(self, split: TextPairs, texts: Sequence[str]) -> dict[str, str]:
        """The best and the worst summaries by ROUGE-L."""
        assert isinstance(split, Summaries)
        references = split.references
        scores = rouge_l_per_example(texts, references)
        rows = zip(split.ids, split.sources, references, texts, scores, strict=True)
        return {"examples.md": best_and_worst(split.name, "ROUGE-L", [Scored(*row) for row in rows])}

    def predictions(self, split: TextPairs, texts: Sequence[str]) -> tuple[str, str]:
        """JSON lines: id, document, gold (the references), predicted, score (ROUGE-Lsum), and each ROUGE."""
        assert isinstance(split, Summaries)
        each = rouge_per_example(texts, split.references)
        rows = zip(split.ids, split.sources, split.references, texts, each, strict=True)
        lines = [
            {
                "id": name,
                "document": document,
                "gold": references,
                "predicted": text,
                "score": scores["rougelsum"],
                **scores,
            }
            for name, document, references, text, scores in rows
        ]
        return "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines), "jsonl"
