"""T5's span corruption (Raffel et al. 2020, section 3.1.4): spans of a text are cut out and have to be generated.

    tokens    a b c d e f g h         inputs   a b <0> e f <1>
    noise     . . x x . . x x         targets  <0> c d <1> g h

Sentinels <0>, <1>, … are the ids from the top of the vocabulary downward. As in T5's code a text begins with a kept
span and ends with a noise span, so the targets need no closing sentinel; both sides end with `</s>`.

T5's code rounds the numbers of noise tokens and spans once for all examples: inputs of 512 tokens have 85 tokens in 28
spans, 3.04 per span. Here neighboring examples differ by one where necessary, so that density and mean span length are
exact over any stretch of text. Every input has the same length.

Data: plain text or JSON lines {train,valid,test…}, or a hub data set.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np
from torch import Tensor

from ..data.corpus import (
    DOCUMENT_ENDINGS,
    DOCUMENT_FIELDS,
    Corpus,
    SelectedTexts,
    TextFiles,
    TokenArray,
    hub_texts,
    read_corpus,
)
from ..data.examples import Examples, OnLong, Pair, pair_collate
from ..data.files import split_files
from ..data.hub import HubDataset, is_hub_name
from ..data.tokenizer import SPECIAL_TOKENS, Tokens, train_tokenizer
from ..errors import UserError
from .base import Evaluation, EvaluationLoop, Scores, Task
from .language_modeling import encode_corpus
from .seq2seq import json_lines

if TYPE_CHECKING:
    from transformers import GenerationConfig
    from transformers import PreTrainedTokenizerFast as Tokenizer

# The documents of a streamed corpus that the tokenizer is trained on.
_VOCABULARY_DOCUMENTS = 1_000_000


class SpanLengths(NamedTuple):
    """Tokens of an example before corruption, noise tokens among them, and the number of noise spans."""

    raw: int
    noise: int
    spans: int


@dataclass(frozen=True)
class SpanLayout:
    """Cuts running text into examples whose inputs have `inputs` tokens, `</s>` included.

    An example of r raw tokens, with density d and mean span length m, has r d noise tokens in r d / m spans, and
    inputs − 1 = r (1 − d + d / m). These are not whole numbers. So the first n examples together have n times the
    exact number of spans, rounded, and likewise of the noise tokens after the first of each span.

    >>> layout = SpanLayout(512)
    >>> [layout.lengths(index).spans for index in range(5)]
    [28, 29, 28, 29, 28]

    Raises:
        UserError: an option is out of range, or an example would have no span, or more spans than kept tokens.
    """

    inputs: int
    density: float = 0.15
    mean_span_length: float = 3.0

    def __post_init__(self) -> None:
        noise = f"density={self.density:g} and mean_span_length={self.mean_span_length:g}"
        if not (0 < self.density < 1 and 1 <= self.mean_span_length < math.inf):
            raise UserError(f"got {noise}; expected a density between 0 and 1, and a length of at least 1")
        least = math.ceil(1 + 1 / self._spans_per_token - 1e-9)
        if self.inputs < least:
            raise UserError(f"got inputs_length={self.inputs}; expected at least {least}: one span with {noise}")
        if 2 * self.most_spans > self.inputs - 1:
            raise UserError(
                f"got {noise}: inputs of {self.inputs} tokens would have {self.most_spans} spans; expected at most "
                "half as many, with a token before each"
            )

    @property
    def _spans_per_token(self) -> float:
        """Spans per input token, without `</s>`."""
        share = self.density / self.mean_span_length
        return share / (1 - self.density + share)

    @property
    def _spans(self) -> float:
        return (self.inputs - 1) * self._spans_per_token

    @property
    def _further(self) -> float:
        """Noise tokens after the first of each span."""
        return self._spans * (self.mean_span_length - 1)

    @property
    def most_spans(self) -> int:
        """The largest number of spans of an example."""
        return math.ceil(self._spans - 1e-9)

    @property
    def most_targets(self) -> int:
        """The length of the longest targets in tokens."""
        return 2 * self.most_spans + math.ceil(self._further - 1e-9) + 1

    def start(self, index: int) -> int:
        """The first raw token of an example, and the end of the previous one."""
        return index * (self.inputs - 1) + _rounded(index * self._further)

    def lengths(self, index: int) -> SpanLengths:
        """The lengths of an example."""
        spans = _rounded((index + 1) * self._spans) - _rounded(index * self._spans)
        further = _rounded((index + 1) * self._further) - _rounded(index * self._further)
        return SpanLengths(self.inputs - 1 + further, spans + further, spans)

    def table(self, count: int) -> np.ndarray:
        """(count, 2) input and target tokens of the first examples."""
        index = np.arange(count + 1)
        spans, further = (np.diff(np.floor(index * number + 0.5)) for number in (self._spans, self._further))
        targets = 2 * spans + further + 1
        return np.stack([np.full(count, self.inputs), targets.astype(np.int64)], axis=1)

    def count(self, tokens: int) -> int:
        """The number of whole examples in so many tokens; the rest is not used."""
        found = int(tokens / (self.inputs - 1 + self._further)) + 1
        while self.start(found) > tokens:
            found -= 1
        return found


def _rounded(number: float) -> int:
    return math.floor(number + 0.5)


def noise_mask(lengths: SpanLengths, rng: np.random.Generator) -> np.ndarray:
    """(raw,) bool: the noise tokens. All divisions of noise and kept tokens into spans are equally likely."""
    borders = np.empty(2 * lengths.spans, dtype=np.int64)
    borders[0::2] = _divide(lengths.raw - lengths.noise, lengths.spans, rng)
    borders[1::2] = _divide(lengths.noise, lengths.spans, rng)
    # Kept and noise spans alternate, kept first.
    return np.repeat(np.arange(2 * lengths.spans) % 2 == 1, borders)


def _divide(total: int, parts: int, rng: np.random.Generator) -> np.ndarray:
    """(parts,) positive lengths that sum to `total`, uniformly among all of these."""
    cuts = np.sort(rng.choice(total - 1, size=parts - 1, replace=False)) + 1
    return np.diff(cuts, prepend=0, append=total)


def corrupt(tokens: Tokens, mask: np.ndarray, first_sentinel: int) -> tuple[Tokens, Tokens]:
    """Inputs and targets, without `</s>`; `mask` has the noise tokens, sentinel i is `first_sentinel` − i."""
    starts = mask & ~np.concatenate([[False], mask[:-1]])
    sentinels = (first_sentinel + 1 - np.cumsum(starts)).astype(tokens.dtype)
    inputs = np.where(starts, sentinels, tokens)[~mask | starts]
    # In the targets a sentinel comes before its span.
    places = np.flatnonzero(mask)
    return inputs, np.insert(tokens[places], np.flatnonzero(starts[places]), sentinels[starts])


@dataclass(frozen=True)
class SpanExamples(Examples[Pair]):
    """Pieces of running text, corrupted when they are read, with other noise in every epoch of training."""

    tokens: TokenArray
    layout: SpanLayout
    first_sentinel: int
    eos_token_id: int
    # The seed of an epoch's noise, in a list because `draw` changes it.
    noise: list[int] = field(default_factory=lambda: [0])

    def __len__(self) -> int:
        return self.layout.count(len(self.tokens))

    def __getitem__(self, index: int) -> Pair:
        start, lengths = self.layout.start(index), self.layout.lengths(index)
        mask = noise_mask(lengths, np.random.default_rng([self.noise[0], index]))
        inputs, targets = corrupt(self.tokens[start : start + lengths.raw], mask, self.first_sentinel)
        return np.append(inputs, np.int32(self.eos_token_id)), np.append(targets, np.int32(self.eos_token_id))

    def lengths(self) -> np.ndarray:
        """(N, 2) input tokens, the same for all, and target tokens."""
        return self.layout.table(len(self))

    def draw(self, rng: np.random.Generator, seed: int = 0, number: int = 0) -> np.ndarray:
        """Each example once, with new noise."""
        self.noise[0] = int(rng.integers(2**62))
        return super().draw(rng, seed, number)


@dataclass(frozen=True)
class SpanCorruption(Task[Corpus, Pair]):
    """Pretraining by span corruption. The noise of a validation is the same for all runs.

    Args:
        density: the share of noise tokens.
        mean_span_length: the mean length of a noise span in tokens.
        sentinels: the number of sentinels in the vocabulary; T5 has 100.
        inputs_length: the length of the inputs in tokens; by default the model's maximum.
        text_field: the field of JSON lines with the text, by default text, article, source or document; the column of
            a hub data set, by default text.
        stream: keep tokens in a memory-mapped file in the user's cache, for corpora larger than the memory.
        max_documents: the most documents of each split of a hub data set.
        subset, revision: of a hub data set (hub:OWNER/NAME).
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
    model_class: ClassVar[str | type] = "SynthesizerForConditionalGeneration"
    tokens_name: ClassVar[str] = "input + target tokens"

    def __post_init__(self) -> None:
        for name, value in (("sentinels", self.sentinels), ("max_documents", self.max_documents)):
            if value is not None and value < 1:
                raise UserError(f"got {name}={value}; expected at least 1")
        # Without a length, check what does not depend on it.
        self._layout(self.inputs_length or 10**6)

    def _layout(self, inputs_length: int) -> SpanLayout:
        return SpanLayout(inputs_length, self.density, self.mean_span_length)

    def read(self, data: Path, split: str) -> Corpus:
        """The documents in all files of a split, or in a column of a hub data set."""
        if is_hub_name(data):
            source = HubDataset.of(data, self.subset, self.revision)
            texts = hub_texts(source, split, self.text_field or "text", self.stream, self.max_documents)
            return read_corpus(split, texts, self.stream)
        paths = split_files(data, split, DOCUMENT_ENDINGS)
        name = paths[0].name.split(".")[0] if len(paths) == 1 else split
        fields = (self.text_field,) if self.text_field else DOCUMENT_FIELDS
        return read_corpus(name, SelectedTexts(TextFiles(paths, fields), str.strip), self.stream)

    def train_tokenizer(self, split: Corpus, vocab_size: int, max_length: int) -> Tokenizer:
        """A vocabulary with the sentinels at its end: `<extra_id_0>` is the last token, `<extra_id_1>` before it."""
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

    def encode(
        self, split: Corpus, tokenizer: Tokenizer, max_length: int, on_long: OnLong = "error", training: bool = False
    ) -> SpanExamples:
        """The documents, each with `</s>`, joined and cut into pieces that fill the inputs exactly."""
        layout = self._layout(self.inputs_length or max_length)
        if max(layout.inputs, layout.most_targets) > max_length:
            raise UserError(
                f"got inputs of {layout.inputs} and targets of up to {layout.most_targets} tokens; expected at most "
                f"{max_length}, max_position_embeddings; pass a smaller --set inputs_length=…"
            )
        if layout.most_spans > self.sentinels:
            raise UserError(
                f"inputs of {layout.inputs} tokens have up to {layout.most_spans} spans, and the vocabulary "
                f"{self.sentinels} sentinels; pass --set sentinels={layout.most_spans}, or shorter inputs"
            )
        first_sentinel = len(tokenizer) - 1
        for number in (0, self.sentinels - 1):
            if tokenizer.convert_tokens_to_ids(f"<extra_id_{number}>") != first_sentinel - number:
                raise UserError(
                    f"the tokenizer has no <extra_id_{number}> at its place; expected the tokenizer of a "
                    f"span-corruption run with at least {self.sentinels} sentinels"
                )
        store = encode_corpus(split, tokenizer, self.stream)
        if not layout.count(len(store.tokens)):
            raise UserError(
                f"{split.name}: {len(store.tokens)} tokens; expected at least {layout.start(1)}, one example"
            )
        assert tokenizer.eos_token_id is not None
        return SpanExamples(store.tokens, layout, first_sentinel, tokenizer.eos_token_id)

    def collate(self, examples: Sequence[Pair], pad_token_id: int) -> dict[str, Tensor]:
        """input_ids and attention_mask (B, S), labels (B, T)."""
        return pair_collate(examples, pad_token_id)

    def validate(self, loop: EvaluationLoop, split: Corpus, examples: Examples[Pair], loss: float) -> Scores:
        """The perplexity of the targets."""
        return {"perplexity": math.exp(loss)}

    def evaluate(
        self, loop: EvaluationLoop, split: Corpus, generation: GenerationConfig | None = None, on_long: OnLong = "error"
    ) -> Evaluation:
        """Loss and perplexity of the targets; the predictions file has the loss of each example."""
        examples = self.encode(split, loop.tokenizer, loop.max_length)
        tokens = examples.lengths()[:, -1]

        def step(rows: list[int]) -> list[float]:
            return [loop.model(**loop.batch(self, examples, rows), num_items_in_batch=1).loss.item()]

        # Each example is a batch: the model returns the loss of a batch as a whole.
        sums = loop.run_each(tokens, step, [[index] for index in range(len(examples))])
        loss = sum(sums) / int(tokens.sum())
        rows = zip(sums, tokens.tolist(), strict=True)
        lines: list[dict[str, Any]] = [
            {"id": index, "tokens": count, "loss": total / count} for index, (total, count) in enumerate(rows)
        ]
        scores: Scores = {"loss": loss, "perplexity": math.exp(loss)}
        return Evaluation(scores, len(examples), json_lines(lines), "jsonl", answered=len(examples))
