"""Language modeling: plain text {train,valid,test…}.txt, one sentence or document per line, or running text.

The tokenizer puts `</s>` before each text and nothing after it. So the tokens of a corpus, one text after the other and
one `</s>` at the end, are running text in which `</s>` ends each line. A sentence is a slice of them, with the `</s>`
that its first token is predicted from, and the `</s>` after it, which is predicted.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, cast

import numpy as np
import torch
from tokenizers import processors
from torch import Tensor

from ..data.corpus import Corpus, SelectedTexts, TextFiles, TokenStore, first_texts, hub_texts, read_corpus
from ..data.examples import Examples, OnLong, pad, token_batches
from ..data.files import corpus_files
from ..data.hub import HubDataset, is_hub_name
from ..data.tokenizer import (
    Tokens,
    encode,
    known_words,
    normalized,
    spelling,
    train_tokenizer,
    train_word_tokenizer,
)
from ..errors import UserError
from ..metrics.language_modeling import TextLoss, count_text, finite
from ..models.loss import IGNORED
from .base import Evaluation, EvaluationLoop, Scores, Task, check_on_long
from .generation import generate_tokens, make_generation_config, stream_text, suppressed_tokens, word_gap
from .seq2seq import json_lines

if TYPE_CHECKING:
    from transformers import GenerationConfig
    from transformers import PreTrainedTokenizerFast as Tokenizer

# The part of a streamed corpus that the tokenizer is trained on.
_VOCABULARY_CHARACTERS = 2 * 10**8


class Row(NamedTuple):
    """A row of a batch, each part (n,): labels are −100 where nothing is scored; segments number packed sentences."""

    ids: Tokens
    labels: Tokens
    segments: Tokens | None = None


@dataclass(frozen=True)
class LanguageRows(Examples[Row]):
    """Slices of the running text, one or several (packed) per row.

    Args:
        end: the id of `</s>`, which follows the last text.
        counts: of the text, (N, 4) by slice, (1, 4) for all, (0, 4) if it is not scored; see `count_texts`.
        starts, sizes: (N,) the first token of each slice, and its number of tokens.
        context: (N,) the number of tokens at the beginning of a slice that are not scored, at least one.
        closed: whether each slice ends with `</s>`: sentences, truncated or not.
        groups: the slices of each row if they are packed; the model keeps them apart.
    """

    store: TokenStore
    end: int
    counts: np.ndarray
    starts: np.ndarray
    sizes: np.ndarray
    context: np.ndarray
    closed: bool
    groups: list[list[int]] | None = None

    @property
    def total(self) -> TextLoss:
        """The counts of all rows, without tokens and loss."""
        words, size, unknown, nats = self.counts.sum(axis=0).tolist()
        return TextLoss(0.0, 0, int(words), int(size), nats, int(unknown))

    def packed(self, max_length: int) -> LanguageRows:
        """Rows of several slices of similar length. Which of them share a row is random, with a fixed seed."""
        shuffled = np.random.default_rng(0).permutation(len(self.sizes))
        order = shuffled[np.argsort(self.sizes[shuffled], kind="stable")]
        return replace(self, groups=token_batches(self.sizes, order, max_length))

    def __len__(self) -> int:
        return len(self.sizes if self.groups is None else self.groups)

    def __getitem__(self, index: int) -> Row:
        if self.groups is None:
            return Row(*self._slice(index))
        ids, labels = zip(*map(self._slice, self.groups[index]), strict=True)
        segments = np.repeat(np.arange(1, len(ids) + 1, dtype=np.int32), [len(part) for part in ids])
        return Row(np.concatenate(ids), np.concatenate(labels), segments)

    def _slice(self, index: int) -> tuple[Tokens, Tokens]:
        start, size = self.starts[index], self.sizes[index]
        ids = self.store.tokens[start : start + size]
        if len(ids) < size:
            ids = np.append(ids, np.int32(self.end))
        if self.closed:
            ids[-1] = self.end
        labels = ids.copy()
        labels[: self.context[index]] = IGNORED
        return ids, labels

    def _by_row(self, values: np.ndarray) -> np.ndarray:
        return values if self.groups is None else np.array([values[group].sum() for group in self.groups])

    def lengths(self) -> np.ndarray:
        """(N, 1) tokens of each row."""
        return self._by_row(self.sizes)[:, None]

    def scored(self) -> np.ndarray:
        """(N,) the number of scored tokens in each row."""
        return self._by_row(self.sizes - self.context)


@dataclass(frozen=True)
class LanguageModeling(Task[Corpus, Row]):
    """Predict each token of a text from those before it; scored by perplexity.

    Args:
        mode: "sentences": each line alone, from `</s>` to `</s>`, without blank lines; or "blocks" of running text, in
            which `</s>` is the end of a line.
        packed: train on rows of several sentences, none of which attends to another, instead of padded ones.
        block: tokens of a block, by default the model's maximum length.
        overlap: tokens that a scored block shares with the previous one as context; by default half of the block. In
            training it is one.
        vocabulary: "bpe" (byte-level) or "words" (separated by whitespace).
        train_files, valid_files, test_files: names or glob patterns of the files of a split, if they do not begin with
            its name; for a hub data set the name of the split.
        stream: keep tokens in a memory-mapped file in the user's cache, for corpora larger than the memory.
        max_documents: the most texts of each split.
        column, subset, revision: of a hub data set (hub:OWNER/NAME).
    """

    mode: Literal["sentences", "blocks"] = "sentences"
    packed: bool = False
    block: int | None = None
    overlap: int | None = None
    vocabulary: Literal["bpe", "words"] = "bpe"
    train_files: str | list[str] | None = None
    valid_files: str | list[str] | None = None
    test_files: str | list[str] | None = None
    stream: bool = False
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
    model_class: ClassVar[str | type] = "SynthesizerForCausalLM"
    unit: ClassVar[str] = "sequences"

    def __post_init__(self) -> None:
        if self.mode == "blocks" and self.packed:
            raise UserError("got packed=true with mode=blocks; only sentences are packed: blocks are full")
        if self.mode == "sentences" and (self.block, self.overlap) != (None, None):
            raise UserError("got block or overlap with mode=sentences; only mode=blocks has them")
        if self.max_documents is not None and self.max_documents < 1:
            raise UserError(f"got max_documents={self.max_documents}; expected at least 1")

    def read(self, data: Path, split: str) -> Corpus:
        """The texts of a split: lines of files, or the column of a hub data set."""
        patterns = {"train": self.train_files, "valid": self.valid_files, "test": self.test_files}.get(split)
        name = split
        texts: Iterable[str]
        if is_hub_name(data):
            if isinstance(patterns, list):
                raise UserError(f"got {split}_files={patterns}; expected the name of one split of {data}")
            source = HubDataset.of(data, self.subset, self.revision)
            texts = hub_texts(source, patterns or split, self.column, self.stream, self.max_documents)
        else:
            paths = corpus_files(data, split, patterns)
            # Files given by pattern may begin alike: wiki.train.tokens, wiki.valid.tokens.
            name = paths[0].name.split(".")[0] if len(paths) == 1 and patterns is None else split
            texts = TextFiles(paths)
        return read_corpus(name, SelectedTexts(texts, self._keeps, self._normalized, self.max_documents), self.stream)

    def _keeps(self, text: str) -> bool:
        return self.mode == "blocks" or bool(text.strip())

    def _normalized(self, text: str) -> str:
        return normalized(text) if self.vocabulary == "words" else text

    def train_tokenizer(self, split: Corpus, vocab_size: int, max_length: int) -> Tokenizer:
        """A tokenizer whose sequences begin with `</s>` and end with the text."""
        texts = first_texts(split.texts, _VOCABULARY_CHARACTERS) if self.stream else split.texts
        train = train_word_tokenizer if self.vocabulary == "words" else train_tokenizer
        tokenizer = train(texts, vocab_size, max_length)
        end = tokenizer.eos_token
        tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{end} $A", special_tokens=[(end, tokenizer.eos_token_id)]
        )
        tokenizer.bos_token = end
        return tokenizer

    def config_changes(self, split: Corpus, tokenizer: Tokenizer) -> dict[str, Any]:
        """The token that begins a text is `</s>`."""
        return {**super().config_changes(split, tokenizer), "bos_token_id": tokenizer.bos_token_id}

    def encode(
        self, split: Corpus, tokenizer: Tokenizer, max_length: int, on_long: OnLong = "error", training: bool = False
    ) -> LanguageRows:
        """Sentences, in training packed if the task says so, or blocks."""
        end, words = tokenizer.eos_token_id, self.vocabulary == "words"
        store = encode_corpus(split, tokenizer, self.stream)
        if self.mode == "blocks":
            block, overlap = self._block_size(max_length)
            overlap = 1 if training else overlap
            length = len(store.tokens) + 1
            starts = np.arange(max(1, -(-(length - overlap) // (block - overlap)))) * (block - overlap)
            context = np.where(starts == 0, 1, overlap)
            counts = count_texts([] if training else split.texts, tokenizer, words).sum(axis=0)[None]
            return LanguageRows(store, end, counts, starts, np.minimum(length - starts, block), context, closed=False)
        lengths = store.lengths() + 1
        over = lengths > max_length
        if over.any() and on_long == "error":
            raise UserError(
                f"{split.name}: {over.sum()} of {len(store)} sentences are longer than the maximum of {max_length} "
                f"tokens (the first is sentence {over.argmax() + 1}, the longest has {lengths.max()}); pass "
                "--on-long truncate, or in training --on-long drop"
            )
        texts = np.flatnonzero(~over) if on_long == "drop" else np.arange(len(store))
        if not len(texts):
            raise UserError(f"{split.name}: no sentence is left of {len(store)}")
        kept = [] if training else _kept_texts(split.texts, store, texts, max_length, tokenizer)
        rows = LanguageRows(
            store,
            end,
            count_texts(kept, tokenizer, words),
            store.offsets[texts],
            np.minimum(lengths[texts], max_length),
            np.ones(len(texts), dtype=np.int64),
            closed=True,
            dropped=len(store) - len(texts),
            truncated=int(over.sum()) if on_long == "truncate" else 0,
        )
        return rows.packed(max_length) if self.packed and training else rows

    def _block_size(self, max_length: int) -> tuple[int, int]:
        """Tokens of a block and of its overlap."""
        block = max_length if self.block is None else self.block
        overlap = block // 2 if self.overlap is None else self.overlap
        if not 2 <= block <= max_length:
            raise UserError(f"got block={block}; expected 2 … {max_length}, max_position_embeddings")
        if not 1 <= overlap < block:
            raise UserError(f"got overlap={overlap} with blocks of {block} tokens; expected 1 … {block - 1}")
        return block, overlap

    def collate(self, examples: Sequence[Row], pad_token_id: int) -> dict[str, Tensor]:
        """input_ids and labels (B, T), and attention_mask, or segment_ids for packed rows."""
        batch = {
            "input_ids": pad([row.ids for row in examples], pad_token_id),
            "labels": pad([row.labels for row in examples], IGNORED),
        }
        segments = [row.segments for row in examples if row.segments is not None]
        if segments:
            return {**batch, "segment_ids": pad(segments, 0)}
        lengths = torch.tensor([len(row.ids) for row in examples])
        return {**batch, "attention_mask": (torch.arange(batch["input_ids"].shape[1]) < lengths[:, None]).long()}

    def validate(self, loop: EvaluationLoop, split: Corpus, examples: Examples[Row], loss: float) -> Scores:
        """Perplexities per token and per word, and bits per byte."""
        assert isinstance(examples, LanguageRows)
        tokens = int(examples.scored().sum())
        scores = finite(replace(examples.total, nats=loss * tokens, tokens=tokens).scores())
        return {name: score for name, score in scores.items() if name != "loss"}

    def evaluate(
        self, loop: EvaluationLoop, split: Corpus, generation: GenerationConfig | None = None, on_long: OnLong = "error"
    ) -> Evaluation:
        """Loss, perplexities and the counts behind them; the predictions file has the loss of each row."""
        check_on_long(self, on_long)
        examples = self.encode(split, loop.tokenizer, loop.max_length, on_long)
        lengths = examples.lengths()[:, 0]

        def step(rows: list[int]) -> list[float]:
            batch = loop.batch(self, examples, rows)
            losses = cast(Any, loop.model).token_losses(batch["input_ids"], batch["attention_mask"])
            return losses.double().masked_fill(batch["labels"] == IGNORED, 0).sum(dim=1).tolist()

        batches = token_batches(lengths, np.argsort(lengths, kind="stable"), loop.batch_tokens)
        nats, scored = np.array(loop.run_each(lengths, step, batches)), examples.scored()
        total = replace(examples.total, nats=float(nats.sum()), tokens=int(scored.sum()))
        rows: list[dict[str, Any]] = [
            {"id": number, "tokens": tokens, "nats": loss}
            for number, (tokens, loss) in enumerate(zip(scored.tolist(), nats.tolist(), strict=True))
        ]
        if self.mode == "sentences":
            for row, (words, size, unknown, spelled) in zip(rows, examples.counts.tolist(), strict=True):
                row.update(words=int(words), bytes=int(size), unknown_words=int(unknown), spelling_nats=spelled)
        return Evaluation(
            {**finite(total.scores()), "tokens": total.tokens, "words": total.words, "bytes": total.bytes},
            examples=len(examples),
            predictions=json_lines(rows),
            suffix="jsonl",
            answered=len(examples),
            truncated=examples.truncated,
        )

    def generation_config(self, options: Mapping[str, Any]) -> GenerationConfig:
        """Greedy search, updated by `options`; with `do_sample`, sampling."""
        return make_generation_config(options, num_beams=1, length_penalty=1.0)

    def generate(
        self,
        loop: EvaluationLoop,
        lines: Sequence[str],
        generation: GenerationConfig | None = None,
        on_long: OnLong = "error",
        where: str = "input",
        first_line: int = 1,
    ) -> tuple[list[str], int]:
        """The continuation of each line, up to its end. Truncation keeps the end: half of the maximum length."""
        check_on_long(self, on_long)
        tokenizer, prompts = loop.tokenizer, encode(loop.tokenizer, [self._normalized(line) for line in lines])
        over = _truncate_prompts(prompts, loop.max_length) if on_long == "truncate" else 0
        for number, prompt in enumerate(prompts, start=first_line):
            _check_room(len(prompt), loop.max_length, f"{where}, line {number},", "pass --on-long truncate")
        generation = generation or self.generation_config({})
        results = generate_tokens(loop, prompts, generation, suppress_tokens=suppressed_tokens(tokenizer))
        # A space at the beginning of a continuation is part of the text.
        texts = [re.sub(r"[\r\n]+", " ", text) for text in tokenizer.backend_tokenizer.decode_batch(results)]
        return [text and word_gap(tokenizer, ids) + text for text, ids in zip(texts, prompts, strict=True)], over

    def stream_continuation(
        self, loop: EvaluationLoop, prompt: str, generation: GenerationConfig, write: Callable[[str], object]
    ) -> None:
        """Write the continuation of a prompt: to the end of the sentence, or line after line of running text."""
        many_lines = self.mode == "blocks"
        lines = prompt.split("\n") if many_lines else [prompt]
        ids = np.concatenate(encode(loop.tokenizer, [self._normalized(line) for line in lines]))
        _check_room(len(ids), loop.max_length, "the prompt", "give a shorter one")
        stream_text(loop, ids, generation, write, many_lines)


def encode_corpus(split: Corpus, tokenizer: Tokenizer, stream: bool) -> TokenStore:
    """The tokens of a corpus, in memory, or memory-mapped with `stream`."""
    if stream:
        return TokenStore.cached(split.texts, tokenizer, split.sha256)
    return TokenStore.in_memory(split.texts, tokenizer)


def count_texts(texts: Iterable[str], tokenizer: Tokenizer, words: bool) -> np.ndarray:
    """(texts, 4) words, bytes, unknown words, and the nats to spell these. The end of a text is a word and a byte.

    Only a vocabulary of `words` may lack some.
    """
    known = known_words(tokenizer) if words else frozenset[str]()
    spelled = spelling(tokenizer) if words else None
    rows = []
    for text in texts:
        unknown = [word for word in text.split() if word not in known] if spelled else []
        rows.append([*count_text([text]), len(unknown), spelled.cost(unknown) if spelled else 0.0])
    return np.array(rows, dtype=np.float64).reshape(-1, 4)


def _kept_texts(
    texts: Iterable[str], store: TokenStore, kept: np.ndarray, max_length: int, tokenizer: Tokenizer
) -> Iterator[str]:
    """The texts of the examples, in order, truncated as these are."""
    wanted, lengths = np.isin(np.arange(len(store)), kept), store.lengths() + 1
    backend = tokenizer.backend_tokenizer
    backend.encode_special_tokens = True
    for number, text in enumerate(texts):
        if wanted[number] and lengths[number] > max_length:
            # Cut the text itself, not decoded tokens: unknown words count as well. Both </s> are no part of it.
            ends = [end for _, end in backend.encode(text, add_special_tokens=False).offsets]
            yield text[: ends[max_length - 3]] if max_length > 2 else ""
        elif wanted[number]:
            yield text


def _check_room(length: int, max_length: int, where: str, advice: str) -> None:
    """Check that a token fits after a prompt of `length` tokens, the leading `</s>` included."""
    if length >= max_length:
        raise UserError(
            f"{where} has {length} tokens, the one that begins a text included; expected at most {max_length - 1}, one "
            f"less than the model's maximum; {advice}"
        )


def _truncate_prompts(prompts: list[Tokens], max_length: int) -> int:
    """Cut prompts after which no token fits to their last `max_length` / 2 tokens, in place; returns their number."""
    over = [number for number, prompt in enumerate(prompts) if len(prompt) >= max_length]
    for number in over:
        prompt = prompts[number]
        prompts[number] = np.append(prompt[:1], prompt[len(prompt) - max(1, max_length // 2 - 1) :])
    return len(over)
