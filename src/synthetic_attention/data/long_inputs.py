"""Split texts that are too long for a model at the ends of sentences, clauses or words."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from ..errors import UserError
from .tokenizer import encode

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

# Where a sentence that is too long is split: after a comma or similar and a space, after a dash between spaces, after
# East Asian punctuation; else after a space; else anywhere.
_BOUNDARIES = (
    re.compile(r"(?<=[,;:…،؛]\s)|(?<=\s[–—-]\s)|(?<=[，、；：])"),
    re.compile(r"(?<=\s)"),
    re.compile(r"(?<=.)", re.DOTALL),
)
# Languages without spaces between sentences.
_WITHOUT_SPACES = frozenset({"bo", "dz", "ja", "km", "lo", "my", "th", "yue", "zh"})


def split_lines(
    lines: Sequence[str], tokenizer: PreTrainedTokenizerFast, maximum: int, language: str = ""
) -> list[list[str]]:
    """The parts of each line: several if it has more than `maximum` tokens, `</s>` included.

    A long line is split into sentences; a sentence that is too long into runs of clauses, each as long as possible; a
    long clause into runs of words; a long word into runs of characters.

    Args:
        language: the code of the language ("de", "pt_br"), for its abbreviations.
    """
    from sentencex import segment

    def fits(text: str) -> bool:
        return len(encode(tokenizer, [text.strip()])[0]) <= maximum

    def parts(line: str) -> list[str]:
        sentences = segment(_primary(language), line)
        return [part.strip() for sentence in sentences for part in _shorten(sentence, fits) if part.strip()]

    ids = encode(tokenizer, lines)
    return [[line] if len(row) <= maximum else parts(line) for line, row in zip(lines, ids, strict=True)]


def separator(language: str) -> str:
    """The text between two sentences of a language: a space, or nothing ("ja", "zh_tw", "th", …)."""
    return "" if _primary(language) in _WITHOUT_SPACES else " "


def _primary(language: str) -> str:
    """pt_BR → pt."""
    return re.split(r"[-_.]", language.lower(), maxsplit=1)[0]


def _shorten(text: str, fits: Callable[[str], bool], level: int = 0) -> Iterator[str]:
    """Parts of `text` that fit, split at the coarsest possible boundaries, each as long as possible."""
    if fits(text):
        yield text
        return
    if level == len(_BOUNDARIES):
        raise UserError(f"the character {text.strip()!r} alone is longer than the model's maximum; remove it")
    run = ""
    for part in [*_BOUNDARIES[level].split(text), None]:
        if part is None or (run and not fits(run + part)):
            yield from _shorten(run, fits, level + 1)
            run = ""
        run += part or ""
