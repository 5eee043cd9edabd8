"""Pretraining by span corruption (T5): plain text {train,valid,test…}.txt, a document a line, packed and corrupted."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from .base import Evaluation, Scores, Task
from .batching import Share
from .errors import UserError
from .examples import IGNORED, Examples, Long, Pair, pair_collate
from .readers.files import split_files
from .readers.lines import numbered_lines
from .span_noise import SpanLengths, corrupt, noise_mask, pack, span_lengths
from .text import fingerprint
from .tokenizer import SPECIAL_TOKENS, encode, train_tokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerFast

__all__ = ["Documents", "SpanCorruption", "SpanExamples"]


@dataclass(frozen=True)
class Documents:
    """A split as text, a document a line; blank lines are not there."""

    name: str
    lines: list[str]

    def __len__(self) -> int:
        return len(self.lines)

    def fingerprint(self) -> dict[str, str | int]:
        """What tells whether two runs read the same text."""
        return {"split": self.name, "documents": len(self.lines), "sha256": fingerprint(self.lines)}


@dataclass
class _Noise:
    """The seed of the noise of a pass."""

    seed: int = 0


@dataclass(frozen=True)
class SpanExamples(Examples[Pair]):
    """Pieces of running text, corrupted when they are asked for: with other noise in every pass of training.

    Args:
        pieces: (N, raw) ids.
        spans: the lengths of every example.
        density, mean_span_length: of the noise.
        first_sentinel: the id of sentinel 0.
        eos_token_id: `</s>`.
    """

    pieces: np.ndarray
    spans: SpanLengths
    density: float
    mean_span_length: float
    first_sentinel: int
    eos_token_id: int
    noise: _Noise = field(default_factory=_Noise)

    def __len__(self) -> int:
        return len(self.pieces)

    def __getitem__(self, index: int) -> Pair:
        rng = np.random.default_rng([self.noise.seed, index])
        mask = noise_mask(self.spans.raw, rng, self.density, self.mean_span_length)
        inputs, targets = corrupt(self.pieces[index], mask, self.first_sentinel)
        return np.append(inputs, np.int32(self.eos_token_id)), np.append(targets, np.int32(self.eos_token_id))

    def lengths(self) -> np.ndarray:
        """(N, 2): input and target tokens, the same for all."""
        return np.tile([self.spans.inputs, self.spans.targets], (len(self), 1))

    def draw(self, rng: np.random.Generator) -> np.ndarray:
        """Each example once, with new noise."""
        self.noise.seed = int(rng.integers(2**62))
        return super().draw(rng)


@dataclass(frozen=True)
class SpanCorruption(Task[Documents, Pair]):
    """Write the spans that were cut out of a text. Validated with noise that is the same for all runs.

    Args:
        density: the share of tokens that are cut out.
        mean_span_length: tokens of a span, on average.
        sentinels: how many the vocabulary has; T5 has 100.
        inputs_length: tokens of an input, all of which are used; by default the model's maximum.
    """

    density: float = 0.15
    mean_span_length: float = 3.0
    sentinels: int = 100
    inputs_length: int | None = None
    name: ClassVar[str] = "span-corruption"
    score_labels: ClassVar[Mapping[str, str]] = {"loss": "loss", "perplexity": "perplexity"}
    model_class: ClassVar[str] = "SynthesizerForConditionalGeneration"
    tokens_name: ClassVar[str] = "input + target tokens"

    def __post_init__(self) -> None:
        if self.sentinels < 1:
            raise UserError(f"got sentinels={self.sentinels}; expected at least 1")
        try:
            span_lengths(self.inputs_length or 3, self.density, self.mean_span_length)
        except ValueError as error:
            raise UserError(str(error)) from None

    def read(self, data: Path, split: str) -> Documents:
        """Read the files of a split, packed or not.

        Raises:
            UserError: there is none, or one cannot be read.
        """
        paths = split_files(data, split, (".txt",))
        lines = [line for path in paths for _, line in numbered_lines(path)]
        return Documents(paths[0].name.split(".")[0] if len(paths) == 1 else split, lines)

    def tokenizer(self, split: Documents, vocab_size: int, max_length: int) -> PreTrainedTokenizerFast:
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
        tokenizer = train_tokenizer(split.lines, vocab_size - self.sentinels, max_length)
        tokenizer.backend_tokenizer.add_special_tokens([f"<extra_id_{i}>" for i in reversed(range(self.sentinels))])
        return tokenizer

    def examples(
        self,
        split: Documents,
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
        spans = span_lengths(self.inputs_length or maximum, self.density, self.mean_span_length)
        if max(spans.inputs, spans.targets) > maximum:
            raise UserError(
                f"got inputs of {spans.inputs} and targets of {spans.targets} tokens; expected at most {maximum}, "
                "max_position_embeddings; pass a smaller --set inputs_length=…"
            )
        if spans.spans > self.sentinels:
            raise UserError(
                f"inputs of {spans.inputs} tokens have {spans.spans} spans, and the vocabulary {self.sentinels} "
                f"sentinels; pass --set sentinels={spans.spans}, or shorter inputs"
            )
        tokens = np.concatenate(encode(tokenizer, split.lines))
        if len(tokens) < spans.raw:
            raise UserError(f"{split.name}: {len(tokens)} tokens; expected at least {spans.raw}, those of one example")
        first_sentinel, eos_token_id = len(tokenizer) - 1, tokenizer.eos_token_id
        pieces = pack(tokens, spans.raw)
        return SpanExamples(pieces, spans, self.density, self.mean_span_length, first_sentinel, eos_token_id)

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
        split: Documents,
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
        split: Documents,
        search: Any,
        truncate: bool = False,
    ) -> Evaluation:
        """Loss and perplexity of the targets; the file of predictions has the loss of each example."""
        examples = self.examples(split, tokenizer, model.config.max_position_embeddings)
        losses = []
        model.eval()
        for example in (examples[index] for index in range(len(examples))):
            batch = self.collate([example], model.config.pad_token_id)
            inputs = {name: value.to(model.device) for name, value in batch.items()}
            losses.append(model(**inputs, num_items_in_batch=examples.spans.targets).loss.item())
        loss = sum(losses) / len(losses)
        lines = [json.dumps({"id": index, "loss": each}) + "\n" for index, each in enumerate(losses)]
        return Evaluation(
            {"loss": loss, "perplexity": math.exp(loss)},
            examples=len(examples),
            predictions="".join(lines),
            suffix="jsonl",
            answered=len(examples),
        )
