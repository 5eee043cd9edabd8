"""Examples of a language model, cut out of the tokens of a corpus: sentences, packed sentences, blocks of running text.

The tokenizer puts `</s>` before each text and nothing after it. So the tokens of a corpus, one text after the other and
one `</s>` at the end, are running text in which `</s>` ends each line; and a sentence with its `</s>` before it, which
is what its first token is predicted from, and the one after it, which is predicted, is a slice of them.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor

from ..data.batching import Share, token_batches
from ..data.examples import IGNORED, Examples, Long, pad
from ..data.token_store import TokenStore
from ..data.tokenizer import Tokens
from ..data.word_vocabulary import known_words, spelling
from ..errors import UserError
from ..metrics.language_modeling import TextLoss, count_text

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerFast

__all__ = [
    "Blocks",
    "Packed",
    "Row",
    "ScoredRows",
    "Sentences",
    "block_sizes",
    "charges",
    "collate",
    "cut_sentences",
    "kept_texts",
    "pack",
    "row_losses",
]


class Row(NamedTuple):
    """A row of a batch.

    Attributes:
        ids: (n,) tokens.
        labels: (n,) the same, −100 where nothing is scored: at the first token always.
        segments: (n,) of packed sentences, the number of each; None for all others.
    """

    ids: Tokens
    labels: Tokens
    segments: Tokens | None = None


@dataclass(frozen=True)
class ScoredRows(Examples[Row]):
    """Rows, and what the text in them counts: (N, 4) by row, or (1, 4) for all; (0, 4) where it is not to be scored.

    The columns are words, bytes, unknown words, and the nats to spell these; see `charges`.
    """

    store: TokenStore
    end: int
    charged: np.ndarray

    @property
    def total(self) -> TextLoss:
        """What the text of all rows counts, with no tokens and no loss yet."""
        words, size, unknown, nats = self.charged.sum(axis=0).tolist()
        return TextLoss(0.0, 0, int(words), int(size), nats, int(unknown))

    @abstractmethod
    def scored(self) -> np.ndarray:
        """(N,): the tokens that are scored in each row."""


@dataclass(frozen=True)
class Sentences(ScoredRows):
    """Sentences alone: `texts` of the store, the first `maximum` tokens of each, the two `</s>` among them."""

    texts: np.ndarray
    maximum: int

    def __len__(self) -> int:
        return len(self.texts)

    def __getitem__(self, index: int) -> Row:
        ids = np.append(self.store[self.texts[index]][: self.maximum - 1], np.int32(self.end))
        labels = ids.copy()
        labels[0] = IGNORED
        return Row(ids, labels)

    def lengths(self) -> np.ndarray:
        """(N, 1): the tokens of each, with both `</s>`."""
        offsets = self.store.offsets
        return np.minimum(offsets[self.texts + 1] - offsets[self.texts] + 1, self.maximum)[:, None]

    def scored(self) -> np.ndarray:
        """All but the first."""
        return self.lengths()[:, 0] - 1


@dataclass(frozen=True)
class Packed(ScoredRows):
    """Rows of several sentences, of about the same length each: the model computes them side by side."""

    sentences: Sentences
    groups: list[list[int]]

    def __len__(self) -> int:
        return len(self.groups)

    def __getitem__(self, index: int) -> Row:
        rows = [self.sentences[sentence] for sentence in self.groups[index]]
        segments = np.repeat(np.arange(1, len(rows) + 1, dtype=np.int32), [len(row.ids) for row in rows])
        return Row(np.concatenate([row.ids for row in rows]), np.concatenate([row.labels for row in rows]), segments)

    def lengths(self) -> np.ndarray:
        """(N, 1): the tokens of each row."""
        lengths = self.sentences.lengths()[:, 0]
        return np.array([[lengths[group].sum()] for group in self.groups])

    def scored(self) -> np.ndarray:
        """All but the first of each sentence."""
        return self.lengths()[:, 0] - np.array([len(group) for group in self.groups])


@dataclass(frozen=True)
class Blocks(ScoredRows):
    """Running text in blocks of `block` tokens, each of which begins with the last `overlap` tokens of the one before.

    Those are context: every token is scored in one block. Only the `</s>` before the first text is scored in none.
    """

    block: int
    overlap: int

    def __len__(self) -> int:
        return max(1, -(-(len(self.store.tokens) + 1 - self.overlap) // (self.block - self.overlap)))

    def __getitem__(self, index: int) -> Row:
        tokens, start = self.store.tokens, index * (self.block - self.overlap)
        ids = tokens[start : start + self.block].astype(np.int32)
        if start + self.block > len(tokens):
            ids = np.append(ids, np.int32(self.end))
        labels = ids.copy()
        labels[: self.overlap if index else 1] = IGNORED
        return Row(ids, labels)

    def lengths(self) -> np.ndarray:
        """(N, 1): the tokens of each, those that overlap among them."""
        starts = np.arange(len(self)) * (self.block - self.overlap)
        return np.minimum(len(self.store.tokens) + 1 - starts, self.block)[:, None]

    def scored(self) -> np.ndarray:
        """All but those that overlap."""
        scored = self.lengths()[:, 0] - self.overlap
        scored[0] += self.overlap - 1
        return scored


def block_sizes(block: int | None, overlap: int | None, maximum: int, training: bool) -> tuple[int, int]:
    """Tokens of a block, by default `maximum`, and of its overlap: by default half of it, one in training.

    Raises:
        UserError: they cannot be.
    """
    block = maximum if block is None else block
    overlap = block // 2 if overlap is None else overlap
    if not 2 <= block <= maximum:
        raise UserError(f"got block={block}; expected 2 … {maximum}, max_position_embeddings")
    if not 1 <= overlap < block:
        raise UserError(f"got overlap={overlap} with blocks of {block} tokens; expected 1 … {block - 1}")
    return block, 1 if training else overlap


def cut_sentences(store: TokenStore, maximum: int, long: Long, name: str, advice: str) -> tuple[np.ndarray, int]:
    """Which texts of a store are examples, and how many are longer than `maximum`, both `</s>` counted.

    Raises:
        UserError: some are and `long` is "error", or none is left.
    """
    lengths = store.lengths() + 1
    over = lengths > maximum
    count = int(over.sum())
    if count and long == "error":
        raise UserError(
            f"{name}: {count} of {len(store)} sentences are longer than the maximum of {maximum} tokens (the first is "
            f"sentence {over.argmax() + 1}, the longest has {lengths.max()}); {advice}"
        )
    texts = np.flatnonzero(~over) if long == "drop" else np.arange(len(store))
    if not len(texts):
        raise UserError(f"{name}: no sentence is left of {len(store)}")
    return texts, count


def kept_texts(
    texts: Iterable[str], store: TokenStore, kept: np.ndarray, maximum: int, tokenizer: PreTrainedTokenizerFast
) -> Iterator[str]:
    """Those of `texts` that are examples, in their order; those that are cut to `maximum` tokens as they are then."""
    wanted, lengths = np.isin(np.arange(len(store)), kept), store.lengths() + 1
    backend = tokenizer.backend_tokenizer
    backend.encode_special_tokens = True
    for number, text in enumerate(texts):
        if wanted[number] and lengths[number] > maximum:
            # Not decoded: words that the vocabulary lacks are counted and charged too. Without the </s> at both ends.
            ends = [end for _, end in backend.encode(text, add_special_tokens=False).offsets]
            yield text[: ends[maximum - 3]] if maximum > 2 else ""
        elif wanted[number]:
            yield text


def pack(sentences: Sentences, room: int) -> Packed:
    """Rows of at most `room` tokens, each of sentences that are about as long; which ones is drawn once."""
    lengths = sentences.lengths()[:, 0]
    shuffled = np.random.default_rng(0).permutation(len(lengths))
    order = shuffled[np.argsort(lengths[shuffled], kind="stable")]
    return Packed(
        sentences.store,
        sentences.end,
        sentences.charged,
        sentences,
        token_batches(lengths, order, room),
        dropped=sentences.dropped,
        truncated=sentences.truncated,
    )


def charges(texts: Iterable[str], tokenizer: PreTrainedTokenizerFast, words: bool) -> np.ndarray:
    """(texts, 4): words, bytes, unknown words, and nats to spell these. The end of each text is a word and a byte.

    Args:
        words: the vocabulary is one of words, so that it may lack some.
    """
    known = known_words(tokenizer) if words else frozenset[str]()
    spelled = spelling(tokenizer) if words else None
    rows = []
    for text in texts:
        unknown = [word for word in text.split() if word not in known] if spelled else []
        rows.append([*count_text([text]), len(unknown), spelled.cost(unknown) if spelled else 0.0])
    return np.array(rows, dtype=np.float64).reshape(-1, 4)


def collate(rows: Sequence[Row], pad_token_id: int) -> dict[str, Tensor]:
    """input_ids and labels (B, T), and attention_mask; of packed rows segment_ids in its place."""
    batch = {
        "input_ids": pad([row.ids for row in rows], pad_token_id),
        "labels": pad([row.labels for row in rows], IGNORED),
    }
    segments = [row.segments for row in rows if row.segments is not None]
    if segments:
        return {**batch, "segment_ids": pad(segments, 0)}
    lengths = torch.tensor([len(row.ids) for row in rows])
    return {**batch, "attention_mask": (torch.arange(batch["input_ids"].shape[1]) < lengths[:, None]).long()}


def row_losses(model: PreTrainedModel, examples: ScoredRows) -> np.ndarray:
    """(N,): −log p of the tokens that are scored in each row, summed, by a language model of ours."""
    losses = np.zeros(len(examples))
    lengths = examples.lengths()[:, 0]
    model.eval()
    for rows in Share().batches(lengths, np.argsort(lengths, kind="stable")):
        batch = collate([examples[row] for row in rows], model.config.pad_token_id)
        found = cast(Any, model).token_losses(
            batch["input_ids"].to(model.device), batch["attention_mask"].to(model.device)
        )
        scored = (batch["labels"] != IGNORED).to(model.device)
        losses[rows] = found.double().masked_fill(~scored, 0).sum(dim=1).cpu().numpy()
    return losses
