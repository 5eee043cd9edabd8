"""Translation: parallel text {train,valid,test…}.{language}, scored with BLEU and chrF."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

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
        """Ids of all pairs of at most `maximum` tokens a side. Pairs with an empty side are dropped.

        Raises:
            UserError: a side is longer and `long` is "error"; or no pair is left.
        """
        sources, targets = encode(tokenizer, text.sources), encode(tokenizer, text.targets)
        where = f"{text.name}.{self.source} | .{self.target}"
        kept, over = fit_length((sources, targets), maximum, long, where)
        pairs = [row for row in kept if text.sources[row].strip() and text.targets[row].strip()]
        if not pairs:
            raise UserError(f"{where}: no pair of sentences is left of {len(sources)}")
        return Examples(
            [sources[row] for row in pairs],
            [targets[row] for row in pairs],
            pairs,
            dropped=len(sources) - len(pairs),
            truncated=over if long == "truncate" else 0,
        )

    def score(self, predictions: Sequence[str], references: Sequence[str]) -> dict[str, float | str]:
        """Corpus BLEU and chrF of sacreBLEU, each with the signature that makes it comparable."""
        from sacrebleu.metrics.bleu import BLEU
        from sacrebleu.metrics.chrf import CHRF

        # The target language chooses the tokenizer where words are not separated by spaces.
        bleu, chrf = BLEU(trg_lang=self.target), CHRF()
        return {
            "bleu": bleu.corpus_score(list(predictions), [list(references)]).score,
            "chrf": chrf.corpus_score(list(predictions), [list(references)]).score,
            "bleu_signature": str(bleu.get_signature()),
            "chrf_signature": str(chrf.get_signature()),
        }
