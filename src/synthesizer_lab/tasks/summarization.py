"""Summarization: JSON lines {train,valid,test…}.jsonl of documents and summaries or a hub data set; ROUGE."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from ..data.files import split_file
from ..data.hub import HubDataset, is_hub_name
from ..data.records import Records
from ..data.summarization import read_summaries
from ..metrics.text import rouge, rouge_signature
from .base import EvaluationLoop, Scores
from .generation import make_generation_config
from .seq2seq import PairRecord, SequenceToSequence

if TYPE_CHECKING:
    from transformers import GenerationConfig


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
    packages: ClassVar[tuple[str, ...]] = ("rouge-score", "sentencex")

    def records(self, data: Path, split: str, stream: bool = False) -> Records[PairRecord]:
        """The documents and summaries in the file of a split, gzip or not, or in a split of a hub data set."""
        fields = (self.document_field, self.summary_field, self.skip_bad_lines)

        def read(source: Path | tuple[HubDataset, str]) -> Iterator[PairRecord | None]:
            for summary in read_summaries(source, *fields, stream):
                yield None if summary is None else PairRecord(summary.id, summary.document, summary.references)

        if is_hub_name(data):
            hub = HubDataset.of(data, self.subset, self.revision)
            return Records(split, lambda: read((hub, split)), size=lambda: hub.size(split))
        path = split_file(data, split, (".jsonl", ".json"))
        return Records(path.name.split(".")[0], lambda: read(path), (path,))

    def generation_config(self, options: Mapping[str, Any]) -> GenerationConfig:
        """Beam search of at most `max_summary_tokens` tokens, updated by `options`."""
        return make_generation_config(options, max_new_tokens=self.max_summary_tokens)

    def score(self, outputs: Sequence[str], references: Sequence[Any], loop: EvaluationLoop | None = None) -> Scores:
        """ROUGE-1, -2, -L and -Lsum of rouge-score, the best over the references."""
        return {**rouge(outputs, references), "rouge1_signature": rouge_signature()}
