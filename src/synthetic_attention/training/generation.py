"""Generate from many sources of all lengths: sorted into batches, given back in order."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from transformers import PreTrainedTokenizerFast

from ..models import SynthesizerForConditionalGeneration
from ..tasks import UserError
from ..tasks.examples import Long, fit_length, pad
from ..tasks.tokenizer import decode, encode
from .batching import token_batches

if TYPE_CHECKING:
    from ..tasks.tokenizer import Tokens

__all__ = ["generate_ids", "output_limit", "translate"]


def output_limit(source_length: int, maximum: int) -> int:
    """The most tokens to generate for a source: twice its own and 32 more, within the model's `maximum`.

    A batch has the limit of its longest source.

    Without a bound in proportion to the source, a model that has not learned to stop costs every batch the maximum.
    """
    return min(2 * source_length + 32, maximum - 1)


@torch.inference_mode()
def generate_ids(
    model: SynthesizerForConditionalGeneration,
    sources: Sequence[Tokens],
    *,
    beams: int = 1,
    length_penalty: float = 1.0,
    batch_tokens: int = 4096,
    shard: tuple[int, int] = (0, 1),
    before_batch: Callable[[], None] = lambda: None,
) -> dict[int, list[int]]:
    """Greedy or beam search from each source; the ids per index in `sources`, special tokens left out.

    Args:
        beams: 1 is greedy.
        length_penalty: a hypothesis of n tokens is ranked by log-probability / n^length_penalty.
        batch_tokens: source tokens × beams in a batch.
        shard: (rank, number of ranks): only every n-th batch is done.
        before_batch: called before each batch; what it raises ends generation.

    Sampling is off whatever the model's generation configuration says, so that a run can be repeated.
    """
    config, was_training = model.config, model.training
    special = [config.pad_token_id, config.bos_token_id, config.eos_token_id]
    costs = np.array([len(source) * beams for source in sources])
    # The longest first: if memory does not suffice, it shows at once.
    batches = token_batches(costs, np.argsort(-costs, kind="stable"), batch_tokens)
    search = {"length_penalty": length_penalty} if beams > 1 else {}
    results: dict[int, list[int]] = {}
    model.eval()
    try:
        for batch in batches[shard[0] :: shard[1]]:
            before_batch()
            ids = pad([sources[index] for index in batch], config.pad_token_id or 0)
            lengths = torch.tensor([len(sources[index]) for index in batch])
            mask = (torch.arange(ids.shape[1]) < lengths[:, None]).long()
            # `generate` is typed for any model and any output.
            output = cast(Any, model).generate(
                input_ids=ids.to(model.device),
                attention_mask=mask.to(model.device),
                max_new_tokens=output_limit(ids.shape[1], config.max_position_embeddings),
                num_beams=beams,
                do_sample=False,
                **search,
            )
            for index, row in zip(batch, output.tolist(), strict=True):
                results[index] = [token for token in row if token not in special]
    finally:
        model.train(was_training)
    return results


def translate(
    model: SynthesizerForConditionalGeneration,
    tokenizer: PreTrainedTokenizerFast,
    lines: Sequence[str],
    *,
    beams: int,
    length_penalty: float,
    truncate: bool = False,
    batch_tokens: int = 4096,
    where: str = "input",
    first_line: int = 1,
) -> tuple[list[str], int]:
    """A line for each line, in order; a blank line gives an empty one.

    Args:
        where: what messages call the lines.
        first_line: the number of the first of them, in messages.

    Returns:
        The lines, and how many sources were cut to the model's maximum.

    Raises:
        UserError: sources are longer than the maximum and `truncate` is off, or an option cannot be.
    """
    if not math.isfinite(length_penalty):
        raise UserError(f"got length penalty {length_penalty}; expected a finite number")
    if beams < 1:
        raise UserError(f"got {beams} beams; expected 1 (greedy) or more")
    sources = encode(tokenizer, lines)
    long: Long = "truncate" if truncate else "error"
    maximum, advice = model.config.max_position_embeddings, "pass --truncate to cut them"
    _, over = fit_length({where: sources}, maximum, long, advice, first_line)
    rows = [row for row, line in enumerate(lines) if line.strip()]
    generated = generate_ids(
        model,
        [sources[row] for row in rows],
        beams=beams,
        length_penalty=length_penalty,
        batch_tokens=batch_tokens,
    )
    texts = decode(tokenizer, [generated[position] for position in range(len(rows))])
    results = [""] * len(lines)
    for row, text in zip(rows, texts, strict=True):
        results[row] = text
    return results, over
