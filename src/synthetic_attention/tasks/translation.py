"""Translation: parallel text {train,valid,test…}.{language} or a hub data set, scored with BLEU and chrF."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from ..data.files import find_split, read_lines
from ..data.hub import HubDataset, is_hub_name
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
        for language in (self.source, self.target):
            # It becomes part of a glob pattern.
            if not language or set(language) & set("*?[]/\\"):
                raise UserError(f"got language {language!r}; expected the suffix of its files, like en")
        if self.source == self.target:
            raise UserError(f"got source and target language {self.source!r}; expected two different ones")

    def check_requirements(self) -> None:
        """Check that the tokenizer that BLEU needs for the target language is installed."""
        self._bleu()

    def read(self, data: Path, split: str) -> TextPairs:
        """Read both sides of a split."""
        languages = (self.source, self.target)
        if is_hub_name(data):
            stem, (sources, targets) = split, self._read_hub(data, split)
            where = f"{data}, split {split!r}"
        else:
            stem = find_split(data, split, languages)
            paths = [data / f"{stem}.{language}" for language in languages]
            where = f"{paths[0]} and {paths[1]}"
            sources, targets = ([*read_lines(path)] for path in paths)
            if len(sources) != len(targets):
                raise UserError(
                    f"{paths[0]} has {len(sources)} lines and {paths[1]} has {len(targets)}; "
                    "line i of one must translate line i of the other"
                )
        pairs = TextPairs(stem, sources, targets, sides=(f".{self.source}", f".{self.target}"))
        if not pairs.complete():
            raise UserError(f"{where}: no pair has text on both sides; expected at least one")
        return pairs

    def _read_hub(self, data: Path, split: str) -> tuple[list[str], list[str]]:
        languages, pairs = (self.source, self.target), []
        columns = languages if self.column is None else (self.column,)
        rows = HubDataset.of(data, self.subset, self.revision).rows(split, columns)
        for number, row in enumerate(rows, start=1):
            by_language = row if self.column is None else row[self.column]
            texts = [text for language in languages if isinstance(text := by_language.get(language), str)]
            if len(texts) < 2:
                raise UserError(
                    f"{data}, split {split!r}, row {number}: no text for {' and '.join(languages)}; "
                    f"got {', '.join(by_language)}"
                )
            # Predictions are files of lines.
            pairs.append([" ".join(text.split()) for text in texts])
        return [source for source, _ in pairs], [target for _, target in pairs]

    def predictions(self, split: TextPairs, outputs: Sequence[str]) -> tuple[str, str]:
        """One line per source, in a file with the suffix of the target language."""
        return "".join(f"{text}\n" for text in outputs), self.target

    def _bleu(self) -> Any:
        from sacrebleu.metrics.bleu import BLEU

        try:
            # The target language selects the tokenizer. `force` turns off the warning about tokenized text.
            return BLEU(trg_lang=self.target, force=True)
        except RuntimeError as error:
            raise UserError(
                f"BLEU for target language {self.target!r} needs a tokenizer that is not installed; "
                f"in the clone, pip install -e '.[{self.target}]'"
            ) from error

    def score(self, outputs: Sequence[str], references: Sequence[str], loop: EvaluationLoop | None = None) -> Scores:
        """Corpus BLEU and chrF of sacreBLEU with their signatures, and the percentage of identical lines."""
        from sacrebleu.metrics.chrf import CHRF

        same = [output == reference.strip() for output, reference in zip(outputs, references, strict=True)]
        scores: Scores = {"exact_match": 100 * sum(same) / len(same)}
        for name, metric in (("bleu", self._bleu()), ("chrf", CHRF())):
            scores[name] = metric.corpus_score(list(outputs), [list(references)]).score
            scores[f"{name}_signature"] = str(metric.get_signature())
        return scores
