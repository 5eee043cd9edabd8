"""Translation: parallel text {train,valid,test…}.{language} or a hub data set, scored with BLEU and chrF."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from ..data.files import MalformedLineError, find_split, parallel_lines
from ..data.source import Records, Source, is_hub_name
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

    def __post_init__(self) -> None:
        if self.source == self.target:
            raise UserError(f"got source and target language {self.source!r}; expected two different ones")

    def check_requirements(self) -> None:
        """Check that the tokenizer that BLEU needs for the target language is installed."""
        self.metrics()

    def records(self, data: Path, split: str) -> Records:
        """Pairs of lines, or of texts in a column or two of a hub data set."""
        languages = (self.source, self.target)
        if is_hub_name(data):
            source = Source.of(data, split, (), self.subset, self.revision)
            columns = languages if self.column is None else (self.column,)
            read = partial(source.parse, self._parse, None, columns)
        else:
            stem, *files = find_split(data, split, languages)
            source, read = Source(stem, tuple(files)), partial(parallel_lines, *files)

        def make(rows: Sequence[tuple[str, str]], **options: Any) -> TextPairs:
            sources, targets = [row[0] for row in rows], [row[1] for row in rows]
            return TextPairs(source.split, sources, targets, sides=(f".{self.source}", f".{self.target}"), **options)

        return Records(source, read, make)

    def _parse(self, _: int, row: dict[str, Any]) -> list[tuple[str, ...]]:
        languages, texts = (self.source, self.target), row if self.column is None else row[self.column]
        if not isinstance(texts, dict) or not all(isinstance(texts.get(language), str) for language in languages):
            raise MalformedLineError(f"no text for {' and '.join(languages)}; got {texts!r:.80}")
        # Predictions are files of lines.
        return [tuple(" ".join(texts[language].split()) for language in languages)]

    def predictions(self, split: TextPairs, outputs: Sequence[str]) -> tuple[str, str]:
        """One line per source, in a file with the suffix of the target language."""
        return "".join(f"{text}\n" for text in outputs), self.target

    def metrics(self) -> dict[str, Any]:
        """The metrics of sacreBLEU."""
        from sacrebleu.metrics.bleu import BLEU
        from sacrebleu.metrics.chrf import CHRF

        # The language of zh_CN or, as in NLLB and FLORES, zho_Hans selects the tokenizer.
        code = self.target.replace("-", "_").partition("_")[0].lower()
        code = {"zho": "zh", "cmn": "zh", "jpn": "ja", "kor": "ko"}.get(code, code)
        try:
            # `force` turns off the warning about tokenized text.
            return {"bleu": BLEU(trg_lang=code, force=True), "chrf": CHRF()}
        except RuntimeError as error:
            raise UserError(
                f"BLEU for target language {self.target!r} needs a tokenizer that is not installed; "
                f"in the clone, pip install -e '.[{code}]'"
            ) from error

    def score(self, outputs: Sequence[str], references: Sequence[str], loop: EvaluationLoop | None = None) -> Scores:
        """Corpus BLEU and chrF of sacreBLEU with their signatures, and the percentage of identical lines."""
        same = [output == reference.strip() for output, reference in zip(outputs, references, strict=True)]
        scores: Scores = {"exact_match": 100 * sum(same) / len(same)}
        for name, metric in self.metrics().items():
            scores[name] = metric.corpus_score(list(outputs), [list(references)]).score
            scores[f"{name}_signature"] = str(metric.get_signature())
        return scores
