"""Training text that is not held in memory: tokenized once, part by part, into a memory-mapped file."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm  # type: ignore[import-untyped]

from ..data.examples import Examples, NoExamplesError, OnLong
from ..data.files import read_cached
from ..data.source import Records, Split
from ..data.tokenizer import Tokenizer, train_tokenizer
from ..errors import UserError
from .base import Task

# Text of more characters is not held in memory.
IN_MEMORY = 5 * 10**7
_COUNTS = ("dropped", "truncated", "skipped")
# Receives lines for the user.
Report = Callable[[str], object]


def new_tokenizer(
    task: Task,
    train: Split | Records,
    vocab_size: int,
    max_length: int,
    characters: int = IN_MEMORY,
    report: Report = lambda line: None,
) -> Tokenizer:
    """A tokenizer trained on a split, or on so many `characters` of large text, then from the cache if it is there.

    The vocabulary of a task with an option `sentinels` ends with so many.
    """

    def trained(texts: list[str]) -> Tokenizer:
        return task.adapt_tokenizer(train_tokenizer(texts, vocab_size, max_length, getattr(task, "sentinels", 0)))

    if isinstance(train, Split):
        return trained(train.all_texts())

    def write(folder: Path) -> None:
        trained(train.sample(characters)).save_pretrained(folder)

    total = int(train.summary["characters"])
    size = f"{min(characters, total):,} of {total:,} characters"
    # Not in `write`, which another process may call.
    report(f"{train.name}: a tokenizer trained on {size} (--set tokenizer_characters=…)")
    return read_cached("tokenizer", [train.key, characters, vocab_size, max_length], write, Tokenizer.from_pretrained)


def encode_large(
    task: Task, records: Records, tokenizer: Tokenizer, max_length: int, on_long: OnLong, report: Report
) -> Examples:
    """The examples of large text, for training, from the cache if it was tokenized before."""

    def encoded() -> Iterator[Examples]:
        for part, _ in records.parts():
            try:
                yield task.encode(part, tokenizer, max_length, on_long, training=True)
            except NoExamplesError:
                yield Examples.of([], dropped=len(part))

    def write(folder: Path) -> None:
        sizes, numbers, counts = list[np.ndarray](), list[np.ndarray](), np.zeros(len(_COUNTS), dtype=np.int64)
        with (
            (folder / "tokens").open("wb") as file,
            tqdm(desc=f"tokenizing {records.name}", total=records.summary["records"], disable=None, leave=False) as bar,
        ):
            for part in encoded():
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
    size = f"{records.source.bytes() / 1e6:,.0f} MB of text"
    report(f"{records.name}: {size}, tokenized once, in the cache ($XDG_CACHE_HOME, or ~/.cache)")
    found = read_cached("tokens", [records.key, settings, max_length, on_long], write, read)
    # What the examples of a task have besides their tokens.
    examples = replace(next(part for part in encoded() if len(part.sizes)), rows=(), **found)
    report(f"{records.name}: {len(examples):,} {task.unit}, {len(examples.tokens):,} tokens")
    return examples
