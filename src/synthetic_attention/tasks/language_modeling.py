"""Language modelling: plain text {train,valid,test…}.txt, a sentence or a document a line, or running text."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
import torch
from tokenizers import processors
from torch import Tensor

from ..data import standard_library
from ..data.batching import Share
from ..data.corpus import Corpus, Lines, Selected, corpus_files, first_texts, hub_lines, read_corpus
from ..data.examples import Examples, Long
from ..data.hub import HubSet, is_hub_name
from ..data.token_store import TokenStore
from ..data.tokenizer import encode, train_tokenizer
from ..data.word_vocabulary import normalized, train_word_tokenizer
from ..errors import UserError
from ..metrics.language_modeling import finite
from .base import Task
from .continuation import Sampling, check_room, continue_lines, cut_prompts, stream_text
from .generation import BeamSearch
from .language_modeling_examples import (
    Blocks,
    Row,
    ScoredRows,
    Sentences,
    block_sizes,
    charges,
    collate,
    cut_sentences,
    kept_texts,
    pack,
    row_losses,
)
from .types import Evaluation, Scores

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerFast

__all__ = ["LanguageModeling"]

# Of a corpus that is not kept in memory, the text that the vocabulary is learned from.
_VOCABULARY_CHARACTERS = 2 * 10**8
_TOO_LONG = "in training pass --drop-long to leave them out or --truncate to cut them, in scoring --on-long truncate"


@dataclass(frozen=True)
class LanguageModeling(Task[Corpus, Row]):
    """Predict each token of a text from those before it; scored by perplexity.

    Args:
        mode: "sentences", each line alone, from `</s>` to `</s>`, blank lines left out; or "blocks" of running text, in
            which `</s>` stands for the end of a line.
        packed: train on rows of several sentences, none of which sees another, rather than on padded ones.
        block: tokens of a block, by default the model's maximum.
        overlap: tokens that a block to be scored has in common with the one before, which are its context; by default
            half of the block. In training it is one.
        vocabulary: "bpe", of bytes and what they are merged to; or "words", of what whitespace divides.
        train_files, valid_files, test_files: names or patterns of the files of a split, where they do not begin with
            its name. Of a data set on the hub, the name of the split.
        stream: keep the tokens in a file in the user's cache, and the text nowhere, for corpora larger than the memory.
        max_documents: the most texts of each split.
        column, subset, revision: of a data set on the hub (hub:OWNER/NAME).
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
    model_class: ClassVar[str] = "SynthesizerForCausalLM"
    unit: ClassVar[str] = "sequences"

    def __post_init__(self) -> None:
        if self.mode == "blocks" and self.packed:
            raise UserError("got packed=true with mode=blocks; only sentences are packed: blocks are full")
        if self.mode == "sentences" and (self.block, self.overlap) != (None, None):
            raise UserError("got block or overlap with mode=sentences; only mode=blocks has them")
        if self.max_documents is not None and self.max_documents < 1:
            raise UserError(f"got max_documents={self.max_documents}; expected at least 1")

    @classmethod
    def default_data(cls) -> Path:
        """The source text of Python's standard library, some files of it held out."""
        return standard_library.default_data()

    @classmethod
    def default_options(cls) -> Mapping[str, Any]:
        """Running text: the lines of a program do not stand alone."""
        return {"mode": "blocks"}

    def read(self, data: Path, split: str) -> Corpus:
        """The texts of a split: lines of files, or the column of a data set on the hub.

        Raises:
            UserError: there are none, or they cannot be read.
        """
        patterns = {"train": self.train_files, "valid": self.valid_files, "test": self.test_files}.get(split)
        name = split
        found: Iterable[str]
        if is_hub_name(data):
            if isinstance(patterns, list):
                raise UserError(f"got {split}_files={patterns}; expected the name of one split of {data}")
            source = HubSet.of(data, self.subset, self.revision)
            found = hub_lines(source, patterns or split, self.column, self.stream, self.max_documents)
        else:
            paths = corpus_files(data, split, patterns)
            # Of files that are named the beginning may be the same: wiki.train.tokens, wiki.valid.tokens.
            name = paths[0].name.split(".")[0] if len(paths) == 1 and patterns is None else split
            found = Lines(paths)
        return read_corpus(name, Selected(found, self._keeps, self._changed, self.max_documents), self.stream)

    def _keeps(self, text: str) -> bool:
        return self.mode == "blocks" or bool(text.strip())

    def _changed(self, text: str) -> str:
        return normalized(text) if self.vocabulary == "words" else text

    def tokenizer(self, split: Corpus, vocab_size: int, max_length: int) -> PreTrainedTokenizerFast:
        """A vocabulary learned from the training text; what it encodes begins with `</s>` and ends with nothing.

        Raises:
            UserError: the vocabulary cannot have that size.
        """
        texts = first_texts(split.texts, _VOCABULARY_CHARACTERS) if self.stream else split.texts
        train = train_word_tokenizer if self.vocabulary == "words" else train_tokenizer
        tokenizer = train(texts, vocab_size, max_length)
        end = tokenizer.eos_token
        tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{end} $A", special_tokens=[(end, tokenizer.eos_token_id)]
        )
        tokenizer.bos_token = end
        return tokenizer

    def config_changes(self, split: Corpus, tokenizer: PreTrainedTokenizerFast) -> dict[str, Any]:
        """A text begins with `</s>`, as the tokenizer has it."""
        return {**super().config_changes(split, tokenizer), "bos_token_id": tokenizer.bos_token_id}

    def examples(
        self,
        split: Corpus,
        tokenizer: PreTrainedTokenizerFast,
        maximum: int,
        long: Long = "error",
        training: bool = False,
    ) -> ScoredRows:
        """Sentences, packed for training if they are to be, or blocks.

        Raises:
            UserError: a sentence is too long and `long` is "error", or a block cannot have that size.
        """
        end = tokenizer.eos_token_id
        store = self._encode(split, tokenizer)
        if self.mode == "blocks":
            block, overlap = block_sizes(self.block, self.overlap, maximum, training)
            charged = self._charges([] if training else split.texts, tokenizer)
            return Blocks(store, end, charged.sum(axis=0)[None], block, overlap)
        texts, over = cut_sentences(store, maximum, long, split.name, _TOO_LONG)
        kept = [] if training else kept_texts(split.texts, store, texts, maximum, tokenizer)
        sentences = Sentences(
            store,
            end,
            self._charges(kept, tokenizer),
            texts,
            maximum,
            dropped=len(store) - len(texts),
            truncated=over if long == "truncate" else 0,
        )
        return pack(sentences, maximum) if self.packed and training else sentences

    def _encode(self, split: Corpus, tokenizer: PreTrainedTokenizerFast) -> TokenStore:
        if not self.stream:
            return TokenStore.in_memory(split.texts, tokenizer)
        return TokenStore.build(split.texts, tokenizer, split.sha256)

    def _charges(self, texts: Iterable[str], tokenizer: PreTrainedTokenizerFast) -> np.ndarray:
        return charges(texts, tokenizer, self.vocabulary == "words")

    def collate(self, examples: Sequence[Row], pad_token_id: int) -> dict[str, Tensor]:
        """input_ids and labels (B, T), and attention_mask; of packed rows segment_ids in its place."""
        return collate(examples, pad_token_id)

    def tokens(self, batch: Mapping[str, Tensor]) -> Tensor:
        """Real tokens, the `</s>` at the beginnings among them."""
        return (batch["segment_ids"] != 0).sum() if "segment_ids" in batch else super().tokens(batch)

    def validate(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerFast,
        split: Corpus,
        examples: Examples[Row],
        loss: float,
        share: Share,
    ) -> Scores:
        """Perplexities per token and per word, and bits per byte."""
        assert isinstance(examples, ScoredRows)
        tokens = int(examples.scored().sum())
        scores = finite(replace(examples.total, nats=loss * tokens, tokens=tokens).scores())
        return {name: score for name, score in scores.items() if name != "loss"}

    @torch.inference_mode()
    def evaluate(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerFast,
        split: Corpus,
        search: Any,
        truncate: bool = False,
    ) -> Evaluation:
        """Loss and perplexities, and what they are counted in; the file of predictions has the loss of each row."""
        examples = self.examples(
            split, tokenizer, model.config.max_position_embeddings, "truncate" if truncate else "error"
        )
        nats, scored = row_losses(model, examples), examples.scored()
        total = replace(examples.total, nats=float(nats.sum()), tokens=int(scored.sum()))
        rows: list[dict[str, Any]] = [
            {"tokens": tokens, "nats": loss} for tokens, loss in zip(scored.tolist(), nats.tolist(), strict=True)
        ]
        if self.mode == "sentences":
            for row, (words, size, unknown, spelled) in zip(rows, examples.charged.tolist(), strict=True):
                row.update(words=int(words), bytes=int(size), unknown_words=int(unknown), spelling_nats=spelled)
        return Evaluation(
            {**finite(total.scores()), "tokens": total.tokens, "words": total.words, "bytes": total.bytes},
            examples=len(examples),
            predictions="".join(json.dumps({"id": number, **row}) + "\n" for number, row in enumerate(rows)),
            suffix="jsonl",
            answered=len(examples),
            truncated=examples.truncated,
        )

    def line_search(self, options: Mapping[str, Any]) -> BeamSearch:
        """Greedy, with `options` in place of the defaults.

        Raises:
            UserError: an option cannot be.
        """
        if options.get("split_long"):
            raise UserError("got --on-long split; what is continued is cut with --on-long truncate: its end is kept")
        return BeamSearch(**{"beams": 1, "length_penalty": 1.0, **options})

    def generate(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerFast,
        lines: Sequence[str],
        search: BeamSearch,
        truncate: bool = False,
        where: str = "input",
        first_line: int = 1,
    ) -> tuple[list[str], int]:
        """What follows each line, up to its end; with `truncate`, of the last half of what the model takes at most.

        Raises:
            UserError: a line is too long for a token to follow, and `truncate` is off.
        """
        prompts = encode(tokenizer, [self._changed(line) for line in lines])
        maximum = model.config.max_position_embeddings
        over = cut_prompts(prompts, maximum) if truncate else 0
        for number, prompt in enumerate(prompts, start=first_line):
            check_room(len(prompt), maximum, f"{where}, line {number},", "pass --on-long truncate")
        return continue_lines(model, tokenizer, prompts, search), over

    def sampling(self, options: Mapping[str, Any]) -> Sampling:
        """Sampling with `options` in place of the defaults."""
        return Sampling(**options)

    def continue_prompt(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerFast,
        prompt: str,
        sampling: Sampling,
        write: Callable[[str], object],
    ) -> None:
        """Write what follows `prompt`: to the end of the sentence, or, of running text, line after line.

        Raises:
            UserError: the prompt is too long for a token to follow.
        """
        many_lines = self.mode == "blocks"
        lines = prompt.split("\n") if many_lines else [prompt]
        ids = np.concatenate(encode(tokenizer, [self._changed(line) for line in lines]))
        check_room(len(ids), model.config.max_position_embeddings, "the prompt", "give a shorter one")
        stream_text(model, tokenizer, ids, sampling, write, many_lines)
