"""Training text that is not held in memory: tokenized once into a memory-mapped table, or again while it is read.

Either way training gets windows, each an `Examples` in memory, and the sampler shuffles and sorts one window after the
other. A window of the table has random blocks of neighboring texts; a streamed window has the texts of a part of the
files, in their order.
"""

from __future__ import annotations

import copy
import hashlib
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from tqdm import tqdm  # type: ignore[import-untyped]
from transformers import PreTrainedTokenizerFast

from ..data.examples import Examples, NoExamplesError, OnLong, TrainingData
from ..data.files import fingerprints, read_cached
from ..data.records import Records, Split, ahead, count_characters
from ..data.source import import_datasets
from ..errors import UserError
from .base import Task

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast as Tokenizer

# Text of more characters is not held in memory.
IN_MEMORY = 5 * 10**7
# The characters that are tokenized at once; of a table, a block.
_BLOCK = 2**20
# A window: tokens of a table, blocks of streamed text.
_WINDOW_TOKENS = 2**23
_WINDOW_BLOCKS = 8
# Raised when tables are written in another form.
_VERSION = 3
# The first bytes of a file by which streamed text is recognized.
_HEAD = 2**20
_COUNTS = ("dropped", "truncated", "skipped")
Report = Callable[[str], object]


@dataclass(frozen=True, eq=False)
class LargeSplit(Split):
    """A training split that is read in parts, each of which is an ordinary split.

    Args:
        sample_characters: a new tokenizer is trained on about so many characters.
        streaming: read no more text than training needs.
    """

    task: Task[Any, Any]
    records: Records
    sample_characters: int
    streaming: bool = False

    def __len__(self) -> int:
        return 0 if self.streaming else int(self.summary["records"])

    def fingerprint(self) -> dict[str, str | int]:
        """Digests of the text; of streamed text its beginning, and names and sizes of the files."""
        if not self.streaming:
            return dict(self.summary["fingerprint"])
        source = self.records.source
        if source.hub:
            return {"split": self.name, "streamed": "", **fingerprints([self.columns()])}
        sizes = ", ".join(f"{path.name} ({path.stat().st_size})" for path in source.files)
        return {"split": self.name, "streamed": sizes, "sha256": source.digest(_HEAD)}

    def parts(self, start: int = 0) -> Iterator[tuple[int, Split]]:
        """Splits of neighboring records, each after the number of records before it."""
        return ((first, self.records.split(rows, first + 1)) for first, rows in self.records.windows(_BLOCK, start))

    def head(self) -> Split:
        """The first part."""
        for _, split in self.parts():
            return split
        raise UserError(f"{self.records.source}: there is no text; expected at least one record")

    def columns(self) -> Mapping[str, Iterable[str]]:
        """Those of the first part."""
        return self.head().columns()

    def all_texts(self) -> list[str]:
        """A sample for a new tokenizer, spread over the whole if that is read anyway."""
        read, limit, rows = 0, self.sample_characters, list[Any]()
        share = 1.0 if self.streaming else min(1.0, limit / max(1, self.summary["characters"]))
        for number, (_, part) in enumerate(self.records.windows(_BLOCK // 16)):
            if self.streaming and read >= limit:
                break
            if math.floor((number + 1) * share) > math.floor(number * share):
                rows += part
                read += count_characters(part)
        return self.records.split(rows).all_texts()

    @cached_property
    def key(self) -> str:
        """Identifies the text and what the task makes of it."""
        source = self.records.source
        content = self.fingerprint() if source.hub or self.streaming else source.digest()
        return _digest([_VERSION, self.task.name, asdict(self.task), content])

    @cached_property
    def summary(self) -> dict[str, Any]:
        """What one pass over the text tells about it; from the cache if the files were read before."""
        if self.records.source.hub:
            return self._summarize()

        def write(folder: Path) -> None:
            (folder / "summary.json").write_text(json.dumps(self._summarize()), encoding="utf-8")

        return read_cached(f"text-{self.key}", write, lambda folder: json.loads((folder / "summary.json").read_text()))

    def _summarize(self) -> dict[str, Any]:
        totals = {"records": 0, "characters": 0}

        def columns() -> Iterator[Mapping[str, Iterable[str]]]:
            for first, rows in self.records.windows(_BLOCK):
                split = self.records.split(rows, first + 1)
                totals["records"] += len(split)
                totals["characters"] += count_characters(rows)
                yield split.columns()

        digests, counted = fingerprints(columns()), self.records.split([]).counted
        return {**totals, "fingerprint": {"split": self.name, counted: totals["records"], **digests}}


def new_tokenizer(
    task: Task[Any, Any],
    split: Split,
    vocab_size: int,
    max_length: int,
    report: Report = lambda line: None,
) -> Tokenizer:
    """A tokenizer trained on a split, or on a sample of large text, from the cache if it is the same sample."""
    if not isinstance(split, LargeSplit):
        return task.train_tokenizer(split, vocab_size, max_length)

    def write(folder: Path) -> None:
        task.train_tokenizer(split, vocab_size, max_length).save_pretrained(folder)

    size = f"the first {split.sample_characters:,} characters"
    if not split.streaming:
        total = int(split.summary["characters"])
        size = f"{min(split.sample_characters, total):,} of {total:,} characters"
    # Not in `write`, which another process may call.
    report(f"{split.name}: a tokenizer trained on {size} (--set tokenizer_characters=…)")
    name = _digest([split.key, split.sample_characters, vocab_size, max_length])
    return read_cached(f"tokenizer-{name}", write, PreTrainedTokenizerFast.from_pretrained)


@dataclass(frozen=True, eq=False, kw_only=True)
class LargeExamples(TrainingData):
    """Examples of large text.

    Args:
        begin: the windows of an epoch, from its seed, number, and the position to begin at.
        size, tokens: the number of examples, and of their tokens in an epoch; 0 and None if they are not known.
    """

    begin: Callable[[int, int, int], Iterator[tuple[int, Examples]]]
    size: int = 0
    tokens: float | None = None

    def __len__(self) -> int:
        return self.size

    def tokens_per_pass(self) -> float | None:
        """The number of tokens, estimated."""
        return self.tokens

    def windows(self, seed: int, epoch: int, position: int = 0) -> Iterator[tuple[int, Examples]]:
        """The windows that are not empty."""
        return (each for each in self.begin(seed, epoch, position) if len(each[1]))


def encode_large(
    split: LargeSplit, tokenizer: Tokenizer, max_length: int, on_long: OnLong, report: Report
) -> TrainingData:
    """The examples of large text, for training."""
    # Text is tokenized in another thread.
    own = copy.deepcopy(tokenizer)

    def encode(part: Split) -> Examples:
        try:
            return split.task.encode(part, own, max_length, on_long, training=True)
        except NoExamplesError:
            return Examples.of([], dropped=len(part))

    def parts(start: int = 0) -> Iterator[tuple[int, Examples]]:
        return ((first, encode(part)) for first, part in split.parts(start))

    def streamed(_seed: int, _epoch: int, position: int) -> Iterator[tuple[int, Examples]]:
        # In the order of the text; a position is a number of records.
        encoded = ahead(parts(position), _WINDOW_BLOCKS)
        while window := [*islice(encoded, _WINDOW_BLOCKS)]:
            if filled := [part for _, part in window if len(part.sizes)]:
                yield window[0][0], filled[0].joined(filled)

    if split.streaming:
        report(f"{split.name}: streamed: the number of {split.task.unit} is not known")
        return LargeExamples(begin=streamed)
    folder = import_datasets("large text").config.HF_DATASETS_CACHE
    size = f"{split.records.source.bytes() / 1e6:,.0f} MB of text"
    report(f"{split.name}: {size}, tokenized once, in {folder} (HF_DATASETS_CACHE)")
    settings = json.loads(tokenizer.backend_tokenizer.to_str())
    # `encode` sets these two.
    del settings["truncation"], settings["padding"]
    name = f"tokens-{_digest([split.key, settings, max_length, on_long])}"

    def shown() -> Iterator[Examples]:
        with tqdm(desc=f"tokenizing {split.name}", total=len(split), disable=None, leave=False) as bar:
            for _, part in ahead(parts()):
                yield part
                bar.update(len(part.sizes))

    table, counts = _table(name, shown, np.uint16 if len(tokenizer) <= 2**16 else np.uint32)
    rows, tokens, *totals = counts.sum(axis=0).tolist()
    if not rows:
        raise UserError("no example is left of the training data")
    like = next(part for _, part in parts() if len(part.sizes))

    def load(blocks: np.ndarray) -> Examples:
        found = []
        for block in blocks[counts[blocks, 0] > 0].tolist():
            row, count = table[block], int(counts[block, 0])
            ids, sizes, numbers = (row[name][0].values.to_numpy() for name in ("tokens", "sizes", "numbers"))
            found.append(Examples(tokens=ids, sizes=sizes.reshape(count, -1), numbers=numbers.reshape(count, -1)))
        return like.joined(found)

    def windows(seed: int, epoch: int, position: int) -> Iterator[tuple[int, Examples]]:
        # Random blocks; a position is a number of blocks.
        order = np.random.default_rng([seed, epoch]).permutation(len(counts))
        ends = np.cumsum(counts[order, 1])
        while position < len(order):
            before = ends[position - 1] if position else 0
            following = max(position + 1, int(np.searchsorted(ends, before + _WINDOW_TOKENS, side="right")))
            if counts[blocks := order[position:following], 0].any():
                yield position, load(blocks)
            position = following

    # Estimated from some blocks: a task may cut other examples of the tokens.
    first = np.flatnonzero(counts[:, 0])[:8]
    mean = float(load(first).lengths().sum() * tokens / counts[first, 1].sum())
    report(f"{split.name}: {rows:,} rows, {tokens:,} tokens")
    return LargeExamples(begin=windows, size=rows, tokens=mean, **dict(zip(_COUNTS, totals, strict=True)))


def _table(name: str, parts: Callable[[], Iterator[Examples]], dtype: type) -> tuple[Any, np.ndarray]:
    """The memory-mapped table `name` in the cache of `datasets`, written from `parts` if it is not there.

    It has a row for each part, a block of neighboring texts. Other processes that ask for it wait meanwhile. The second
    array has (blocks, 5) the texts, tokens, and examples dropped, truncated, skipped.
    """
    datasets = import_datasets("large text")

    def rows() -> Iterator[dict[str, np.ndarray]]:
        for part in parts():
            counts = [len(part.sizes), len(part.tokens), *(getattr(part, count) for count in _COUNTS)]
            yield {
                "tokens": part.tokens.astype(dtype),
                "sizes": part.sizes.ravel(),
                "numbers": part.numbers.ravel(),
                "counts": np.array(counts, dtype=np.int64),
            }

    try:
        # A record batch for each row: they are found without a search.
        table = datasets.Dataset.from_generator(rows, fingerprint=name, writer_batch_size=1).with_format("arrow")
        return table, np.stack([row.values.to_numpy() for row in table.data.column("counts")])
    # Errors of `rows` and of writing have a cause; a damaged table has many errors.
    except Exception as error:
        if isinstance(error.__cause__, UserError):
            raise error.__cause__ from None
        raise UserError(
            f"{datasets.config.HF_DATASETS_CACHE}: cannot read or write {name} ({error.__cause__ or error}); delete it "
            "to write it again, or set HF_DATASETS_CACHE to a folder with enough space"
        ) from error


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()[:24]
