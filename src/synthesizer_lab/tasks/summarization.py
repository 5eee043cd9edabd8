"""Summarization: JSON lines {train,valid,test…}.jsonl of documents and summaries or a hub data set; ROUGE."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from transformers import GenerationConfig

from ..data.files import MalformedLineError, texts_of
from ..data.source import Records, Source
from ..metrics.text import rouge, rouge_signature
from .base import EvaluationLoop, Scores
from .generation import make_generation_config
from .seq2seq import PairRecord, SequenceToSequence, TextPairs

# (document, summary) in CNN/DailyMail, SciTLDR, XSum, arXiv.
KNOWN_FIELDS = (("article", "highlights"), ("source", "target"), ("document", "summary"), ("article", "abstract"))


@dataclass(frozen=True)
class Summarization(SequenceToSequence):
    """Summaries of documents. Trained on the first reference, scored against the best of all.

    Args:
        document_field, summary_field: the fields of a JSON line or columns of a hub data set, by default those of known
            data sets.
        max_summary_tokens: the longest generated summary.
        skip_bad_lines: skip and count malformed lines.
        subset, revision: of a hub data set (hub:OWNER/NAME).
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
    metric_for_best_model: ClassVar[str] = "rougelsum"

    def records(self, data: Path, split: str) -> Records:
        """The documents and summaries in the file of a split, gzip or not, or in a split of a hub data set."""
        source = Source.of(data, split, (".jsonl", ".json"), self.subset, self.revision)
        return Records(
            source, lambda: source.parse(self._parse, self.skip_bad_lines), partial(TextPairs.of, source.split)
        )

    def _parse(self, number: int, row: dict[str, Any]) -> list[PairRecord]:
        """The sentences of a document that is a list are joined by spaces; a summary that is a list has several
        references, whose line breaks end sentences for ROUGE-Lsum. The id is the field `id`, else the number.
        """
        known = next((pair for pair in KNOWN_FIELDS if row.keys() >= {*pair}), KNOWN_FIELDS[0])
        fields = (self.document_field or known[0], self.summary_field or known[1])
        document = " ".join(texts_of(row, fields[0], option="document_field"))
        summaries = tuple(filter(str.strip, texts_of(row, fields[1], option="summary_field")))
        if not document.strip() or not summaries:
            raise MalformedLineError(f"field {fields[bool(document.strip())]!r} is blank")
        return [(str(row.get("id", number)), document, summaries)]

    def generation_config(self, options: Mapping[str, Any]) -> GenerationConfig:
        """Beam search of at most `max_summary_tokens` tokens, updated by `options`."""
        return make_generation_config(options, max_new_tokens=self.max_summary_tokens)

    def score(self, outputs: Sequence[str], references: Sequence[Any], loop: EvaluationLoop | None = None) -> Scores:
        """ROUGE-1, -2, -L and -Lsum of rouge-score, the best over the references."""
        return {**rouge(outputs, references), "rouge1_signature": rouge_signature()}
