"""The tokens of a corpus in one array, which may be a file that is larger than the memory.

`TokenStore.build` encodes texts a few at a time into the user's cache; a second run of the same corpus and tokenizer
finds them there. `TokenStore.in_memory` is the same for a corpus that fits. Whoever reads one sees no difference.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ..errors import UserError
from .tokenizer import Tokens, encode
from .user_cache import made_once

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

__all__ = ["TokenStore"]

# What is encoded at a time: the tokenizer takes many times the memory of the text. A single text is never divided.
_TEXTS, _CHARACTERS = 10_000, 2**20
_TOKENS, _OFFSETS = "tokens.bin", "offsets.bin"


@dataclass(frozen=True, eq=False)
class TokenStore:
    """The ids of all texts, one after the other.

    Attributes:
        tokens: (n,), read-only; of the tokenizer's ids as `encode` gives them, special tokens included. uint16 where
            the vocabulary fits in it, else uint32: convert what you slice before you compute with it.
        offsets: (texts + 1,) int64; text i is tokens[offsets[i] : offsets[i + 1]].
    """

    tokens: np.ndarray
    offsets: np.ndarray

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, text: int) -> Tokens:
        """The ids of a text, int32."""
        return self.tokens[self.offsets[text] : self.offsets[text + 1]].astype(np.int32)

    def lengths(self) -> np.ndarray:
        """(texts,): how many tokens each has."""
        return np.diff(self.offsets)

    @classmethod
    def in_memory(cls, texts: Iterable[str], tokenizer: PreTrainedTokenizerFast) -> TokenStore:
        """Encode texts that fit into the memory.

        Raises:
            UserError: there are no texts.
        """
        chunks = list(_encoded(texts, tokenizer))
        if not chunks:
            raise UserError(_NOTHING)
        lengths = np.concatenate([lengths for _, lengths in chunks])
        return cls(np.concatenate([tokens for tokens, _ in chunks]), _offsets(lengths))

    @classmethod
    def build(cls, texts: Iterable[str], tokenizer: PreTrainedTokenizerFast, key: str) -> TokenStore:
        """Encode texts into a file in the user's cache, or find it there; then `texts` is not gone through at all.

        Args:
            texts: gone through once, with little of them in memory at any time: a generator, say.
            key: tells apart all texts that there can be, as a digest of them does. The tokenizer is part of the name
                of the file already.

        Raises:
            UserError: there are no texts, the file cannot be written, or one that is there is damaged.
        """
        dtype = _dtype(tokenizer)
        digest = hashlib.sha256(f"{_description(tokenizer)}\0{key}".encode()).hexdigest()

        def write(folder: Path) -> None:
            with (folder / _TOKENS).open("wb") as tokens_file, (folder / _OFFSETS).open("wb") as offsets_file:
                end = 0
                for tokens, lengths in _encoded(texts, tokenizer):
                    tokens.tofile(tokens_file)
                    if not end:
                        np.zeros(1, np.int64).tofile(offsets_file)
                    (end + np.cumsum(lengths)).tofile(offsets_file)
                    end += len(tokens)
            if not end:
                raise UserError(_NOTHING)

        folder = made_once(f"tokens-{digest[:24]}", write)
        try:
            tokens = np.memmap(folder / _TOKENS, dtype, "r")
            offsets = np.memmap(folder / _OFFSETS, np.int64, "r")
            whole = int(offsets[-1]) == len(tokens)
        except (OSError, ValueError) as error:
            raise UserError(f"{folder}: cannot be read ({error}); remove it, and it is made anew") from error
        if not whole:
            raise UserError(f"{folder}: its files do not belong together; remove it, and it is made anew")
        return cls(tokens, offsets)


_NOTHING = "got no texts; expected at least one"


def _dtype(tokenizer: PreTrainedTokenizerFast) -> type[np.unsignedinteger]:
    return np.uint16 if len(tokenizer) <= 2**16 else np.uint32


def _description(tokenizer: PreTrainedTokenizerFast) -> str:
    """All that its ids depend on. Truncation and padding are not: `encode` turns them off."""
    parts = json.loads(tokenizer.backend_tokenizer.to_str())
    return json.dumps({name: part for name, part in parts.items() if name not in ("truncation", "padding")})


def _offsets(lengths: np.ndarray) -> np.ndarray:
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths, dtype=np.int64)])


def _encoded(texts: Iterable[str], tokenizer: PreTrainedTokenizerFast) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """The joined ids of some texts at a time, and the number of ids of each."""
    dtype = _dtype(tokenizer)
    for chunk in _chunks(texts):
        rows = encode(tokenizer, chunk)
        yield np.concatenate(rows).astype(dtype), np.array([len(row) for row in rows], dtype=np.int64)


def _chunks(texts: Iterable[str]) -> Iterator[Sequence[str]]:
    chunk: list[str] = []
    characters = 0
    for text in texts:
        chunk.append(text)
        characters += len(text)
        if len(chunk) >= _TEXTS or characters >= _CHARACTERS:
            yield chunk
            chunk, characters = [], 0
    if chunk:
        yield chunk
