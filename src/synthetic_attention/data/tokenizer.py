"""Tokenizers trained on the training text: byte-level BPE, which is lossless, or whole words."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

import numpy as np
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from ..errors import UserError

# In the order of their ids, which are the defaults of SynthesizerConfig.
SPECIAL_TOKENS = {"pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
Tokens = np.ndarray[tuple[int], np.dtype[np.int32]]
# Lines to encode at once: what the tokenizer returns for a line needs many times the memory of its ids.
_CHUNK_LINES = 10_000
_SPELLING = "spelling_nats"
_END = 256
# A text that contains <unk>, as WikiText does, means the unknown word; the other special tokens are ordinary words.
_RESERVED = frozenset(SPECIAL_TOKENS.values()) - {SPECIAL_TOKENS["unk_token"]}


def train_tokenizer(lines: Iterable[str], vocab_size: int, max_length: int) -> PreTrainedTokenizerFast:
    """Train byte-level BPE of at most `vocab_size` tokens. Every encoded sequence ends with `</s>`."""
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
    return _wrapped(tokenizer, max_length)


def _wrapped(tokenizer: Tokenizer, max_length: int) -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        model_max_length=max_length,
        clean_up_tokenization_spaces=False,
        # Text that happens to contain "</s>" is text.
        split_special_tokens=True,
        **SPECIAL_TOKENS,
    )


def frame_texts(tokenizer: PreTrainedTokenizerFast) -> PreTrainedTokenizerFast:
    """Make `tokenizer` encode `<s> text </s>`, and a pair as `<s> text </s> text </s>`."""
    start, end = SPECIAL_TOKENS["bos_token"], SPECIAL_TOKENS["eos_token"]
    ids = [(token, tokenizer.backend_tokenizer.token_to_id(token)) for token in (start, end)]
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{start} $A {end}", pair=f"{start} $A {end} $B:1 {end}:1", special_tokens=ids
    )
    # The tokenizer's own encoding of a pair then has token types.
    names = ["input_ids", "token_type_ids", "attention_mask"]
    tokenizer.model_input_names = tokenizer.init_kwargs["model_input_names"] = names
    return tokenizer


def encode(tokenizer: PreTrainedTokenizerFast, lines: Sequence[str]) -> list[Tokens]:
    """The ids of each line, special tokens included, without truncation or padding."""
    backend = tokenizer.backend_tokenizer
    backend.no_truncation()
    backend.no_padding()
    backend.encode_special_tokens = True
    ids: list[Tokens] = []
    for start in range(0, len(lines), _CHUNK_LINES):
        encodings = backend.encode_batch_fast(list(lines[start : start + _CHUNK_LINES]))
        ids.extend(np.array(encoding.ids, dtype=np.int32) for encoding in encodings)
    return ids


def decode(tokenizer: PreTrainedTokenizerFast, ids: Sequence[Sequence[int]]) -> list[str]:
    """The text of each sequence of ids, with spaces for newlines, without `SPECIAL_TOKENS`.

    Sentinels that a model writes stay: without them a wrong output could look like a label.
    """
    special = {tokenizer.convert_tokens_to_ids(token) for token in SPECIAL_TOKENS.values()}
    rows = [[token for token in row if token not in special] for row in ids]
    texts = tokenizer.backend_tokenizer.decode_batch(rows, skip_special_tokens=False)
    # Not splitlines(): other Unicode line separators do not end a line in our files.
    return [re.sub(r"[\r\n]+", " ", text).strip() for text in texts]


@dataclass(frozen=True)
class Spelling:
    """p(spelling) of a word that a vocabulary lacks, byte by byte: `nats` (257,) is −ln p of each byte and the end."""

    nats: np.ndarray

    @classmethod
    def learned(cls, words: Iterable[str] | Mapping[str, int]) -> Spelling:
        """Frequencies of bytes and ends in `words` (or in their counts), with one added to each count."""
        counts = np.ones(_END + 1)
        for word, times in Counter(words).items():
            counts += times * np.bincount(_symbols(word), minlength=_END + 1)
        return cls(-np.log(counts / counts.sum()))

    def cost(self, words: Iterable[str]) -> float:
        """The nats to spell `words`."""
        return float(sum(self.nats[_symbols(word)].sum() for word in words))


def _symbols(word: str) -> np.ndarray:
    return np.array([*word.encode(), _END])


def normalized(text: str) -> str:
    """The words of a text with one space between them: all that a word model can write."""
    return " ".join(text.split())


def train_word_tokenizer(texts: Iterable[str], vocab_size: int, max_length: int) -> PreTrainedTokenizerFast:
    """A vocabulary of the most frequent words of normalized texts, special tokens included; ties go by code points.

    The tokenizer carries the `Spelling` of the words that it lacks.
    """
    special = list(SPECIAL_TOKENS.values())
    if vocab_size <= len(special):
        raise UserError(f"got vocab_size={vocab_size}; expected more than {len(special)}, the special tokens")
    counts = Counter(word for text in texts for word in text.split(" ") if word)
    ranked = sorted((word for word in counts if word not in special), key=lambda word: (-counts[word], word))
    words = [*special, *ranked[: vocab_size - len(special)]]
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, SPECIAL_TOKENS["unk_token"]))
    reserved = "|".join(sorted(_RESERVED))
    tokenizer.normalizer = normalizers.Replace(Regex(rf"(?<!\S)(?:{reserved})(?!\S)"), SPECIAL_TOKENS["unk_token"])
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens(special)
    known = frozenset(words) - _RESERVED
    result = _wrapped(tokenizer, max_length)
    unknown = {word: count for word, count in counts.items() if word not in known}
    result.init_kwargs[_SPELLING] = Spelling.learned(unknown).nats.tolist()
    return result


def is_word_tokenizer(tokenizer: PreTrainedTokenizerFast) -> bool:
    """Whether `train_word_tokenizer` made it; its decoded texts do not begin with a space."""
    return _SPELLING in tokenizer.init_kwargs


def spelling(tokenizer: PreTrainedTokenizerFast) -> Spelling:
    """The spelling of the words that a word tokenizer lacks."""
    nats = tokenizer.init_kwargs.get(_SPELLING)
    if not isinstance(nats, list):
        raise UserError(f"got a word tokenizer without {_SPELLING} in tokenizer_config.json; train the run again")
    return Spelling(np.array(nats))


def known_words(tokenizer: PreTrainedTokenizerFast) -> AbstractSet[str]:
    """The words in the vocabulary of a word tokenizer; all others are charged by their spelling."""
    return frozenset(tokenizer.get_vocab()) - _RESERVED
