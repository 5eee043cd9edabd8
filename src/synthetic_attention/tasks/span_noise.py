"""T5's span corruption (Raffel et al. 2020, section 3.1.4): some spans of a text are cut out and have to be written.

    tokens    a b c d e f g h         inputs   a b <0> e f <1>
    noise     . . x x . . x x         targets  <0> c d <1> g h

Sentinels <0>, <1>, … are the ids from the top of the vocabulary downward. As in T5's code a text begins with a span
that is kept and ends with one that is cut out, so the targets need no closing sentinel: `</s>`, which the caller
appends to both, ends the last span.

T5's code rounds the numbers of noise tokens and of spans once for all examples: inputs of 512 tokens have 85 tokens in
28 spans, 3.04 a span. Here the numbers of neighbouring examples differ by one where that is needed, so that density
and mean length are those asked for over any stretch of text; every input still has the same length, and the text that
an example takes may be one token longer or shorter than the next.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

__all__ = ["Packing", "SpanLengths", "corrupt", "noise_mask", "restore"]

Ids = np.ndarray[tuple[int], np.dtype[np.int32]]
Mask = np.ndarray[tuple[int], np.dtype[np.bool_]]

DENSITY = 0.15
MEAN_SPAN_LENGTH = 3.0


@dataclass(frozen=True)
class SpanLengths:
    """Lengths of one example, in tokens; `</s>` is counted in `inputs` and `targets`.

    Raises:
        ValueError: there is no noise, or not a token for each span that is cut out or kept before it.
    """

    raw: int
    noise: int
    spans: int

    def __post_init__(self) -> None:
        if not 1 <= self.spans <= min(self.noise, self.raw - self.noise):
            raise ValueError(
                f"got {self.spans} spans of {self.noise} tokens in all, to be cut out of {self.raw}; expected at least "
                "one, and a token or more in each and before each"
            )

    @property
    def inputs(self) -> int:
        """What is kept, a sentinel for each span, and `</s>`."""
        return self.raw - self.noise + self.spans + 1

    @property
    def targets(self) -> int:
        """What is cut out, a sentinel before each span, and `</s>`."""
        return self.noise + self.spans + 1


@dataclass(frozen=True)
class Packing:
    """How running text is cut into examples whose inputs have `inputs` tokens, `</s>` included.

    With r raw tokens an example, d the density and m the mean length of a span, there are r d noise tokens in r d / m
    spans, and inputs − 1 = r (1 − d + d / m) tokens are left of them. These are no whole numbers. So of the spans, and
    of the noise tokens beyond the first of each span, the first n examples have n times the exact number, rounded.

    >>> packing = Packing(512)
    >>> [packing.lengths(index).spans for index in range(5)]
    [28, 29, 28, 29, 28]

    Raises:
        ValueError: an option is out of range, or an example would have no span, or more than fit between what is kept.
    """

    inputs: int
    density: float = DENSITY
    mean_span_length: float = MEAN_SPAN_LENGTH

    def __post_init__(self) -> None:
        if not 0 < self.density < 1:
            raise ValueError(f"got density={self.density}; expected more than 0 and less than 1")
        if not 1 <= self.mean_span_length < math.inf:
            raise ValueError(f"got mean_span_length={self.mean_span_length}; expected at least 1")
        least = math.ceil(1 + 1 / self._spans_per_input - 1e-9)
        if self.inputs < least:
            raise ValueError(
                f"got inputs_length={self.inputs}; expected at least {least}, for one span of "
                f"{self.mean_span_length:g} tokens at a density of {self.density:g}"
            )
        if 2 * self.most_spans > self.inputs - 1:
            raise ValueError(
                f"got density={self.density:g} with mean_span_length={self.mean_span_length:g}: inputs of "
                f"{self.inputs} tokens would have {self.most_spans} spans; expected at most half as many, a token "
                "before each"
            )

    @property
    def _spans_per_input(self) -> float:
        """Spans for each token of the inputs, `</s>` left out."""
        share = self.density / self.mean_span_length
        return share / (1 - self.density + share)

    @property
    def _spans(self) -> float:
        return (self.inputs - 1) * self._spans_per_input

    @property
    def _further(self) -> float:
        """Noise tokens beyond the first of each span."""
        return self._spans * (self.mean_span_length - 1)

    @property
    def most_spans(self) -> int:
        """Of any example."""
        return math.ceil(self._spans - 1e-9)

    @property
    def most_targets(self) -> int:
        """The longest targets of any example, in tokens."""
        return 2 * self.most_spans + math.ceil(self._further - 1e-9) + 1

    def start(self, index: int) -> int:
        """The first token of an example in the running text; the end of the one before."""
        return index * (self.inputs - 1) + _rounded(index * self._further)

    def lengths(self, index: int) -> SpanLengths:
        """Those of an example."""
        spans = _rounded((index + 1) * self._spans) - _rounded(index * self._spans)
        further = _rounded((index + 1) * self._further) - _rounded(index * self._further)
        return SpanLengths(self.inputs - 1 + further, spans + further, spans)

    def table(self, count: int) -> np.ndarray:
        """(count, 2): input and target tokens of the first `count` examples."""
        index = np.arange(count + 1)
        spans, further = (np.diff(np.floor(index * number + 0.5)) for number in (self._spans, self._further))
        targets = 2 * spans + further + 1
        return np.stack([np.full(count, self.inputs), targets.astype(np.int64)], axis=1)

    def count(self, tokens: int) -> int:
        """How many examples there are in so many tokens; what is left at the end, less than one, is not used."""
        found = int(tokens / (self.inputs - 1 + self._further)) + 1
        while self.start(found) > tokens:
            found -= 1
        return found


def _rounded(number: float) -> int:
    return math.floor(number + 0.5)


def noise_mask(lengths: SpanLengths, rng: np.random.Generator) -> Mask:
    """(raw,): which tokens are cut out.

    All ways to divide the noise into that many spans, none empty, are equally likely, and so for what lies between.
    """
    borders = np.empty(2 * lengths.spans, dtype=np.int64)
    borders[0::2] = _divide(lengths.raw - lengths.noise, lengths.spans, rng)
    borders[1::2] = _divide(lengths.noise, lengths.spans, rng)
    # Kept and cut out take turns, kept first.
    return np.repeat(np.arange(2 * lengths.spans) % 2 == 1, borders)


def _divide(total: int, parts: int, rng: np.random.Generator) -> np.ndarray:
    """(parts,): positive lengths that sum to `total`, uniform among all such."""
    cuts = np.sort(rng.choice(total - 1, size=parts - 1, replace=False)) + 1
    return np.diff(cuts, prepend=0, append=total)


def corrupt(tokens: Ids, mask: Mask, first_sentinel: int) -> tuple[Ids, Ids]:
    """Inputs and targets, without `</s>`.

    Args:
        tokens: ids, none of them a sentinel that is needed.
        mask: which of them are cut out, as `noise_mask` says.
        first_sentinel: the id of sentinel 0, the highest; sentinel i is `first_sentinel` − i.

    Raises:
        ValueError: mask and tokens differ in length, or a token is a sentinel that is needed: the vocabulary has too
            few, or the text is too long.
    """
    if mask.shape != tokens.shape:
        raise ValueError(f"got a mask of {mask.shape} for tokens of {tokens.shape}; expected the same")
    starts = mask & ~np.concatenate([[False], mask[:-1]])
    spans = int(starts.sum())
    last = first_sentinel - spans + 1
    if last < 0 or (tokens.size and tokens.max() >= last and np.any((tokens >= last) & (tokens <= first_sentinel))):
        raise ValueError(
            f"got a text that has the ids of sentinels among its tokens: {spans} spans take the ids {last} … "
            f"{first_sentinel}; expected more sentinels, or a shorter text"
        )
    sentinels = (first_sentinel + 1 - np.cumsum(starts)).astype(tokens.dtype)
    inputs = np.where(starts, sentinels, tokens)[~mask | starts]
    # In the targets a sentinel stands before the span it names.
    places = np.flatnonzero(mask)
    targets = np.insert(tokens[places], np.flatnonzero(starts[places]), sentinels[starts])
    return inputs, targets


def restore(inputs: Ids, targets: Ids, first_sentinel: int, spans: int) -> Ids:
    """The text that `corrupt` took apart; neither side has `</s>`.

    Args:
        spans: how many sentinels were used.

    Raises:
        ValueError: a sentinel is missing on a side, or out of order.
    """
    wanted = first_sentinel - np.arange(spans)
    marks = []
    for name, ids in (("inputs", inputs), ("targets", targets)):
        at = np.flatnonzero((ids <= first_sentinel) & (ids > first_sentinel - spans))
        if not np.array_equal(ids[at], wanted):
            raise ValueError(f"got {name} with the sentinels {ids[at].tolist()}; expected {wanted.tolist()}")
        marks.append(at)
    kept = np.split(inputs, marks[0])
    cut = np.split(targets, marks[1])
    # Every piece after the first begins with a sentinel.
    pieces = [kept[0], *(part[1:] for pair in zip(cut[1:], kept[1:], strict=True) for part in pair)]
    return np.concatenate(pieces)
