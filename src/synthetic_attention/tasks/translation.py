"""Translation: parallel text {train,valid,test…}.{language}, scored with BLEU and chrF."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from transformers import PreTrainedTokenizerFast

from .errors import UserError
from .examples import Examples, Long, fit_length
from .text import find_split, fingerprint, read_lines
from .tokenizer import encode, train_tokenizer

__all__ = ["ParallelText", "Translation"]


@dataclass(frozen=True)
class ParallelText:
    """A split as text: line i of `targets` translates line i of `sources`."""

    name: str
    sources: list[str]
    targets: list[str]

    def complete(self) -> list[int]:
        """The lines of which neither side is blank: others are not trained on, validated on or scored."""
        pairs = zip(self.sources, self.targets, strict=True)
        return [row for row, (source, target) in enumerate(pairs) if source.strip() and target.strip()]

    def fingerprint(self) -> dict[str, str | int]:
        """What tells whether two runs read the same text."""
        return {
            "split": self.name,
            "pairs": len(self.sources),
            "source_sha256": fingerprint(self.sources),
            "target_sha256": fingerprint(self.targets),
        }


@dataclass(frozen=True)
class Translation:
    """Translation from one language to another, named as the files' suffixes name them."""

    source: str
    target: str
    name: ClassVar[str] = "translation"
    # The score that picks the checkpoint; more is better.
    selects_by: ClassVar[str] = "bleu"

    def __post_init__(self) -> None:
        for language in (self.source, self.target):
            # It becomes part of a pattern of file names.
            if not language or set(language) & set("*?[]/\\"):
                raise UserError(f"got language {language!r}; expected the suffix of its files, like en")
        if self.source == self.target:
            raise UserError(f"got source and target language {self.source!r}; expected two different ones")

    def read(self, folder: Path, split: str) -> ParallelText:
        """Read both sides of a split.

        Raises:
            UserError: a file is missing, empty or not UTF-8, or the two differ in their number of lines.
        """
        stem = find_split(folder, split, (self.source, self.target))
        paths = [folder / f"{stem}.{language}" for language in (self.source, self.target)]
        sources, targets = (read_lines(path) for path in paths)
        if len(sources) != len(targets):
            raise UserError(
                f"{paths[0]} has {len(sources)} lines and {paths[1]} has {len(targets)}; "
                "line i of one must translate line i of the other"
            )
        return ParallelText(stem, sources, targets)

    @staticmethod
    def tokenizer(text: ParallelText, vocab_size: int, max_length: int) -> PreTrainedTokenizerFast:
        """One vocabulary for both languages, learned from the training text."""
        return train_tokenizer(text.sources + text.targets, vocab_size, max_length)

    def examples(
        self, text: ParallelText, tokenizer: PreTrainedTokenizerFast, maximum: int, long: Long = "error"
    ) -> Examples:
        """Ids of all pairs of at most `maximum` tokens a side. Pairs with a blank side are dropped.

        Raises:
            UserError: a side is longer and `long` is "error"; or no pair is left.
        """
        sources, targets = encode(tokenizer, text.sources), encode(tokenizer, text.targets)
        names = [f"{text.name}.{language}" for language in (self.source, self.target)]
        advice = "pass --drop-long to leave such pairs out, or --truncate to cut them"
        kept, over = fit_length(dict(zip(names, (sources, targets), strict=True)), maximum, long, advice)
        pairs = sorted({*kept} & {*text.complete()})
        if not pairs:
            raise UserError(f"{' | '.join(names)}: no pair of sentences is left of {len(sources)}")
        return Examples(
            [sources[row] for row in pairs],
            [targets[row] for row in pairs],
            pairs,
            dropped=len(sources) - len(pairs),
            truncated=over if long == "truncate" else 0,
        )

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
                f"pip install 'synthetic-attention[{self.target}]'"
            ) from error

    def score(self, predictions: Sequence[str], references: Sequence[str]) -> dict[str, float | str]:
        """Corpus BLEU and chrF of sacreBLEU, each with the signature that makes it comparable."""
        bleu, chrf = self.scorers()
        return {
            "bleu": bleu.corpus_score(list(predictions), [list(references)]).score,
            "chrf": chrf.corpus_score(list(predictions), [list(references)]).score,
            "bleu_signature": str(bleu.get_signature()),
            "chrf_signature": str(chrf.get_signature()),
        }
