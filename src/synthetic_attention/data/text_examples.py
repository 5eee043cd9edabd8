"""Texts and pairs of texts as sequences of ids with a label each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from tokenizers import processors
from torch import Tensor

from .examples import Examples, pad
from .tokenizer import SPECIAL_TOKENS, Tokens, encode, train_tokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

__all__ = ["TextExample", "TextExamples", "frame_texts", "join_sides", "text_collate", "text_tokenizer"]

_INPUTS = ["input_ids", "token_type_ids", "attention_mask"]
# The ids of a sequence, how many of them belong to the first text, and the label.
TextExample = tuple[Tokens, int, float]


@dataclass(frozen=True)
class TextExamples(Examples[TextExample]):
    """Sequences of ids, how many of each belong to the first text, labels; `rows` are those of the split."""

    sequences: list[Tokens]
    firsts: list[int]
    labels: list[int | float]
    rows: list[int]

    def __len__(self) -> int:
        return len(self.sequences)

    def __getitem__(self, index: int) -> TextExample:
        return self.sequences[index], self.firsts[index], self.labels[index]

    def lengths(self) -> np.ndarray:
        """(N, 1): tokens of each sequence."""
        return np.array([[len(sequence)] for sequence in self.sequences])


def join_sides(
    tokenizer: PreTrainedTokenizerFast, texts: Sequence[tuple[str, ...]], maximum: int | None = None
) -> tuple[list[Tokens], list[int], int]:
    """`<s> text </s>` of a text, `<s> text </s> text </s>` of a pair.

    Args:
        maximum: cut what is over this many tokens, the longer text first; None cuts nothing.

    Returns:
        The ids, how many of each belong to the first text with the tokens around it, how many were cut.
    """
    columns = [encode(tokenizer, side) for side in zip(*texts, strict=True)]
    sequences, firsts, over = [], [], 0
    for sides in zip(*columns, strict=True):
        # A second text goes without a start token.
        parts = [sides[0], *(side[1:] for side in sides[1:])]
        if maximum is not None and sum(map(len, parts)) > maximum:
            over += 1
            parts = [_cut(part, size) for part, size in zip(parts, _sizes([*map(len, parts)], maximum), strict=True)]
        sequences.append(np.concatenate(parts))
        firsts.append(len(parts[0]))
    return sequences, firsts, over


def _sizes(lengths: list[int], maximum: int) -> list[int]:
    """Lengths that make `maximum`: what one side leaves of its half is the other's."""
    if len(lengths) == 1:
        return [maximum]
    first, second = lengths
    half = maximum // 2
    if second <= half:
        return [maximum - second, second]
    if first <= maximum - half:
        return [first, maximum - first]
    return [maximum - half, half]


def _cut(ids: Tokens, size: int) -> Tokens:
    """The first tokens, and the last one, which is `</s>`."""
    return ids if len(ids) <= size else np.concatenate([ids[: size - 1], ids[-1:]])


def text_tokenizer(texts: Sequence[str], vocab_size: int, max_length: int) -> PreTrainedTokenizerFast:
    """A vocabulary learned from `texts`; what it encodes is `<s> text </s>`, of a pair `<s> text </s> text </s>`.

    Raises:
        UserError: `vocab_size` does not hold the bytes and the special tokens.
    """
    return frame_texts(train_tokenizer(texts, vocab_size, max_length))


def frame_texts(tokenizer: PreTrainedTokenizerFast) -> PreTrainedTokenizerFast:
    """`tokenizer`, which from now on encodes `<s> text </s>`, and a pair as `<s> text </s> text </s>`."""
    start, end = SPECIAL_TOKENS["bos_token"], SPECIAL_TOKENS["eos_token"]
    ids = [(token, tokenizer.backend_tokenizer.token_to_id(token)) for token in (start, end)]
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{start} $A {end}", pair=f"{start} $A {end} $B:1 {end}:1", special_tokens=ids
    )
    # Transformers' own encoding of a pair then says which side a token is on.
    tokenizer.model_input_names = tokenizer.init_kwargs["model_input_names"] = _INPUTS
    return tokenizer


def text_collate(examples: Sequence[TextExample], pad_token_id: int, dtype: torch.dtype) -> dict[str, Tensor]:
    """input_ids and attention_mask (B, L), labels (B,) of `dtype`; token_type_ids (B, L) of pairs, 1 on the second."""
    sequences, firsts, labels = zip(*examples, strict=True)
    input_ids = pad(sequences, pad_token_id)
    lengths, ends = torch.tensor([len(row) for row in sequences]), torch.tensor(firsts)
    slots = torch.arange(input_ids.shape[1])
    mask = slots < lengths[:, None]
    batch = {"input_ids": input_ids, "attention_mask": mask.long()}
    if bool((ends < lengths).any()):
        batch["token_type_ids"] = ((slots >= ends[:, None]) & mask).long()
    return {**batch, "labels": torch.tensor(labels, dtype=dtype)}
