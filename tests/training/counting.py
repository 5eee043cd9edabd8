"""A task as unlike translation as tasks get: a causal model of the lines of one file, scored by its loss."""

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, cast

import numpy as np
import torch
from torch import Tensor

from synthetic_attention import tasks
from synthetic_attention.data.examples import IGNORED, Examples, OnLong, pad
from synthetic_attention.data.files import fingerprint, read_lines
from synthetic_attention.data.tokenizer import Tokens, encode, train_tokenizer
from synthetic_attention.tasks.base import Evaluation, EvaluationLoop, Scores, Task, evaluate_loss

NAME = "counting"


@dataclass(frozen=True)
class Lines:
    name: str
    lines: list[str]

    @property
    def has_labels(self) -> bool:
        return True

    def __len__(self) -> int:
        return len(self.lines)

    def fingerprint(self) -> dict[str, str | int]:
        return {"sha256": fingerprint(self.lines)}


@dataclass(frozen=True)
class Blocks(Examples[Tokens]):
    blocks: list[Tokens]

    def __len__(self) -> int:
        return len(self.blocks)

    def __getitem__(self, index: int) -> Tokens:
        return self.blocks[index]

    def lengths(self) -> np.ndarray:
        return np.array([[len(block)] for block in self.blocks])


@dataclass(frozen=True)
class Counting(Task[Lines, Tokens]):
    """Every n-th line of one file is held out."""

    every: int = 5
    name: ClassVar[str] = NAME
    model_class: ClassVar[str | type] = "SynthesizerForCausalLM"
    score_labels: ClassVar[Mapping[str, str]] = {"perplexity": "perplexity"}
    metric_for_best_model: ClassVar[str] = "perplexity"
    unit: ClassVar[str] = "lines"

    def read(self, data: Path, split: str) -> Lines:
        lines, held_out = list(read_lines(data)), split != "train"
        return Lines(split, [line for i, line in enumerate(lines) if (i % self.every == 0) == held_out])

    def train_tokenizer(self, split: Lines, vocab_size: int, max_length: int) -> Any:
        return train_tokenizer(split.lines, vocab_size, max_length)

    def encode(
        self, split: Lines, tokenizer: Any, max_length: int, on_long: OnLong = "error", training: bool = False
    ) -> Blocks:
        return Blocks([np.concatenate([[1], row])[:max_length] for row in encode(tokenizer, split.lines)])

    def collate(self, examples: Sequence[Tokens], pad_token_id: int) -> dict[str, Tensor]:
        input_ids, labels = pad(examples, pad_token_id), pad(examples, IGNORED)
        labels[:, 0] = IGNORED
        return {"input_ids": input_ids, "attention_mask": (input_ids != pad_token_id).long(), "labels": labels}

    def validate(self, loop: EvaluationLoop, split: Lines, examples: Examples[Tokens], loss: float) -> Scores:
        return {"perplexity": float(np.exp(loss))}

    def evaluate(
        self, loop: EvaluationLoop, split: Lines, generation: Any = None, on_long: str = "error"
    ) -> Evaluation:
        examples = self.encode(split, loop.tokenizer, loop.max_length)
        loss = evaluate_loss(self, loop, examples)
        # The loss of all, from the losses of each by itself: nothing is counted twice, nothing is left out.
        alone = 0.0
        for example in examples.blocks:
            with torch.no_grad():
                alone += cast(Any, loop.model)(**self.collate([example], 0)).loss.item() * (len(example) - 1)
        scores: Scores = {"perplexity": float(np.exp(loss)), "loss": alone / sum(len(b) - 1 for b in examples.blocks)}
        return Evaluation(scores, len(examples), f"{loss}\n", "txt")


@contextmanager
def known() -> Iterator[None]:
    """Inside, the task is found by its name, like those of the package."""
    home = f"{tasks.__name__}.{NAME}"
    sys.modules[home] = sys.modules[__name__]
    tasks._HOMES[NAME] = (NAME, "Counting")
    try:
        yield
    finally:
        del sys.modules[home], tasks._HOMES[NAME]
