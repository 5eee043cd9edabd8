"""T5's span corruption (Raffel et al. 2020, section 3.1.4): some spans of a text are cut out and have to be written.

    tokens    a b c d e f g h         inputs   a b <0> e f <1>
    noise     . . x x . . x x         targets  <0> c d <1> g h

Sentinels <0>, <1>, … are the ids from the top of the vocabulary downward. As in T5's code a text begins with a span
that is kept and ends with one that is cut out, so the targets need no closing sentinel: `</s>`, which the caller
appends to both, ends the last span.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

__all__ = ["SpanLengths", "corrupt", "noise_mask", "pack", "restore", "span_lengths"]

Ids = np.ndarray[tuple[int], np.dtype[np.int32]]
Mask = np.ndarray[tuple[int], np.dtype[np.bool_]]

DENSITY = 0.15
MEAN_SPAN_LENGTH = 3.0


@dataclass(frozen=True)
class SpanLengths:
    """Lengths that belong together, in tokens; `</s>` is counted in `inputs` and `targets`."""

    raw: int
    noise: int
    spans: int

    @property
    def inputs(self) -> int:
        """What is kept, a sentinel for each span, and `</s>`."""
        return self.raw - self.noise + self.spans + 1

    @property
    def targets(self) -> int:
        """What is cut out, a sentinel before each span, and `</s>`."""
        return self.noise + self.spans + 1


def _lengths(raw: int, density: float, mean_span_length: float) -> SpanLengths:
    """T5's rounding: to the nearest, at least one token of noise and one that is kept.

    The number of spans is rounded too, so in short texts their mean length is a little off: 85 / 28 = 3.04 in 568.
    """
    noise = min(max(round(raw * density), 1), raw - 1)
    spans = min(max(round(noise / mean_span_length), 1), raw - noise)
    return SpanLengths(raw, noise, spans)


def span_lengths(
    inputs_length: int, density: float = DENSITY, mean_span_length: float = MEAN_SPAN_LENGTH
) -> SpanLengths:
    """How much raw text fills inputs of `inputs_length` tokens, `</s>` included, and what its targets take.

    The inputs are filled exactly, at densities below a half; at others there may be no text that fits so well.

    >>> lengths = span_lengths(512)
    >>> lengths.raw, lengths.inputs, lengths.targets
    (568, 512, 114)

    Raises:
        ValueError: `inputs_length` is too short for a kept token, a sentinel and `</s>`, or an option is out of range.
    """
    _check(density, mean_span_length)
    if inputs_length < 3:
        raise ValueError(f"got inputs_length={inputs_length}; expected at least 3: a token, a sentinel and </s>")
    # One more raw token makes the inputs longer by one or not at all.
    raw = 2
    while _lengths(raw + 1, density, mean_span_length).inputs <= inputs_length:
        raw += 1
    return _lengths(raw, density, mean_span_length)


def _check(density: float, mean_span_length: float) -> None:
    if not 0 < density < 1:
        raise ValueError(f"got density={density}; expected more than 0 and less than 1")
    if not mean_span_length >= 1:
        raise ValueError(f"got mean_span_length={mean_span_length}; expected at least 1")


def noise_mask(
    length: int, rng: np.random.Generator, density: float = DENSITY, mean_span_length: float = MEAN_SPAN_LENGTH
) -> Mask:
    """(length,): which tokens are cut out, in spans of `mean_span_length` tokens on average.

    All ways to divide the noise into that many spans, none empty, are equally likely, and so for what lies between.

    Raises:
        ValueError: `length` is less than 2, or an option is out of range.
    """
    _check(density, mean_span_length)
    if length < 2:
        raise ValueError(f"got a text of {length} tokens; expected at least 2: one to keep and one to cut out")
    lengths = _lengths(length, density, mean_span_length)
    borders = np.empty(2 * lengths.spans, dtype=np.int64)
    borders[0::2] = _divide(length - lengths.noise, lengths.spans, rng)
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


def pack(tokens: Ids, raw: int) -> np.ndarray:
    """(N, raw): running text cut into pieces of `raw` tokens; what is left at its end, less than a piece, is not used.

    Documents are to be joined by the caller, with `</s>` after each.

    Raises:
        ValueError: the text is shorter than one piece.
    """
    if len(tokens) < raw:
        raise ValueError(f"got a text of {len(tokens)} tokens; expected at least {raw}, one example")
    return tokens[: len(tokens) // raw * raw].reshape(-1, raw)
