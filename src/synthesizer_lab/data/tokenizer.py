"""Tokenizers of byte-level BPE, which is lossless, trained on the training text."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import tokenizers
from tokenizers import Encoding, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from ..errors import UserError, damage_reported
from .files import chunks

# In the order of their ids, which are the defaults of SynthesizerConfig.
SPECIAL_TOKENS = {"pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
Tokenizer = PreTrainedTokenizerFast
Tokens = np.ndarray[tuple[int], np.dtype[np.int32]]
# Characters to encode at once: what the tokenizer returns for a text needs many times the memory of its ids.
_CHUNK_CHARACTERS = 2**18


def train_tokenizer(lines: Iterable[str], vocab_size: int, max_length: int, sentinels: int = 0) -> Tokenizer:
    """Train byte-level BPE of at most `vocab_size` tokens. Every encoded sequence ends with `</s>`.

    With `sentinels`, as T5 has, `<extra_id_0>` is the last token, `<extra_id_1>` the one before it, and so on.
    """
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    smallest = len(alphabet) + len(SPECIAL_TOKENS) + sentinels
    if vocab_size < smallest:
        parts = f"all bytes and the special tokens{f', and {sentinels} sentinels' if sentinels else ''}"
        raise UserError(f"got vocab_size={vocab_size}; expected at least {smallest}: {parts}")
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - sentinels,
        special_tokens=list(SPECIAL_TOKENS.values()),
        initial_alphabet=alphabet,
        show_progress=False,
    )
    tokenizer.train_from_iterator(lines, trainer)
    end = SPECIAL_TOKENS["eos_token"]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"$A {end}", special_tokens=[(end, tokenizer.token_to_id(end))]
    )
    tokenizer.add_special_tokens([f"<extra_id_{number}>" for number in reversed(range(sentinels))])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        model_max_length=max_length,
        clean_up_tokenization_spaces=False,
        # Text that happens to contain "</s>" is text.
        split_special_tokens=True,
        **SPECIAL_TOKENS,
    )


def encodings(
    tokenizer: Tokenizer, texts: Sequence[str | tuple[str, str]], maximum: int | None = None
) -> Iterator[Encoding]:
    """Encode texts, or pairs, with special tokens and without padding; `maximum` truncates the longer text first."""
    backend = tokenizer.backend_tokenizer
    backend.no_padding()
    backend.no_truncation()
    backend.encode_special_tokens = True
    if maximum is not None:
        backend.enable_truncation(maximum)
    with damage_reported(f"{tokenizer.name_or_path or 'the new tokenizer'}: tokenizer.json"):
        for chunk in chunks(texts, _CHUNK_CHARACTERS):
            yield from backend.encode_batch_fast(chunk)
    backend.no_truncation()


def encode(tokenizer: Tokenizer, lines: Sequence[str]) -> list[Tokens]:
    """The ids of each line, special tokens included, without truncation or padding."""
    return [np.array(encoding.ids, dtype=np.int32) for encoding in encodings(tokenizer, lines)]


def special_ids(tokenizer: Tokenizer) -> set[int]:
    """The ids of `SPECIAL_TOKENS`, and of those with other names, as tokenizers from elsewhere have."""
    named = {getattr(tokenizer, f"{name}_id") for name in SPECIAL_TOKENS}
    return {*map(tokenizer.convert_tokens_to_ids, SPECIAL_TOKENS.values()), *named} - {None}


def decode(tokenizer: Tokenizer, ids: Sequence[Sequence[int]]) -> list[str]:
    """The text of each sequence of ids, with spaces for newlines, without `special_ids`.

    Sentinels that a model writes stay: without them a wrong output could look like a label.
    """
    special = special_ids(tokenizer)
    rows = [[token for token in row if token not in special] for row in ids]
    texts = tokenizer.backend_tokenizer.decode_batch(rows, skip_special_tokens=False)
    # Not splitlines(): other Unicode line separators do not end a line in our files.
    return [re.sub(r"[\r\n]+", " ", text).strip() for text in texts]
