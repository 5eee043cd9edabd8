"""Pretraining by span corruption (T5): plain text or JSON lines {train,valid,test…}, packed and corrupted."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from ..data.batching import Share
from ..data.corpus import Corpus, hub_lines, read_corpus
from ..data.documents import DOCUMENT_ENDINGS, DocumentFiles
from ..data.examples import IGNORED, Examples, Long, Pair, pair_collate
from ..data.files import split_files
from ..data.hub import HubSet, is_hub_name
from ..data.token_store import TokenStore
from ..data.tokenizer import SPECIAL_TOKENS, train_tokenizer
from ..errors import UserError
from .base import Task
from .span_noise import Packing, corrupt, noise_mask
from .types import Evaluation, Scores

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerFast

__all__ = ["SpanCorruption", "SpanExamples"]

# Of a corpus that is not kept in memory, the documents that the vocabulary is learned from.
_VOCABULARY_DOCUMENTS = 1_000_000


@dataclass
class _Noise:
    """The seed of the noise of a pass."""

    seed: int = 0


@dataclass(frozen=True)
class SpanExamples(Examples[Pair]):
    """Pieces of running text, corrupted when they are asked for: with other noise in every pass of training.

    Args:
        tokens: (n,) ids of the running text, of any integer type.
        packing: how it is cut.
        first_sentinel: the id of sentinel 0.
        eos_token_id: `</s>`.
    """

    tokens: np.ndarray
    packing: Packing
    first_sentinel: int
    eos_token_id: int
    noise: _Noise = field(default_factory=_Noise)

    def __len__(self) -> int:
        return self.packing.count(len(self.tokens))

    def __getitem__(self, index: int) -> Pair:
        start, lengths = self.packing.start(index), self.packing.lengths(index)
        piece = self.tokens[start : start + lengths.raw].astype(np.int32)
        mask = noise_mask(lengths, np.random.default_rng([self.noise.seed, index]))
        inputs, targets = corrupt(piece, mask, self.first_sentinel)
        return np.append(inputs, np.int32(self.eos_token_id)), np.append(targets, np.int32(self.eos_token_id))

    def lengths(self) -> np.ndarray:
        """(N, 2): input tokens, the same for all, and target tokens."""
        return self.packing.table(len(self))

    def draw(self, rng: np.random.Generator, seed: int = 0, number: int = 0) -> np.ndarray:
        """Each example once, with new noise."""
        self.noise.seed = int(rng.integers(2**62))
        return super().draw(rng, seed, number)


@dataclass(frozen=True)
class SpanCorruption(Task[Corpus, Pair]):
    """Write the spans that were cut out of a text. Validated with noise that is the same for all runs.

    Args:
        density: the share of tokens that are cut out.
        mean_span_length: tokens of a span, on average.
        sentinels: how many the vocabulary has; T5 has 100.
        inputs_length: tokens of an input, all of which are used; by default the model's maximum.
        text_field: of JSON lines, the field with the text; by default text, article, source or document. Of a data set
            on the hub, the column; by default text.
        stream: keep the tokens in a file in the user's cache, and the text nowhere, for corpora larger than the memory.
        max_documents: the most documents of each split of a data set on the hub.
        subset, revision: of a data set on the hub (hub:OWNER/NAME).
    """

    density: float = 0.15
    mean_span_length: float = 3.0
    sentinels: int = 100
    inputs_length: int | None = None
    text_field: str | None = None
    stream: bool = False
    max_documents: int | None = None
    subset: str | None = None
    revision: str | None = None
    name: ClassVar[str] = "span-corruption"
    score_labels: ClassVar[Mapping[str, str]] = {"loss": "loss", "perplexity": "perplexity"}
    model_class: ClassVar[str] = "SynthesizerForConditionalGeneration"
    tokens_name: ClassVar[str] = "input + target tokens"

    def __post_init__(self) -> None:
        for name, value in (("sentinels", self.sentinels), ("max_documents", self.max_documents)):
            if value is not None and value < 1:
                raise UserError(f"got {name}={value}; expected at least 1")
        if self.inputs_length is not None:
            self._packing(self.inputs_length)
        else:
            # At any length that it does not depend on.
            self._packing(10**6)

    def _packing(self, inputs_length: int) -> Packing:
        try:
            return Packing(inputs_length, self.density, self.mean_span_length)
        except ValueError as error:
            raise UserError(str(error)) from None

    def read(self, data: Path, split: str) -> Corpus:
        """The documents of a split: of all files that are called after it, or of a column of a data set on the hub.

        Raises:
            UserError: there are none, or they cannot be read.
        """
        if is_hub_name(data):
            source = HubSet.of(data, self.subset, self.revision)
            found = hub_lines(source, split, self.text_field or "text", self.stream, self.max_documents)
            return read_corpus(split, found, self.stream)
        paths = split_files(data, split, DOCUMENT_ENDINGS)
        name = paths[0].name.split(".")[0] if len(paths) == 1 else split
        return read_corpus(name, DocumentFiles(paths, self.text_field), self.stream)

    def tokenizer(self, split: Corpus, vocab_size: int, max_length: int) -> PreTrainedTokenizerFast:
        """A vocabulary with the sentinels at its top: `<extra_id_0>` is its last piece, `<extra_id_1>` the one before.

        Raises:
            UserError: `vocab_size` does not hold the bytes and the special tokens beside them.
        """
        least = 256 + len(SPECIAL_TOKENS) + self.sentinels
        if vocab_size < least:
            raise UserError(
                f"got vocab_size={vocab_size}; expected at least {least}: bytes, special tokens and "
                f"{self.sentinels} sentinels"
            )
        texts: Iterable[str] = islice(split.texts, _VOCABULARY_DOCUMENTS) if self.stream else split.texts
        tokenizer = train_tokenizer(texts, vocab_size - self.sentinels, max_length)
        tokenizer.backend_tokenizer.add_special_tokens([f"<extra_id_{i}>" for i in reversed(range(self.sentinels))])
        return tokenizer

    def examples(
        self,
        split: Corpus,
        tokenizer: PreTrainedTokenizerFast,
        maximum: int,
        long: Long = "error",
        training: bool = False,
    ) -> SpanExamples:
        """The documents, each with `</s>`, joined and cut into pieces that fill the inputs exactly.

        Raises:
            UserError: the inputs or targets are longer than the model's maximum, the vocabulary has too few sentinels,
                or the text is shorter than one example.
        """
        packing = self._packing(self.inputs_length or maximum)
        if max(packing.inputs, packing.most_targets) > maximum:
            raise UserError(
                f"got inputs of {packing.inputs} and targets of up to {packing.most_targets} tokens; expected at most "
                f"{maximum}, max_position_embeddings; pass a smaller --set inputs_length=…"
            )
        if packing.most_spans > self.sentinels:
            raise UserError(
                f"inputs of {packing.inputs} tokens have up to {packing.most_spans} spans, and the vocabulary "
                f"{self.sentinels} sentinels; pass --set sentinels={packing.most_spans}, or shorter inputs"
            )
        first_sentinel = _first_sentinel(tokenizer, self.sentinels)
        if self.stream:
            store = TokenStore.build(split.texts, tokenizer, split.sha256)
        else:
            store = TokenStore.in_memory(split.texts, tokenizer)
        if not packing.count(len(store.tokens)):
            raise UserError(
                f"{split.name}: {len(store.tokens)} tokens; expected at least {packing.start(1)}, those of one example"
            )
        assert tokenizer.eos_token_id is not None
        return SpanExamples(store.tokens, packing, first_sentinel, tokenizer.eos_token_id)

    def collate(self, examples: Sequence[Pair], pad_token_id: int) -> dict[str, Tensor]:
        """input_ids and attention_mask (B, S), labels (B, T)."""
        return pair_collate(examples, pad_token_id)

    def tokens(self, batch: Mapping[str, Tensor]) -> Tensor:
        """Input and target tokens."""
        return batch["attention_mask"].sum() + (batch["labels"] != IGNORED).sum()

    def validate(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerFast,
        split: Corpus,
        examples: Examples[Pair],
        loss: float,
        share: Share,
    ) -> Scores:
        """The perplexity of the targets."""
        return {"perplexity": math.exp(loss)}

    @torch.inference_mode()
    def evaluate(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerFast,
        split: Corpus,
        search: Any,
        truncate: bool = False,
    ) -> Evaluation:
        """Loss and perplexity of the targets; the file of predictions has the loss of each example."""
        examples = self.examples(split, tokenizer, model.config.max_position_embeddings)
        sums, labels = [], examples.lengths()[:, -1]
        model.eval()
        for example in (examples[index] for index in range(len(examples))):
            batch = self.collate([example], model.config.pad_token_id)
            inputs = {name: value.to(model.device) for name, value in batch.items()}
            sums.append(model(**inputs, num_items_in_batch=1).loss.item())
        loss = sum(sums) / int(labels.sum())
        lines = [
            json.dumps({"id": index, "tokens": int(count), "loss": total / int(count)}) + "\n"
            for index, (total, count) in enumerate(zip(sums, labels, strict=True))
        ]
        return Evaluation(
            {"loss": loss, "perplexity": math.exp(loss)},
            examples=len(examples),
            predictions="".join(lines),
            suffix="jsonl",
            answered=len(examples),
        )


def _first_sentinel(tokenizer: PreTrainedTokenizerFast, sentinels: int) -> int:
    """The id of sentinel 0, the last piece.

    Raises:
        UserError: the tokenizer, that of another run, has other sentinels or none.
    """
    first = len(tokenizer) - 1
    for number in (0, sentinels - 1):
        name = f"<extra_id_{number}>"
        if tokenizer.convert_tokens_to_ids(name) != first - number:
            raise UserError(
                f"the tokenizer has no {name} at its place; expected one of task span-corruption with at least "
                f"{sentinels} sentinels"
            )
    return first
