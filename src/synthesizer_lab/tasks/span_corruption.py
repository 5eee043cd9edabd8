"""T5's span corruption (Raffel et al. 2020, section 3.1.4): spans of a text are cut out and have to be generated.

    tokens    a b c d e f g h         inputs   a b <0> e f <1>
    noise     . . x x . . x x         targets  <0> c d <1> g h

Sentinels <0>, <1>, … are the ids from the top of the vocabulary downward. As in T5's code a text begins with a kept
span and ends with a noise span; both sides end with `</s>`. All inputs are equally long. T5's code rounds the numbers
of noise tokens and spans once for all examples; here neighboring examples differ by one where necessary.

Data: plain text or JSON lines {train,valid,test…}, or a hub data set.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, cast

import numpy as np

from synthetic_attention.models import SynthesizerForConditionalGeneration

from ..data.examples import Examples, NoExamplesError, OnLong
from ..data.source import Corpus, Records, Source, text_records
from ..data.tokenizer import Tokenizer, Tokens, encode
from ..errors import UserError
from .base import EvaluationLoop, Scores, Task
from .language_modeling import safe_exp

# The field with the text: plain corpora, CNN/DailyMail, SciTLDR, XSum.
DOCUMENT_FIELDS = ("text", "article", "source", "document")


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
    exact number of spans, rounded, and likewise of the noise tokens after the first of each span: density and mean
    span length are exact over any stretch of text.

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
        if self._spans < 1 - 1e-9 or 2 * self.most_spans > self.inputs - 1:
            raise UserError(
                f"got {noise}: inputs of {self.inputs} tokens would have {self._spans:.1f} spans; expected at least "
                "one, and a token before each"
            )

    @property
    def _spans(self) -> float:
        share = self.density / self.mean_span_length
        # In this order: the sums that follow are rounded, and some are ties.
        return (self.inputs - 1) * (share / (1 - self.density + share))

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

    def lengths(self, index: Any) -> SpanLengths:
        """The lengths of an example, or of an array of examples."""
        spans = _rounded((index + 1) * self._spans) - _rounded(index * self._spans)
        further = _rounded((index + 1) * self._further) - _rounded(index * self._further)
        return SpanLengths(self.inputs - 1 + further, spans + further, spans)

    def count(self, tokens: int) -> int:
        """The number of whole examples in so many tokens; the rest is not used."""
        found = int(tokens / (self.inputs - 1 + self._further)) + 1
        while self.start(found) > tokens:
            found -= 1
        return found


def _rounded(number: Any) -> Any:
    return np.floor(number + 0.5).astype(np.int64)


def noise_mask(lengths: SpanLengths, rng: np.random.Generator) -> np.ndarray:
    """(raw,) bool: the noise tokens. All divisions of noise and kept tokens into spans are equally likely."""
    sides = [_divide(total, lengths.spans, rng) for total in (lengths.raw - lengths.noise, lengths.noise)]
    # Kept and noise spans alternate, kept first.
    return np.repeat([False, True] * int(lengths.spans), np.stack(sides, axis=1).ravel())


def _divide(total: int, parts: int, rng: np.random.Generator) -> np.ndarray:
    """(parts,) positive lengths that sum to `total`, uniformly among all of these."""
    return np.diff(np.sort(rng.choice(total - 1, size=parts - 1, replace=False)) + 1, prepend=0, append=total)


def corrupt(tokens: Tokens, mask: np.ndarray, first_sentinel: int) -> tuple[Tokens, Tokens]:
    """Inputs and targets, without `</s>`; `mask` has the noise tokens, sentinel i is `first_sentinel` − i."""
    starts = mask & ~np.concatenate([[False], mask[:-1]])
    sentinels = (first_sentinel + 1 - np.cumsum(starts)).astype(tokens.dtype)
    inputs = np.where(starts, sentinels, tokens)[~mask | starts]
    # In the targets a sentinel comes before its span.
    places = np.flatnonzero(mask)
    return inputs, np.insert(tokens[places], np.flatnonzero(starts[places]), sentinels[starts])


@dataclass(frozen=True, eq=False, kw_only=True)
class SpanExamples(Examples):
    """Pieces of the texts that fill the inputs exactly, corrupted when they are read, with other noise in each epoch.

    The texts are joined, each with its `</s>`.
    """

    layout: SpanLayout
    first_sentinel: int
    eos_token_id: int
    # The seed of an epoch's noise, in a list because `draw` changes it.
    noise: dict[int, int] = field(default_factory=dict, init=False)

    def __len__(self) -> int:
        return self.layout.count(len(self.tokens))

    def __getitem__(self, index: int) -> tuple[Tokens, Tokens]:
        number, index = divmod(index, len(self))
        start, lengths = self.layout.start(index), self.layout.lengths(index)
        mask = noise_mask(lengths, np.random.default_rng([self.noise.get(number, 0), index]))
        inputs, targets = corrupt(self.tokens[start : start + lengths.raw], mask, self.first_sentinel)
        return np.append(inputs, np.int32(self.eos_token_id)), np.append(targets, np.int32(self.eos_token_id))

    def lengths(self) -> np.ndarray:
        """(N, 2) input tokens, the same for all, and target tokens."""
        sizes = self.layout.lengths(np.arange(len(self)))
        return np.stack([np.full(len(self), self.layout.inputs), sizes.noise + sizes.spans + 1], axis=1)

    def draw(self, rng: np.random.Generator, seed: int = 0, number: int = 0) -> np.ndarray:
        """Each example once, with new noise."""
        self.noise[number] = int(rng.integers(2**62))
        return super().draw(rng, seed, number)


@dataclass(frozen=True)
class SpanCorruption(Task):
    """Pretraining by span corruption. The noise of a validation is the same for all runs.

    Args:
        density: the share of noise tokens.
        mean_span_length: the mean length of a noise span in tokens.
        sentinels: the number of sentinels in the vocabulary; T5 has 100.
        text_field: the field of JSON lines with the text, by default text, article, source or document; the column of
            a hub data set, by default text.
        max_documents: the most documents of each split.
        skip_bad_lines: skip and count malformed lines.
        subset, revision: of a hub data set (hub:OWNER/NAME).
    """

    density: float = 0.15
    mean_span_length: float = 3.0
    sentinels: int = 100
    text_field: str | None = None
    max_documents: int | None = None
    skip_bad_lines: bool = False
    subset: str | None = None
    revision: str | None = None
    name: ClassVar[str] = "span-corruption"
    score_labels: ClassVar[Mapping[str, str]] = {"loss": "loss", "perplexity": "perplexity"}
    model_class: ClassVar[type] = SynthesizerForConditionalGeneration

    def __post_init__(self) -> None:
        # Check what does not depend on the length of the inputs.
        SpanLayout(10**6, self.density, self.mean_span_length)

    def records(self, data: Path, split: str) -> Records:
        """The documents in all files of a split, or in a column of a hub data set."""
        source = Source.of(data, split, (".txt", ".jsonl", ".json"), self.subset, self.revision, several=True)
        fields = (self.text_field,) if self.text_field else DOCUMENT_FIELDS
        skip, most = self.skip_bad_lines, self.max_documents
        return text_records(source, source.split, fields, "text_field", str.strip, skip_bad_lines=skip, most=most)

    def encode(
        self, split: Corpus, tokenizer: Tokenizer, max_length: int, on_long: OnLong = "error", training: bool = False
    ) -> SpanExamples:
        """The documents, each with `</s>`, joined and cut into pieces that fill the inputs exactly."""
        layout = SpanLayout(max_length, self.density, self.mean_span_length)
        if layout.most_targets > max_length:
            raise UserError(
                f"got targets of up to {layout.most_targets} tokens with density={self.density:g}; expected at most "
                f"max_position_embeddings={max_length}; pass a lower --set density=…"
            )
        if layout.most_spans > self.sentinels:
            raise UserError(
                f"inputs of {layout.inputs} tokens have up to {layout.most_spans} spans, and the vocabulary "
                f"{self.sentinels} sentinels; pass --set sentinels={layout.most_spans}, or shorter inputs"
            )
        first_sentinel, last = len(tokenizer) - 1, self.sentinels - 1
        if tokenizer.convert_tokens_to_ids(f"<extra_id_{last}>") != first_sentinel - last:
            raise UserError(
                f"the tokenizer has no <extra_id_{last}> at its place; expected the tokenizer of a span-corruption run "
                f"with {self.sentinels} sentinels"
            )
        examples = SpanExamples.of(
            [(ids,) for ids in encode(tokenizer, split.texts)],
            skipped=split.skipped,
            layout=layout,
            first_sentinel=first_sentinel,
            eos_token_id=cast(int, tokenizer.eos_token_id),
        )
        if not len(examples):
            tokens, least = len(examples.tokens), layout.start(1)
            raise NoExamplesError(f"{split.name}: {tokens} tokens; expected at least {least}, one example")
        return examples

    def validate(self, loop: EvaluationLoop, split: Corpus, examples: SpanExamples, loss: float) -> Scores:
        """The perplexity of the targets."""
        return {"perplexity": safe_exp(loss)}
