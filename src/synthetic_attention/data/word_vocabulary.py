"""A vocabulary of words: what whitespace divides, the most frequent ones; a word that it lacks is charged by spelling.

Texts are normalized: their words with one space between them, which is all that such a model can write. The tokenizer
carries how unknown words are spelled, `Spelling`, learned from those of the training text.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from ..errors import UserError
from ..metrics.language_modeling import Spelling
from .tokenizer import SPECIAL_TOKENS

if TYPE_CHECKING:
    from collections.abc import Set

__all__ = ["known_words", "normalized", "of_words", "spelling", "train_word_tokenizer"]

_SPELLING = "spelling_nats"
# A text that says <unk>, as WikiText does, means the word that the vocabulary has for it; the others are only words.
_RESERVED = frozenset(SPECIAL_TOKENS.values()) - {SPECIAL_TOKENS["unk_token"]}


def normalized(text: str) -> str:
    """Its words, with one space between them."""
    return " ".join(text.split())


def train_word_tokenizer(texts: Iterable[str], vocab_size: int, max_length: int) -> PreTrainedTokenizerFast:
    """The most frequent words of `texts`, and how the others are spelled.

    Of words that are equally frequent the first by code points are taken.

    Args:
        texts: normalized.
        vocab_size: words, special tokens included; there are fewer where the texts have fewer.

    Raises:
        UserError: `vocab_size` has no room for a word.
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
    known = _known(words)
    lacking = {word: count for word, count in counts.items() if word not in known}
    result = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        model_max_length=max_length,
        clean_up_tokenization_spaces=False,
        split_special_tokens=True,
        **SPECIAL_TOKENS,
    )
    result.init_kwargs[_SPELLING] = Spelling.learned(lacking).nats.tolist()
    return result


def of_words(tokenizer: PreTrainedTokenizerFast) -> bool:
    """Whether `tokenizer` is of this kind: what it decodes has no space at its beginning, though each word had one."""
    return _SPELLING in tokenizer.init_kwargs


def spelling(tokenizer: PreTrainedTokenizerFast) -> Spelling:
    """How the words that `tokenizer` lacks are spelled.

    Raises:
        UserError: it does not say, so it is none of ours.
    """
    nats = tokenizer.init_kwargs.get(_SPELLING)
    if not isinstance(nats, list):
        raise UserError(f"got a tokenizer of words without {_SPELLING} in tokenizer_config.json; train the run anew")
    return Spelling(np.array(nats))


def known_words(tokenizer: PreTrainedTokenizerFast) -> Set[str]:
    """The words that `tokenizer` can write: one that is not among them is charged by its spelling."""
    return _known(tokenizer.get_vocab())


def _known(words: Iterable[str]) -> Set[str]:
    return frozenset(words) - _RESERVED
