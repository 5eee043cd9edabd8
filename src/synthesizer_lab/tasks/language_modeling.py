"""Language modeling: plain text {train,valid,test…}.txt, one sentence or document per line, or running text.

The tokenizer puts `</s>` before each text and nothing after it. So the tokens of a corpus, one text after the other and
one `</s>` at the end, are running text in which `</s>` ends each line. A sentence has the `</s>` that its first token
is predicted from, and the `</s>` after it, which is predicted.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import methodcaller
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
from tokenizers import processors
from torch import Tensor
from transformers import GenerationConfig

from synthetic_attention.models import SynthesizerForCausalLM

from ..data.examples import IGNORED, Examples, NoExamplesError, OnLong, find_long, pad, padded_inputs
from ..data.files import matching_files
from ..data.source import Corpus, Records, Source, is_hub_name, text_records
from ..data.tokenizer import Tokenizer, encode
from ..errors import NoSplitError, UserError
from .base import EvaluationLoop, Scores, Task
from .generation import generate_tokens, make_generation_config


@dataclass(frozen=True, eq=False, kw_only=True)
class LanguageRows(Examples):
    """Sentences or blocks: ids, and how many at the beginning are not scored.

    Args:
        words, bytes: of the text, for scores.
    """

    words: int = 0
    bytes: int = 0

    def scored(self) -> np.ndarray:
        """(N,) the number of scored tokens in each sentence or block."""
        return self.sizes[:, 0] - self.numbers[:, 0].astype(np.int64)


@dataclass(frozen=True)
class LanguageModeling(Task):
    """Predict each token of a text from those before it; scored by perplexity.

    Args:
        mode: "sentences": each line alone, from `</s>` to `</s>`, without blank lines; or "blocks" of running text of
            the model's maximum length, in which `</s>` is the end of a line.
        train_files, valid_files, test_files: names or glob patterns of the files of a split, if they do not begin with
            its name; for a hub data set the name of the split.
        max_documents: the most texts of each split.
        column: the field of JSON lines, or the column of a hub data set.
        subset, revision: of a hub data set (hub:OWNER/NAME).
    """

    mode: Literal["sentences", "blocks"] = "sentences"
    train_files: str | list[str] | None = None
    valid_files: str | list[str] | None = None
    test_files: str | list[str] | None = None
    max_documents: int | None = None
    column: str = "text"
    subset: str | None = None
    revision: str | None = None
    name: ClassVar[str] = "language-modeling"
    score_labels: ClassVar[Mapping[str, str]] = {
        "word_perplexity": "perplexity per word",
        "perplexity": "perplexity",
        "bits_per_byte": "bits per byte",
    }
    model_class: ClassVar[type] = SynthesizerForCausalLM
    unit: ClassVar[str] = "sequences"

    def records(self, data: Path, split: str) -> Records:
        """The texts of a split: lines of files, or the column of a hub data set."""
        patterns = getattr(self, f"{split}_files", None)
        if is_hub_name(data):
            if isinstance(patterns, list):
                raise UserError(f"got {split}_files={patterns}; expected the name of one split of {data}")
            source = Source.of(data, patterns or split, (), self.subset, self.revision)
        elif patterns:
            # Such files may begin alike: wiki.train.tokens, wiki.valid.tokens.
            source = Source(split, tuple(matching_files(data, patterns)))
        else:
            try:
                source = Source.of(data, split, (".txt",), several=True)
            except NoSplitError as error:
                raise NoSplitError(f"{error}; for others train with --set train_files=… --set valid_files=…") from None
        name, is_blocks = split if source.hub else source.split, self.mode == "blocks"
        clean = methodcaller("removesuffix", "\n")
        return text_records(source, name, (self.column,), "column", clean, is_blocks, most=self.max_documents)

    def adapt_tokenizer(self, tokenizer: Tokenizer) -> Tokenizer:
        """Make sequences begin with `</s>` and end with the text."""
        end = tokenizer.eos_token
        tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{end} $A", special_tokens=[(end, tokenizer.eos_token_id)]
        )
        tokenizer.bos_token = end
        # For batches of prompts.
        tokenizer.padding_side = tokenizer.init_kwargs["padding_side"] = "left"
        return tokenizer

    def config_changes(self, split: Corpus, tokenizer: Tokenizer) -> dict[str, Any]:
        """The token that begins a text is `</s>`."""
        start = dict.fromkeys(("bos_token_id", "decoder_start_token_id"), tokenizer.bos_token_id)
        return {**super().config_changes(split, tokenizer), **start}

    def encode(
        self, split: Corpus, tokenizer: Tokenizer, max_length: int, on_long: OnLong = "error", training: bool = False
    ) -> LanguageRows:
        """Sentences or blocks.

        A block that is scored begins with the second half of the previous one as context, one of training with a token.
        """
        rows, end = encode(tokenizer, split.texts), np.array([tokenizer.eos_token_id], dtype=np.int32)
        if self.mode == "blocks":
            stream, context = np.concatenate([*rows, end]), 1 if training else max_length // 2
            starts = range(0, max(1, len(stream) - context), max_length - context)
            items = [(stream[start : start + max_length], context if start else 1) for start in starts]
            words, size = (0, 0) if training else count_text(split.texts)
            return LanguageRows.of(items, words=words, bytes=size)
        lengths = [len(ids) + 1 for ids in rows]
        over = find_long({f"{split.name} sentences": lengths}, max_length, on_long, split.first, "sentences")
        kept = [row for row in range(len(rows)) if on_long == "truncate" or not over[row]]
        if not kept:
            raise NoExamplesError(f"{split.name}: no sentence is left of {len(split)}")
        items = [(np.concatenate([rows[row][: max_length - 1], end]), 1) for row in kept]
        texts = ((split.texts[row], over[row]) for row in kept if not training)
        words, size = count_text(_cut(text, tokenizer, max_length) if long else text for text, long in texts)
        truncated = int(over.sum()) if on_long == "truncate" else 0
        return LanguageRows.of(items, dropped=len(split) - len(kept), truncated=truncated, words=words, bytes=size)

    def collate(self, examples: Sequence[tuple[Any, ...]], pad_token_id: int) -> dict[str, Tensor]:
        """input_ids, attention_mask and labels (B, T)."""
        ids = [row for row, _ in examples]
        labels = [np.where(np.arange(len(row)) < context, IGNORED, row) for row, context in examples]
        return {**padded_inputs(ids, pad_token_id), "labels": pad(labels, IGNORED)}

    def validate(self, loop: EvaluationLoop, split: Corpus, examples: LanguageRows, loss: float) -> Scores:
        """Perplexities per token and per word, bits per byte, and the counts behind them."""
        counts = {"tokens": int(examples.scored().sum()), "words": examples.words, "bytes": examples.bytes}
        return {**text_scores(loss, counts["tokens"], examples.words, examples.bytes), **counts}

    def generation_config(self, options: Mapping[str, Any]) -> GenerationConfig:
        """Greedy search, updated by `options`; with `do_sample`, sampling."""
        return make_generation_config(options, num_beams=1, length_penalty=1.0)

    def generate(self, loop: EvaluationLoop, lines: Sequence[str], first_line: int = 1) -> tuple[list[str], int]:
        """The continuation of each line, up to its end. Truncation keeps the end: half of the maximum length."""
        prompts, tail = encode(loop.tokenizer, lines), max(1, loop.max_length // 2 - 1)
        over = find_long({loop.inputs: [*map(len, prompts)]}, loop.max_length - 1, loop.on_long, first=first_line)
        for row in np.flatnonzero(over).tolist():
            prompts[row] = np.append(prompts[row][:1], prompts[row][-tail:])
        results = generate_tokens(loop, prompts, loop.generation or self.generation_config({}))
        # A space at the beginning of a continuation is part of the text.
        texts = loop.tokenizer.backend_tokenizer.decode_batch(results)
        return [re.sub(r"[\r\n]+", " ", text) for text in texts], int(over.sum())


def _cut(text: str, tokenizer: Tokenizer, max_length: int) -> str:
    """The text of a truncated example. It is cut itself: decoded tokens may end within a character."""
    ends = [end for _, end in tokenizer.backend_tokenizer.encode(text, add_special_tokens=False).offsets]
    # Both </s> are no part of it.
    return text[: ends[max_length - 3]] if max_length > 2 else ""


def text_scores(loss: float, tokens: int, words: int, size: int) -> Scores:
    """The scores of a text of `size` bytes from the mean of its loss, −ln p(token | tokens before), line ends included.

    nats = loss · tokens
    perplexity       exp(loss)                       not comparable between vocabularies
    word_perplexity  exp(nats / words)               words between whitespace, plus the line ends
    bits_per_byte    nats / (ln 2 · bytes)           bytes of the text in UTF-8, plus the line ends
    """
    nats = loss * tokens
    return {
        "perplexity": safe_exp(loss),
        "word_perplexity": safe_exp(nats / words),
        "bits_per_byte": nats / (math.log(2) * size),
    }


def safe_exp(nats: float) -> float | str:
    """exp, or a text: JSON has no infinity, and a model that has not learned yet must not stop training."""
    return math.exp(nats) if nats < 700 else "not a finite number"


def count_text(lines: Iterable[str]) -> tuple[int, int]:
    """Words and bytes of lines; each line end is a word, as in LM1B, and a byte."""
    words = size = 0
    for line in lines:
        words += len(line.split()) + 1
        size += len(line.encode()) + 1
    return words, size
