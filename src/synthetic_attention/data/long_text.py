"""Text that is too long for a model: divided into sentences, generated from piece by piece, joined again."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..errors import UserError
from .tokenizer import encode

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

__all__ = ["Divided", "divide", "separator"]

# After a comma and the like where a space follows, after a dash between spaces, after East Asian punctuation.
_CLAUSE_END = re.compile(r"(?<=[,;:…،؛]\s)|(?<=\s[–—-]\s)|(?<=[，、；：])")
_WORD_END = re.compile(r"(?<=\s)")
# Languages that put no space between sentences.
_WITHOUT_SPACES = frozenset({"bo", "cmn", "dz", "ja", "jpn", "km", "khm", "lo", "lao", "lzh", "my", "th", "yue", "zh"})


@dataclass(frozen=True)
class Divided:
    """Lines as pieces that fit the model.

    Attributes:
        pieces: those of all lines, in order.
        counts: how many pieces each line has: one where it fits, none where it is blank and too long.
        divided: how many lines were too long.
    """

    pieces: list[str]
    counts: list[int]
    divided: int

    def join(self, outputs: Sequence[str], between: str) -> list[str]:
        """A line for each line: what was made of its pieces, with `between` between them.

        Raises:
            ValueError: there is not one output for each piece.
        """
        if len(outputs) != len(self.pieces):
            raise ValueError(f"got {len(outputs)} outputs for {len(self.pieces)} pieces; expected one for each")
        remaining = iter(outputs)
        lines = [[next(remaining) for _ in range(count)] for count in self.counts]
        return [between.join(text for text in line if text) if len(line) > 1 else "".join(line) for line in lines]


def divide(lines: Sequence[str], tokenizer: PreTrainedTokenizerFast, maximum: int, language: str = "") -> Divided:
    """Divide the lines that have more than `maximum` tokens; the others stay as they are.

    A long line is divided into its sentences. A sentence that is itself too long is divided into runs of clauses (at
    commas, semicolons, colons, dashes), each as long as fits; a clause that is too long into runs of words; a word that
    is too long into runs of characters.

    Args:
        maximum: tokens of a piece, `</s>` included.
        language: code of the lines' language ("de", "pt_br"), which knows its abbreviations; general rules where it is
            unknown.

    Raises:
        UserError: a single character has more than `maximum` tokens.
    """
    from sentencex import segment

    def fits(text: str) -> bool:
        return len(encode(tokenizer, [text.strip()])[0]) <= maximum

    pieces: list[str] = []
    counts = []
    divided = 0
    for line, ids in zip(lines, encode(tokenizer, lines), strict=True):
        found = [line]
        if len(ids) > maximum:
            divided += 1
            sentences = segment(_primary(language), line)
            found = [piece.strip() for sentence in sentences for piece in _shorten(sentence, fits) if piece.strip()]
        pieces += found
        counts.append(len(found))
    return Divided(pieces, counts, divided)


def separator(language: str) -> str:
    """What stands between two sentences of a language: a space, or nothing ("ja", "zh_tw", "th", …)."""
    return "" if _primary(language) in _WITHOUT_SPACES else " "


def _primary(language: str) -> str:
    """pt_BR → pt."""
    return re.split(r"[-_.]", language.lower(), maxsplit=1)[0]


def _shorten(text: str, fits: Callable[[str], bool], level: int = 0) -> Iterator[str]:
    """Pieces of `text`, from the coarsest boundaries that make it fit."""
    if fits(text):
        yield text
        return
    if level == len(_LEVELS):
        raise UserError(f"the character {text.strip()!r} alone is longer than the model's maximum; leave it out")
    for run in _runs(_LEVELS[level](text), fits):
        yield from _shorten(run, fits, level + 1)


def _runs(parts: Sequence[str], fits: Callable[[str], bool]) -> Iterator[str]:
    """Join neighbours as long as the result fits; a part that does not fit stands alone."""
    start = 0
    while start < len(parts):
        # The longest run by doubling, then by halving: few probes, none of much more than the maximum.
        good, step, growing = 1, 1, True
        while step:
            end = start + good + step
            if end <= len(parts) and fits("".join(parts[start:end])):
                good += step
            else:
                growing = False
            step = step * 2 if growing else step // 2
        yield "".join(parts[start : start + good])
        start += good


def _characters(text: str) -> list[str]:
    """Characters, each with the marks that combine with it."""
    parts: list[str] = []
    for character in text:
        if parts and unicodedata.category(character).startswith("M"):
            parts[-1] += character
        else:
            parts.append(character)
    return parts


_LEVELS: tuple[Callable[[str], list[str]], ...] = (_CLAUSE_END.split, _WORD_END.split, _characters, list)
