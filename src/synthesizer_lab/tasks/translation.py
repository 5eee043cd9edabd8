"""Translation: parallel text {train,valid,test…}.{language} or a hub data set, scored with BLEU and chrF."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from ..data.files import find_split, parallel_lines
from ..data.hub import HubDataset, is_hub_name
from ..data.records import Records
from ..errors import UserError
from .base import EvaluationLoop, Scores
from .seq2seq import SequenceToSequence, TextPairs


@dataclass(frozen=True)
class Translation(SequenceToSequence):
    """Translation from one language to another.

    Args:
        source, target: the languages, as the suffixes of the files.
        column: of a hub data set: the column with both languages by name, as in WMT; null if each language is a column.
        subset, revision: of a hub data set (hub:OWNER/NAME).
    """

    source: str
    target: str
    column: str | None = "translation"
    subset: str | None = None
    revision: str | None = None
    name: ClassVar[str] = "translation"
    score_labels: ClassVar[Mapping[str, str]] = {"bleu": "BLEU", "chrf": "chrF"}
    metric_for_best_model: ClassVar[str] = "bleu"
    packages: ClassVar[tuple[str, ...]] = ("sacrebleu",)

    def __post_init__(self) -> None:
        if self.source == self.target:
            raise UserError(f"got source and target language {self.source!r}; expected two different ones")

    def check_requirements(self) -> None:
        """Check that the tokenizer that BLEU needs for the target language is installed."""
        self.metrics()

    def records(self, data: Path, split: str, stream: bool = False) -> Records:
        """Pairs of lines."""
        if is_hub_name(data):
            source = HubDataset.of(data, self.subset, self.revision)
            read, make = partial(self._hub_pairs, source, split, stream), partial(self._split, split)
            return Records(split, read, make, size=lambda: source.size(split))
        stem, first, second = find_split(data, split, (self.source, self.target))
        return Records(stem, lambda: _with_text(first, second), partial(self._split, stem), (first, second))

    def _split(self, name: str, rows: Sequence[tuple[str, str]], first: int = 1) -> TextPairs:
        sources, targets = map(list, zip(*rows, strict=True)) if rows else ([], [])
        return TextPairs(name, sources, targets, sides=(f".{self.source}", f".{self.target}"), first=first)

    def _hub_pairs(self, source: HubDataset, split: str, stream: bool) -> Iterator[tuple[str, str]]:
        languages = (self.source, self.target)
        columns = languages if self.column is None else (self.column,)
        for number, row in enumerate(source.rows(split, columns, stream), start=1):
            by_language = row if self.column is None else row[self.column]
            texts = [text for language in languages if isinstance(text := by_language.get(language), str)]
            if len(texts) < 2:
                raise UserError(
                    f"{source}, split {split!r}, row {number}: no text for {' and '.join(languages)}; "
                    f"got {', '.join(by_language)}"
                )
            # Predictions are files of lines.
            first, second = (" ".join(text.split()) for text in texts)
            yield first, second

    def predictions(self, split: TextPairs, outputs: Sequence[str]) -> tuple[str, str]:
        """One line per source, in a file with the suffix of the target language."""
        return "".join(f"{text}\n" for text in outputs), self.target

    def metrics(self) -> dict[str, Any]:
        """The metrics of sacreBLEU."""
        from sacrebleu.metrics.bleu import BLEU
        from sacrebleu.metrics.chrf import CHRF

        try:
            # The target language selects the tokenizer. `force` turns off the warning about tokenized text.
            return {"bleu": BLEU(trg_lang=self.target, force=True), "chrf": CHRF()}
        except RuntimeError as error:
            raise UserError(
                f"BLEU for target language {self.target!r} needs a tokenizer that is not installed; "
                f"in the clone, pip install -e '.[{self.target}]'"
            ) from error

    def score(self, outputs: Sequence[str], references: Sequence[str], loop: EvaluationLoop | None = None) -> Scores:
        """Corpus BLEU and chrF of sacreBLEU with their signatures, and the percentage of identical lines."""
        same = [output == reference.strip() for output, reference in zip(outputs, references, strict=True)]
        scores: Scores = {"exact_match": 100 * sum(same) / len(same)}
        for name, metric in self.metrics().items():
            scores[name] = metric.corpus_score(list(outputs), [list(references)]).score
            scores[f"{name}_signature"] = str(metric.get_signature())
        return scores


def _with_text(first: Path, second: Path) -> Iterator[tuple[str, str]]:
    """The lines of two files; UserError at the end if no pair has text on both sides."""
    found = False
    for pair in parallel_lines(first, second):
        found = found or all(map(str.strip, pair))
        yield pair
    if not found:
        raise UserError(f"{first} and {second}: no pair has text on both sides; expected at least one")
