"""Pieces of a vocabulary as people read them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from transformers import PreTrainedTokenizerBase

__all__ = ["readable_tokens"]

_SPACE = "␣"
_LONGEST = 14


def readable_tokens(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int]) -> list[str]:
    """A label for each id: its text, with ␣ for a space; \\xe2 for bytes that are only a part of a character.

    Long pieces are cut, with … at the end. A vocabulary that is not byte-level keeps its own marks.
    """
    byte_level = _is_byte_level(tokenizer)
    special = set(tokenizer.all_special_tokens)
    labels = []
    for token in tokenizer.convert_ids_to_tokens(list(ids)):
        text = _decode_bytes(token) if byte_level and token not in special else token
        # What would break the line of a label, or be no sign at all.
        text = "".join(sign if sign.isprintable() else sign.encode("unicode_escape").decode() for sign in text)
        labels.append(text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…")
    return labels


def _is_byte_level(tokenizer: PreTrainedTokenizerBase) -> bool:
    backend = getattr(tokenizer, "backend_tokenizer", None)
    return backend is not None and "ByteLevel" in repr(backend.decoder)


def _decode_bytes(token: str) -> str:
    """Ġfür, in the alphabet of byte-level BPE, → ␣für."""
    content = bytes(_byte_alphabet()[sign] for sign in token)
    return content.decode("utf-8", errors="backslashreplace").replace(" ", _SPACE)


@cache
def _byte_alphabet() -> dict[str, int]:
    """The byte that each sign of the alphabet stands for: printable Latin-1 for itself, the others from 256 on."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + n): byte for n, byte in enumerate(others)}
