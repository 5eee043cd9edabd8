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
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar, cast

import numpy as np
from tqdm import tqdm  # type: ignore[import-untyped]
from transformers import PreTrainedTokenizerFast

from ..data.examples import Examples, NoExamplesError, OnLong, TextExamples, TrainingData
from ..data.files import fingerprints, read_cached
from ..data.records import Records, ahead, count_characters, digest_of
from ..data.table import TokenTable, cache_folder
from ..errors import UserError
from .base import Split, Task

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast as Tokenizer

_S = TypeVar("_S", bound=Split)
_T = TypeVar("_T")
# Text of more characters is not held in memory.
IN_MEMORY = 5 * 10**7
# The characters that are tokenized at once; of a table, a block.
_BLOCK = 2**20
# A window: tokens of a table, blocks of streamed text.
_WINDOW_TOKENS = 2**23
_WINDOW_BLOCKS = 8
# Raised when tables are written in another form.
_VERSION = 1
# The first bytes of a file by which streamed text is recognized.
_HEAD = 2**20


@dataclass(frozen=True, eq=False)
class LargeSplit(Generic[_S]):
    """A training split that is read in parts, each of which is an ordinary split.

    Args:
        sample_characters: a new tokenizer is trained on about so many characters.
        streaming: read no more text than training needs.
    """

    task: Task[_S, Any]
    records: Records[Any]
    sample_characters: int
    streaming: bool = False
    has_labels: ClassVar[bool] = True

    @property
    def name(self) -> str:
        """The name of the split."""
        return self.records.name

    def __len__(self) -> int:
        return 0 if self.streaming else int(self._summary["records"])

    def fingerprint(self) -> dict[str, str | int]:
        """Digests of the text; of streamed text its beginning, and names and sizes of the files."""
        if not self.streaming:
            return dict(self._summary["fingerprint"])
        return dict(self._beginning)

    def parts(self, start: int = 0) -> Iterator[tuple[int, _S]]:
        """Splits of neighboring records, each after the number of records before it."""
        records = replace(self.records, labels=self.labels)
        for first, rows in records.windows(_BLOCK, start):
            yield first, self.task.make_split(records, rows, first + 1)

    def head(self) -> _S:
        """The first part."""
        return next(split for _, split in self.parts())

    def sample_size(self) -> str:
        """The size of the sample, in words."""
        if self.streaming:
            return f"the first {self.sample_characters:,} characters"
        total = int(self._summary["characters"])
        return f"{min(self.sample_characters, total):,} of {total:,} characters"

    def sample(self) -> _S:
        """The text for a new tokenizer, spread over the whole if that is read anyway."""
        read = total = 0
        limit, rows = self.sample_characters, list[Any]()
        if not self.streaming:
            total = self._summary["characters"]
        share = limit / total if total > limit else 1.0
        for number, (_, part) in enumerate(self.records.windows(_BLOCK // 16)):
            if self.streaming and read >= limit:
                break
            if math.floor((number + 1) * share) > math.floor(number * share):
                rows += part
                read += sum(map(count_characters, part))
        return self.task.make_split(replace(self.records, labels=self.labels), rows)

    @cached_property
    def key(self) -> str:
        """Identifies the text and what the task makes of it."""
        if self.streaming:
            content: Any = self.fingerprint()
        else:
            content = digest_of(self.records.files) if self.records.files else self._summary["fingerprint"]
        options = asdict(cast(Any, self.task))
        return _digest([_VERSION, self.task.name, options, content])

    @cached_property
    def labels(self) -> frozenset[str]:
        """The labels of the text, or of the beginning of streamed text."""
        if not self.streaming:
            return frozenset(self._summary["labels"])
        _, rows = next(self.records.windows(_WINDOW_BLOCKS * _BLOCK))
        return frozenset(self.task.labels(self.task.make_split(self.records, rows)))

    @cached_property
    def _beginning(self) -> dict[str, str | int]:
        files = self.records.files
        if not files:
            return {"split": self.name, "streamed": "", **fingerprints([self.head().columns()])}
        sizes = ", ".join(f"{path.name} ({path.stat().st_size})" for path in files)
        return {"split": self.name, "streamed": sizes, "sha256": digest_of(files, _HEAD)}

    @cached_property
    def _summary(self) -> dict[str, Any]:
        """What one pass over the text tells about it; from the cache if the files were read before."""
        if not self.records.files:
            return self._summarize()

        def write(folder: Path) -> None:
            (folder / "summary.json").write_text(json.dumps(self._summarize()), encoding="utf-8")

        def read(folder: Path) -> dict[str, Any]:
            found = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
            return {name: found[name] for name in ("fingerprint", "records", "characters", "labels")}

        return read_cached(f"text-{self.key}", write, read)

    def _summarize(self) -> dict[str, Any]:
        records, labels, characters = 0, set[str](), 0

        def columns() -> Iterator[Mapping[str, Iterable[str]]]:
            nonlocal records, characters
            windows = self.records.windows(_BLOCK)
            for first, rows in shown(windows, f"reading {self.name}", self.task.unit, lambda window: len(window[1])):
                split = self.task.make_split(self.records, rows, first + 1)
                records += len(split)
                characters += sum(map(count_characters, rows))
                labels.update(self.task.labels(split))
                yield split.columns()

        digests = fingerprints(columns())
        found = {"split": self.name, self.task.counted: records, **digests}
        return {"fingerprint": found, "records": records, "characters": characters, "labels": sorted(labels)}


def new_tokenizer(
    task: Task[Any, Any],
    split: Split | LargeSplit[Any],
    vocab_size: int,
    max_length: int,
    report: Callable[[str], object] = lambda line: None,
) -> Tokenizer:
    """A tokenizer trained on a split, or on a sample of large text, from the cache if it is the same sample."""
    if not isinstance(split, LargeSplit):
        return task.train_tokenizer(split, vocab_size, max_length)

    def write(folder: Path) -> None:
        task.train_tokenizer(split.sample(), vocab_size, max_length).save_pretrained(folder)

    # Not in `write`, which another process may call.
    report(f"{split.name}: a tokenizer trained on {split.sample_size()} (--set tokenizer_characters=…)")
    name = _digest([split.key, split.sample_characters, vocab_size, max_length])
    return read_cached(f"tokenizer-{name}", write, PreTrainedTokenizerFast.from_pretrained)


def encode_large(
    split: LargeSplit[Any], tokenizer: Tokenizer, max_length: int, on_long: OnLong, report: Callable[[str], object]
) -> TrainingData[Any]:
    """The examples of large text, for training."""
    # Streamed text is tokenized in another thread.
    coder = _Coder(split.task, copy.deepcopy(tokenizer), max_length, on_long)
    if split.streaming:
        report(f"{split.name}: streamed: the number of {split.task.unit} is not known")
        return StreamedExamples(split, coder)
    size = f"{split.records.bytes() / 1e6:,.0f} MB of text"
    report(f"{split.name}: {size}, tokenized once, in {cache_folder()} (HF_DATASETS_CACHE)")
    settings = json.loads(tokenizer.backend_tokenizer.to_str())
    # `encode` sets these two.
    del settings["truncation"], settings["padding"]
    key = [split.key, settings, max_length, on_long]

    def blocks() -> Iterator[TextExamples[Any]]:
        parts = (coder.tokenize(part) for _, part in ahead(split.parts()))
        yield from shown(ahead(parts), f"tokenizing {split.name}", split.task.unit, len, len(split))

    table = TokenTable.cached(key, blocks, len(tokenizer))
    dropped, truncated, skipped = table.counts.sum(axis=0)[1:].tolist()
    if len(split) != table.counts[:, :2].sum():
        raise UserError(f"{cache_folder()}: the table has not all {split.task.unit}; delete it to write it again")
    examples = CachedExamples(table, coder, dropped=dropped, truncated=truncated, skipped=skipped)
    report(f"{split.name}: {len(examples):,} {split.task.stored_unit}, {table.tokens().sum():,} tokens")
    return examples


def shown(
    items: Iterable[_T], title: str, unit: str, size: Callable[[_T], int], total: int | None = None
) -> Iterator[_T]:
    """The same items, with a progress bar on a terminal."""
    with tqdm(desc=title, unit=f" {unit}", unit_scale=True, total=total, disable=None, leave=False) as bar:
        for item in items:
            yield item
            bar.update(size(item))


@dataclass(frozen=True, eq=False)
class _Coder:
    """How a task tokenizes text, and makes examples of it."""

    task: Task[Any, Any]
    tokenizer: Tokenizer
    max_length: int
    on_long: OnLong

    def tokenize(self, split: Split) -> TextExamples[Any]:
        """The tokens of a part."""
        try:
            return self.task.tokenize(split, self.tokenizer, self.max_length, self.on_long)
        except NoExamplesError:
            return TextExamples([], dropped=len(split))

    def assemble(self, texts: TextExamples[Any]) -> Examples[Any]:
        """The examples of a window."""
        return self.task.assemble(texts, self.tokenizer, self.max_length)


@dataclass(frozen=True, eq=False)
class CachedExamples(TrainingData[Any]):
    """Examples of tokens in a memory-mapped table."""

    table: TokenTable
    coder: _Coder

    def __post_init__(self) -> None:
        if not len(self):
            raise UserError("no example is left of the training data")

    def __len__(self) -> int:
        return int(self.table.counts[:, 0].sum())

    def tokens_per_pass(self) -> float:
        """Estimated from some blocks: a task may cut other examples of the tokens."""
        first = np.flatnonzero(self.table.counts[:, 0])[:8]
        block = self.coder.assemble(self.table.load(first))
        tokens = self.table.tokens()
        return float(block.lengths().sum() * tokens.sum() / tokens[first].sum())

    def windows(self, seed: int, epoch: int, position: int = 0) -> Iterator[tuple[int, Examples[Any]]]:
        """Windows of random blocks; a position is a number of blocks."""
        order = np.random.default_rng([seed, epoch]).permutation(len(self.table))
        ends = np.cumsum(self.table.tokens()[order])
        while position < len(order):
            before = ends[position - 1] if position else 0
            following = max(position + 1, int(np.searchsorted(ends, before + _WINDOW_TOKENS, side="right")))
            window = self.coder.assemble(self.table.load(order[position:following]))
            if len(window):
                yield position, window
            position = following


@dataclass(frozen=True, eq=False)
class StreamedExamples(TrainingData[Any]):
    """Examples that are tokenized while training reads the text. Their number is not known."""

    split: LargeSplit[Any]
    coder: _Coder

    def __len__(self) -> int:
        return 0

    def tokens_per_pass(self) -> None:
        """Not known."""

    def windows(self, seed: int, epoch: int, position: int = 0) -> Iterator[tuple[int, Examples[Any]]]:
        """Windows in the order of the text; a position is a number of records."""
        parts = ((first, self.coder.tokenize(part)) for first, part in ahead(self.split.parts(position)))
        items = list[Any]()
        for number, (first, texts) in enumerate(ahead(parts, _WINDOW_BLOCKS)):
            if number % _WINDOW_BLOCKS == 0:
                if items and len(window := self.coder.assemble(TextExamples(items))):
                    yield position, window
                position, items = first, []
            items += texts.items
        if items and len(window := self.coder.assemble(TextExamples(items))):
            yield position, window


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()[:24]
