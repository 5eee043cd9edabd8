"""One tokenizer for all rows of a comparison."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from ..tasks import UserError
from ..training.source import Source

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

__all__ = ["describe_tokenizer", "one_tokenizer"]


def describe_tokenizer(tokenizer: PreTrainedTokenizerFast) -> dict[str, Any]:
    """Its number of pieces, and a digest of its model: not of what it does with long or short lines."""
    model = json.loads(tokenizer.backend_tokenizer.to_str())["model"]
    digest = hashlib.sha256(json.dumps(model, sort_keys=True).encode()).hexdigest()
    return {"pieces": len(tokenizer), "sha256": digest}


def one_tokenizer(sources: Iterable[Source]) -> PreTrainedTokenizerFast:
    """The tokenizer that all runs have that a comparison starts from.

    Raises:
        UserError: one has another, or none that can be read.
    """
    first: tuple[Source, PreTrainedTokenizerFast] | None = None
    for source in sources:
        tokenizer = source.tokenizer()
        if first is None:
            first = source, tokenizer
        elif describe_tokenizer(tokenizer) != describe_tokenizer(first[1]):
            raise UserError(
                f"{first[0].run.path} and {source.run.path} have different tokenizers; expected runs that were trained "
                "on the same text with the same vocab_size"
            )
    assert first is not None
    return first[1]
