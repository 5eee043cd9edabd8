"""A byte-level BPE vocabulary: lossless, and learned from the training text alone."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from ..errors import UserError

__all__ = ["SPECIAL_TOKENS", "decode", "encode", "train_tokenizer"]

# In the order of their ids, which are the defaults of SynthesizerConfig.
SPECIAL_TOKENS = {"pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
Tokens = np.ndarray[tuple[int], np.dtype[np.int32]]
# Lines to encode at a time: what the tokenizer returns for a line takes many times the memory of its ids.
_CHUNK = 10_000


def train_tokenizer(lines: Iterable[str], vocab_size: int, max_length: int) -> PreTrainedTokenizerFast:
    """Learn BPE on `lines`; every sequence that it encodes ends with `</s>`.

    A small corpus may have fewer than `vocab_size` pieces: the length of the result says how many.

    Raises:
        UserError: `vocab_size` does not hold the 256 bytes and the special tokens.
    """
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    smallest = len(alphabet) + len(SPECIAL_TOKENS)
    if vocab_size < smallest:
        raise UserError(f"got vocab_size={vocab_size}; expected at least {smallest}: all bytes and the special tokens")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(SPECIAL_TOKENS.values()),
        initial_alphabet=alphabet,
        show_progress=False,
    )
    tokenizer.train_from_iterator(lines, trainer)
    end = SPECIAL_TOKENS["eos_token"]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"$A {end}", special_tokens=[(end, tokenizer.token_to_id(end))]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        model_max_length=max_length,
        clean_up_tokenization_spaces=False,
        # Text that happens to contain "</s>" is text.
        split_special_tokens=True,
        **SPECIAL_TOKENS,
    )


def encode(tokenizer: PreTrainedTokenizerFast, lines: Sequence[str]) -> list[Tokens]:
    """Ids of each line, `</s>` included, whatever their number: lengths are the caller's to check."""
    backend = tokenizer.backend_tokenizer
    backend.no_truncation()
    backend.no_padding()
    backend.encode_special_tokens = True
    ids: list[Tokens] = []
    for start in range(0, len(lines), _CHUNK):
        encodings = backend.encode_batch_fast(list(lines[start : start + _CHUNK]))
        ids.extend(np.array(encoding.ids, dtype=np.int32) for encoding in encodings)
    return ids


def decode(tokenizer: PreTrainedTokenizerFast, ids: Sequence[Sequence[int]]) -> list[str]:
    """Text of each sequence of ids, on one line: a model may write a newline, a reader of lines may not.

    Of the tokens that are no text only those in `SPECIAL_TOKENS` are left out. A sentinel that a model writes stays:
    without it an output would seem to be a label word that is none.
    """
    skipped = {tokenizer.convert_tokens_to_ids(token) for token in SPECIAL_TOKENS.values()}
    rows = [[token for token in row if token not in skipped] for row in ids]
    texts = tokenizer.backend_tokenizer.decode_batch(rows, skip_special_tokens=False)
    # Not splitlines(): what else Unicode calls a line separator does not end a line for `read_lines`.
    return [re.sub(r"[\r\n]+", " ", text).strip() for text in texts]
