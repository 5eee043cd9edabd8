"""Text that goes on where a prompt ends: of many lines at once, or of one prompt as it comes."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from transformers import TextStreamer

from ..data.batching import Share
from ..data.tokenizer import SPECIAL_TOKENS, Tokens
from ..data.word_vocabulary import of_words
from ..errors import UserError
from .generation import BeamSearch

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerFast

__all__ = ["Sampling", "check_room", "continue_lines", "cut_prompts", "stream_text"]


@dataclass(frozen=True)
class Sampling:
    """How to draw each token.

    Args:
        max_tokens: the most tokens; by default, and at most, as many as fit into the model's maximum.
        temperature: logits are divided by it; 0 always takes the most probable token.
        top_k: draw from this many of the most probable; 0 for all.
        top_p: draw from the fewest of the most probable that have this probability together; 1 for all.
        seed: of the draws; by default another one each time.

    Raises:
        UserError: a value cannot be.
    """

    max_tokens: int | None = None
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int | None = None

    def __post_init__(self) -> None:
        if self.max_tokens is not None and self.max_tokens < 1:
            raise UserError(f"got max_tokens={self.max_tokens}; expected at least 1")
        if not (math.isfinite(self.temperature) and self.temperature >= 0):
            raise UserError(f"got temperature {self.temperature}; expected 0 (the most probable token) or more")
        if self.top_k < 0:
            raise UserError(f"got top-k {self.top_k}; expected 0 (all tokens) or more")
        if not 0 < self.top_p <= 1:
            raise UserError(f"got top-p {self.top_p}; expected more than 0, at most 1 (all tokens)")
        if self.seed is not None and not 0 <= self.seed < 2**63:
            raise UserError(f"got seed {self.seed}; expected 0 … 2⁶³ − 1")


def check_room(length: int, maximum: int, where: str, advice: str) -> None:
    """Refuse a prompt after which no token fits.

    Raises:
        UserError: `length` tokens, `</s>` at the beginning included, fill the model's `maximum`.
    """
    if length >= maximum:
        raise UserError(
            f"{where} has {length} tokens, the one that begins a text included; expected at most {maximum - 1}, one "
            f"less than the model's maximum; {advice}"
        )


def cut_prompts(prompts: list[Tokens], maximum: int) -> int:
    """Cut the prompts after which no token fits, in place, to their ends: half of `maximum`. Returns how many."""
    over = [number for number, prompt in enumerate(prompts) if len(prompt) >= maximum]
    for number in over:
        prompt = prompts[number]
        prompts[number] = np.append(prompt[:1], prompt[len(prompt) - max(1, maximum // 2 - 1) :])
    return len(over)


@torch.inference_mode()
def continue_lines(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, prompts: Sequence[Tokens], search: BeamSearch
) -> list[str]:
    """What follows each prompt, on one line, up to `</s>` or as many tokens as fit.

    Prompts of one length go through together, so that none depends on the others that there are.

    Args:
        prompts: checked by `check_room`.
    """
    config = model.config
    lengths = np.array([len(prompt) for prompt in prompts])
    options: dict[str, Any] = {"length_penalty": search.length_penalty} if search.beams > 1 else {}
    if search.no_repeat_ngram:
        options["no_repeat_ngram_size"] = search.no_repeat_ngram
    results: list[list[int]] = [[] for _ in prompts]
    model.eval()
    for length in np.unique(lengths).tolist():
        rows = np.flatnonzero(lengths == length)
        limit = min(config.max_position_embeddings - length, search.max_tokens or config.max_position_embeddings)
        if search.min_tokens:
            options["min_new_tokens"] = min(search.min_tokens, limit)
        for batch in Share().batches(np.full(len(prompts), search.beams * (length + limit)), rows):
            ids = torch.from_numpy(np.stack([prompts[row] for row in batch]).astype(np.int64)).to(model.device)
            # `generate` is typed for any model and any output.
            output = cast(Any, model).generate(
                input_ids=ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=limit,
                num_beams=search.beams,
                do_sample=False,
                suppress_tokens=_suppressed(tokenizer),
                **options,
            )
            for row, found in zip(batch, output[:, length:].tolist(), strict=True):
                results[row] = found[: found.index(config.eos_token_id)] if config.eos_token_id in found else found
    # A space at its beginning is part of the text.
    texts = [re.sub(r"[\r\n]+", " ", text) for text in tokenizer.backend_tokenizer.decode_batch(results)]
    return [text and _gap(tokenizer, prompt) + text for text, prompt in zip(texts, prompts, strict=True)]


def _gap(tokenizer: PreTrainedTokenizerFast, prompt: Tokens) -> str:
    """What stands between a prompt and the text that goes on, where the tokens do not say: between two whole words."""
    return " " if of_words(tokenizer) and prompt[-1] != tokenizer.eos_token_id else ""


def _suppressed(tokenizer: PreTrainedTokenizerFast) -> list[int]:
    """The special tokens that no text has: all but the end."""
    names = [token for name, token in SPECIAL_TOKENS.items() if name != "eos_token"]
    return cast("list[int]", tokenizer.convert_tokens_to_ids(names))


class _Writer(TextStreamer):
    """Writes text as soon as its words are whole; `</s>` as the end of a line, where lines follow each other."""

    def __init__(
        self, tokenizer: PreTrainedTokenizerFast, write: Callable[[str], object], end: int, many_lines: bool, gap: str
    ) -> None:
        super().__init__(tokenizer, skip_prompt=True)
        self._write, self._end, self._many_lines, self._gap = write, end, many_lines, gap

    def put(self, value: torch.Tensor) -> None:
        """Take the prompt, then one token after the other."""
        if self.next_tokens_are_prompt or int(value) != self._end:
            super().put(value)
        elif self._many_lines:
            self.end()
            self.next_tokens_are_prompt = False
            self._write("\n")
            self._gap = ""

    def on_finalized_text(self, text: str, stream_end: bool = False) -> None:
        """Write what will not change any more."""
        if text:
            self._write(self._gap + text)
            self._gap = ""


@torch.inference_mode()
def stream_text(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerFast,
    prompt: Tokens,
    sampling: Sampling,
    write: Callable[[str], object],
    many_lines: bool,
) -> None:
    """Write what follows a prompt, a few words at a time.

    Args:
        prompt: checked by `check_room`.
        many_lines: go on after `</s>`, which ends a line; else it ends the text.
    """
    maximum = model.config.max_position_embeddings
    options: dict[str, Any] = {}
    if sampling.temperature:
        options = {"temperature": sampling.temperature, "top_k": sampling.top_k, "top_p": sampling.top_p}
        if sampling.seed is None:
            torch.seed()
        else:
            torch.manual_seed(sampling.seed)
    end = model.config.eos_token_id
    ids = torch.from_numpy(prompt.astype(np.int64))[None].to(model.device)
    model.eval()
    cast(Any, model).generate(
        input_ids=ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=min(maximum - len(prompt), sampling.max_tokens or maximum),
        do_sample=bool(sampling.temperature),
        eos_token_id=None if many_lines else end,
        suppress_tokens=_suppressed(tokenizer),
        streamer=_Writer(tokenizer, write, end, many_lines, _gap(tokenizer, prompt)),
        **options,
    )
