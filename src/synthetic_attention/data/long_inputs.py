"""Split texts that are too long for a model, generate from the parts, and join the outputs."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..errors import UserError
from .tokenizer import encode

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

# After a comma or similar and a space, after a dash between spaces, after East Asian punctuation.
_CLAUSE_END = re.compile(r"(?<=[,;:…،؛]\s)|(?<=\s[–—-]\s)|(?<=[，、；：])")
_WORD_END = re.compile(r"(?<=\s)")
# Languages without spaces between sentences.
_WITHOUT_SPACES = frozenset({"bo", "cmn", "dz", "ja", "jpn", "km", "khm", "lo", "lao", "lzh", "my", "th", "yue", "zh"})


@dataclass(frozen=True)
class SplitLines:
    """The parts of all lines, the number of parts of each line, and how many lines were split."""

    parts: list[str]
    counts: list[int]
    split: int

    def join(self, outputs: Sequence[str], between: str) -> list[str]:
        """Join the outputs of each line, with `between` in between."""
        if len(outputs) != len(self.parts):
            raise ValueError(f"got {len(outputs)} outputs for {len(self.parts)} parts; expected one per part")
        remaining = iter(outputs)
        lines = [[next(remaining) for _ in range(count)] for count in self.counts]
        return [between.join(text for text in line if text) if len(line) > 1 else "".join(line) for line in lines]


def split_lines(
    lines: Sequence[str], tokenizer: PreTrainedTokenizerFast, maximum: int, language: str = ""
) -> SplitLines:
    """Split the lines that have more than `maximum` tokens, `</s>` included.

    A long line is split into sentences; a sentence that is too long into runs of clauses (at commas, semicolons,
    colons, dashes), each as long as possible; a long clause into runs of words; a long word into runs of characters.

    Args:
        language: the code of the language ("de", "pt_br"), for its abbreviations.
    """
    from sentencex import segment

    def fits(text: str) -> bool:
        return len(encode(tokenizer, [text.strip()])[0]) <= maximum

    parts: list[str] = []
    counts = []
    split = 0
    for line, ids in zip(lines, encode(tokenizer, lines), strict=True):
        found = [line]
        if len(ids) > maximum:
            split += 1
            sentences = segment(_primary(language), line)
            found = [part.strip() for sentence in sentences for part in _shorten(sentence, fits) if part.strip()]
        parts += found
        counts.append(len(found))
    return SplitLines(parts, counts, split)


def separator(language: str) -> str:
    """The text between two sentences of a language: a space, or nothing ("ja", "zh_tw", "th", …)."""
    return "" if _primary(language) in _WITHOUT_SPACES else " "


def _primary(language: str) -> str:
    """pt_BR → pt."""
    return re.split(r"[-_.]", language.lower(), maxsplit=1)[0]


def _shorten(text: str, fits: Callable[[str], bool], level: int = 0) -> Iterator[str]:
    """Parts of `text` that fit, split at the coarsest possible boundaries."""
    if fits(text):
        yield text
        return
    if level == len(_LEVELS):
        raise UserError(f"the character {text.strip()!r} alone is longer than the model's maximum; remove it")
    for run in _runs(_LEVELS[level](text), fits):
        yield from _shorten(run, fits, level + 1)


def _runs(parts: Sequence[str], fits: Callable[[str], bool]) -> Iterator[str]:
    """Join neighbors while the result fits; a part that does not fit is yielded alone."""
    run = ""
    for part in parts:
        if run and not fits(run + part):
            yield run
            run = ""
        run += part
    yield run


_LEVELS: tuple[Callable[[str], list[str]], ...] = (_CLAUSE_END.split, _WORD_END.split, list)
