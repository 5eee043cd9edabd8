"""Training text that is not held in memory: tokenized once, part by part, into a memory-mapped file."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm  # type: ignore[import-untyped]

from ..data.examples import Examples, NoExamplesError, OnLong
from ..data.files import fingerprints, read_cached
from ..data.source import Records, Split
from ..data.tokenizer import Tokenizer
from ..errors import UserError
from .base import Task

# Text of more characters is not held in memory.
IN_MEMORY = 5 * 10**7
# The characters of a part, which are tokenized at once.
_BLOCK = 2**20
# Raised when the cache is written in another form.
_VERSION = 5
_COUNTS = ("dropped", "truncated", "skipped")
Report = Callable[[str], object]


@dataclass(frozen=True, eq=False)
class LargeSplit(Split):
    """A training split that is read in parts, each of which is an ordinary split.

    Args:
        sample_characters: a new tokenizer is trained on about so many characters.
    """

    task: Task
    records: Records
    sample_characters: int

    def __len__(self) -> int:
        return int(self.summary["records"])

    def fingerprint(self) -> dict[str, str | int]:
        """Digests of the text, the same as of a split in memory."""
        return dict(self.summary["fingerprint"])

    def parts(self) -> Iterator[Split]:
        """Splits of neighboring records."""
        return (part for part, _ in self.records.parts(_BLOCK))

    def head(self) -> Split:
        """The first part."""
        for part in self.parts():
            return part
        raise UserError(f"{self.records.source}: there is no text; expected at least one record")

    def columns(self) -> Mapping[str, Iterable[str]]:
        """Those of the first part."""
        return self.head().columns()

    def all_texts(self) -> list[str]:
        """A sample for a new tokenizer, spread over the whole."""
        texts, share = list[str](), min(1.0, self.sample_characters / max(1, self.summary["characters"]))
        for number, (part, _) in enumerate(self.records.parts(_BLOCK // 16)):
            if math.floor((number + 1) * share) > math.floor(number * share):
                texts += part.all_texts()
        return texts

    @cached_property
    def key(self) -> str:
        """Identifies the text and what the task makes of it."""
        return _digest([_VERSION, self.task.name, asdict(self.task), self.fingerprint()])

    @cached_property
    def summary(self) -> dict[str, Any]:
        """What one pass over the text tells about it."""
        totals = {"records": 0, "characters": 0}

        def columns() -> Iterator[Mapping[str, Iterable[str]]]:
            for part, characters in self.records.parts(_BLOCK):
                totals["records"] += len(part)
                totals["characters"] += characters
                yield part.columns()

        digests, counted = fingerprints(columns()), self.records.split([]).counted
        return {**totals, "fingerprint": {"split": self.name, counted: totals["records"], **digests}}


def new_tokenizer(
    task: Task, split: Split, vocab_size: int, max_length: int, report: Report = lambda line: None
) -> Tokenizer:
    """A tokenizer trained on a split, or on a sample of large text, from the cache if it is the same sample."""
    if not isinstance(split, LargeSplit):
        return task.train_tokenizer(split, vocab_size, max_length)

    def write(folder: Path) -> None:
        task.train_tokenizer(split, vocab_size, max_length).save_pretrained(folder)

    total = int(split.summary["characters"])
    size = f"{min(split.sample_characters, total):,} of {total:,} characters"
    # Not in `write`, which another process may call.
    report(f"{split.name}: a tokenizer trained on {size} (--set tokenizer_characters=…)")
    name = _digest([split.key, split.sample_characters, vocab_size, max_length])
    return read_cached(f"tokenizer-{name}", write, Tokenizer.from_pretrained)


def encode_large(split: LargeSplit, tokenizer: Tokenizer, max_length: int, on_long: OnLong, report: Report) -> Examples:
    """The examples of large text, for training, from the cache if it was tokenized before."""

    def encoded(part: Split) -> Examples:
        try:
            return split.task.encode(part, tokenizer, max_length, on_long, training=True)
        except NoExamplesError:
            return Examples.of([], dropped=len(part))

    def write(folder: Path) -> None:
        sizes, numbers, counts = list[np.ndarray](), list[np.ndarray](), np.zeros(len(_COUNTS), dtype=np.int64)
        with (
            (folder / "tokens").open("wb") as file,
            tqdm(desc=f"tokenizing {split.name}", total=len(split), disable=None, leave=False) as bar,
        ):
            for part in map(encoded, split.parts()):
                counts += [getattr(part, name) for name in _COUNTS]
                if len(part.sizes):
                    part.tokens.tofile(file)
                    sizes.append(part.sizes)
                    numbers.append(part.numbers)
                bar.update(len(part.sizes))
        if not sizes:
            raise UserError("no example is left of the training data")
        np.savez(folder / "rows.npz", sizes=np.concatenate(sizes), numbers=np.concatenate(numbers), counts=counts)

    def read(folder: Path) -> dict[str, Any]:
        with np.load(folder / "rows.npz") as rows:
            sizes, numbers, counts = (rows[name] for name in ("sizes", "numbers", "counts"))
        # Copy on write: PyTorch warns of arrays that cannot be written. Slices of a plain array are faster.
        tokens = np.asarray(np.memmap(folder / "tokens", np.int32, "c", shape=int(sizes.sum())))
        found = dict(zip(_COUNTS, counts.tolist(), strict=True))
        return {"tokens": tokens, "sizes": sizes, "numbers": numbers, **found}

    settings = json.loads(tokenizer.backend_tokenizer.to_str())
    # `encode` sets these two.
    del settings["truncation"], settings["padding"]
    name = f"tokens-{_digest([split.key, settings, max_length, on_long])}"
    size = f"{split.records.source.bytes() / 1e6:,.0f} MB of text"
    report(f"{split.name}: {size}, tokenized once, in the cache ($XDG_CACHE_HOME, or ~/.cache)")
    found = read_cached(name, write, read)
    # What the examples of a task have besides their tokens.
    like = next(part for part in map(encoded, split.parts()) if len(part.sizes))
    examples = replace(like, rows=(), **found)
    report(f"{split.name}: {len(examples):,} {split.task.unit}, {len(examples.tokens):,} tokens")
    return examples


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()[:24]
