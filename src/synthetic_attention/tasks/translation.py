"""Translation: parallel text {train,valid,test…}.{language}, or of the hub, scored with BLEU and chrF."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from ..data.hub import HubSet, is_hub_name
from ..data.text import find_split, read_lines
from ..errors import UserError
from .seq2seq import SequenceToSequence, TextPairs
from .types import Scores

__all__ = ["Translation"]


@dataclass(frozen=True)
class Translation(SequenceToSequence):
    """Translation from one language to another.

    Args:
        source, target: the languages, as the suffixes of the files name them.
        column: of a data set on the hub, the column that has both languages by name, as WMT's have; null where each
            language is a column.
        subset, revision: of a data set on the hub (hub:OWNER/NAME).
    """

    source: str
    target: str
    column: str | None = "translation"
    subset: str | None = None
    revision: str | None = None
    name: ClassVar[str] = "translation"
    divides: ClassVar[bool] = True
    score_labels: ClassVar[Mapping[str, str]] = {"bleu": "BLEU", "chrf": "chrF"}
    selects_by: ClassVar[str] = "bleu"
    packages: ClassVar[tuple[str, ...]] = ("sacrebleu",)

    def __post_init__(self) -> None:
        for language in (self.source, self.target):
            # It becomes part of a pattern of file names.
            if not language or set(language) & set("*?[]/\\"):
                raise UserError(f"got language {language!r}; expected the suffix of its files, like en")
        if self.source == self.target:
            raise UserError(f"got source and target language {self.source!r}; expected two different ones")

    @classmethod
    def default_data(cls) -> Path:
        """English and German phrases made from the locale data of Babel."""
        from ..data.cldr import default_data

        return default_data()

    @classmethod
    def default_options(cls) -> Mapping[str, Any]:
        """English to German."""
        from ..data.cldr import LANGUAGES

        return dict(zip(("source", "target"), LANGUAGES, strict=True))

    @property
    def languages(self) -> tuple[str, str]:
        """The suffixes of the files, which are taken for codes of languages."""
        return self.source, self.target

    def check(self) -> None:
        """Refuse a target language whose tokenizer for BLEU is not installed."""
        self.scorers()

    def read(self, data: Path, split: str) -> TextPairs:
        """Read both sides of a split.

        Raises:
            UserError: a file is missing, empty or not UTF-8, or the two differ in their number of lines; or a data set
                on the hub cannot be read.
        """
        if is_hub_name(data):
            return self._read_hub(data, split)
        stem = find_split(data, split, (self.source, self.target))
        paths = [data / f"{stem}.{language}" for language in (self.source, self.target)]
        sources, targets = (read_lines(path) for path in paths)
        if len(sources) != len(targets):
            raise UserError(
                f"{paths[0]} has {len(sources)} lines and {paths[1]} has {len(targets)}; "
                "line i of one must translate line i of the other"
            )
        return TextPairs(stem, sources, targets)

    def _read_hub(self, data: Path, split: str) -> TextPairs:
        languages = (self.source, self.target)
        columns = languages if self.column is None else (self.column,)
        pairs: list[list[str]] = []
        for number, row in enumerate(HubSet.of(data, self.subset, self.revision).rows(split, columns), start=1):
            texts = row if self.column is None else [row[0].get(language) for language in languages]
            if not all(isinstance(text, str) for text in texts):
                there = "other columns" if self.column is None else f"the languages {', '.join(row[0])}"
                raise UserError(
                    f"{data}, split {split!r}, row {number}: no text for {' and '.join(languages)}; got {there}"
                )
            # A line each: predictions are files of lines.
            pairs.append([" ".join(text.split()) for text in texts])
        if not pairs:
            raise UserError(f"{data}, split {split!r}: no row")
        sources, targets = (list(side) for side in zip(*pairs, strict=True))
        return TextPairs(split, sources, targets)

    def sides(self, split: TextPairs) -> tuple[str, str]:
        """The names of the two files."""
        return f"{split.name}.{self.source}", f"{split.name}.{self.target}"

    def predictions(self, split: TextPairs, texts: Sequence[str]) -> tuple[str, str]:
        """A line for each line, in a file with the suffix of the target language."""
        content, _ = super().predictions(split, texts)
        return content, self.target

    def scorers(self) -> tuple[Any, Any]:
        """sacreBLEU's BLEU and chrF.

        Raises:
            UserError: the target language needs a tokenizer that is not installed.
        """
        from sacrebleu.metrics.bleu import BLEU
        from sacrebleu.metrics.chrf import CHRF

        try:
            # The target language chooses the tokenizer where words are not separated by spaces. `force` keeps
            # sacreBLEU from warning of tokenized text: data sets are scored as they are, tokenized ones too.
            return BLEU(trg_lang=self.target, force=True), CHRF()
        except RuntimeError as error:
            raise UserError(
                f"BLEU for target language {self.target!r} needs a tokenizer that is not installed; "
                f"in the clone, pip install -e '.[{self.target}]'"
            ) from error

    def score(self, predictions: Sequence[str], references: Sequence[str]) -> Scores:
        """Corpus BLEU and chrF of sacreBLEU, each with its signature, and the percentage of lines that are the same."""
        bleu, chrf = self.scorers()
        same = [prediction == reference.strip() for prediction, reference in zip(predictions, references, strict=True)]
        return {
            "bleu": bleu.corpus_score(list(predictions), [list(references)]).score,
            "chrf": chrf.corpus_score(list(predictions), [list(references)]).score,
            "exact_match": 100 * sum(same) / len(same),
            "bleu_signature": str(bleu.get_signature()),
            "chrf_signature": str(chrf.get_signature()),
        }
