"""From a text or an example of a task to the attention of a model on it, with tokens that people can read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from torch import Tensor

from ..data.examples import Examples, fit_length
from ..data.tokenizer import decode, encode
from ..tasks import UserError
from ..tasks.base import Task
from ..tasks.generation import output_limit
from .maps import AttentionMap
from .probe import CROSS, Array, attention_weights, layers
from .tokens import readable_tokens

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerFast

__all__ = ["Inputs", "choose_examples", "example_attention", "example_inputs", "map_attention", "text_inputs"]

Inputs = dict[str, Tensor]
# Tokens of an example that is good to look at: enough for a pattern, few enough for labels.
_READABLE = 16


def text_inputs(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, texts: Sequence[str]) -> list[Inputs]:
    """The arguments of the model for each text.

    Raises:
        UserError: a text is blank, or longer than the model's maximum.
    """
    for number, text in enumerate(texts, start=1):
        if not text.strip():
            raise UserError(f"got a blank text ({number} of {len(texts)}); expected something to look at")
    rows = encode(tokenizer, texts)
    # A causal model reads a sequence from its start token on.
    start = model.config.bos_token_id
    if not model.config.is_encoder_decoder and layers(model)[0].is_causal and start is not None:
        rows = [row if row[0] == start else np.concatenate([np.array([start], row.dtype), row]) for row in rows]
    fit_length({"the texts": rows}, model.config.max_position_embeddings, "error", "give shorter texts to look at")
    inputs = [torch.from_numpy(row.astype(np.int64))[None] for row in rows]
    return [{"input_ids": ids, "attention_mask": torch.ones_like(ids)} for ids in inputs]


def choose_examples(examples: Examples[Any], count: int) -> list[int]:
    """The indices of `count` examples whose length is good to look at, in their order."""
    longest = examples.lengths().max(axis=1)
    return sorted(np.argsort(np.abs(longest - _READABLE), kind="stable")[:count].tolist())


def example_inputs(task: Task[Any, Any], model: PreTrainedModel, examples: Examples[Any], index: int) -> list[Inputs]:
    """The arguments of the model for one example, its labels among them; for each sentence where it has several."""
    batch = task.collate([examples[index]], cast(int, model.config.pad_token_id))
    segments = batch.pop("segment_ids", None)
    if segments is None:
        return [batch]
    # A model gives no attention weights of packed sentences.
    _, lengths = torch.unique_consecutive(segments[0], return_counts=True)
    rows = torch.arange(segments.shape[1]).split(lengths.tolist())
    real = [row for row in rows if segments[0, row[0]] != 0]
    return [
        {**{name: value[:, row] for name, value in batch.items()}, "attention_mask": torch.ones(1, len(row)).long()}
        for row in real
    ]


def example_attention(model: PreTrainedModel, inputs: Mapping[str, Tensor]) -> dict[str, list[Array]]:
    """The attention weights of an example. An encoder-decoder reads the target from the labels; others need none."""
    if not model.config.is_encoder_decoder:
        inputs = {name: value for name, value in inputs.items() if name != "labels"}
    return attention_weights(model, inputs)


def map_attention(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, inputs: Mapping[str, Tensor]
) -> tuple[str, dict[str, list[AttentionMap]]]:
    """The attention of all layers for one input; an encoder-decoder writes its output greedily first.

    Args:
        inputs: as `text_inputs` and `example_inputs` give them; labels are not read.

    Returns:
        The input, and the output where there is one, as text; the maps of each stack, and of cross-attention.
    """
    given = {name: value for name, value in inputs.items() if name != "labels"}
    source = readable_tokens(tokenizer, given["input_ids"][0].tolist())
    texts = decode(tokenizer, given["input_ids"].tolist())
    # Rows and columns by stack: labels, and what they are.
    sides = {stack: [(source, "token")] * 2 for stack in ("encoder", "decoder")}
    if model.config.is_encoder_decoder:
        output = _write(model, given)
        target = readable_tokens(tokenizer, output[0].tolist())
        texts += decode(tokenizer, output.tolist())
        given["decoder_input_ids"] = output[:, :-1]
        sides = {
            "encoder": [(source, "source token")] * 2,
            "decoder": [(target[:-1], "target token read")] * 2,
            CROSS: [(target[1:], "target token written"), (source, "source token")],
        }
    weights = attention_weights(model, given)
    functions = {(layer.stack, layer.number): layer for layer in layers(model)}
    maps: dict[str, list[AttentionMap]] = {}
    for stack, of_layers in weights.items():
        (rows, row_name), (columns, column_name) = sides[stack]
        maps[stack] = [
            AttentionMap(
                "Cross-attention" if stack == CROSS else f"{stack.capitalize()} self-attention",
                number,
                "vanilla" if stack == CROSS else functions[stack, number].module.synthesizer,
                array,
                rows,
                columns,
                row_name,
                column_name,
                stack != CROSS and functions[stack, number].is_causal,
            )
            for number, array in enumerate(of_layers, start=1)
        ]
    return " → ".join(texts), maps


def _write(model: PreTrainedModel, inputs: Mapping[str, Tensor]) -> Tensor:
    """The greedy output (1, T), from the start token to the end."""
    moved = {name: value.to(model.device) for name, value in inputs.items()}
    limit = output_limit(inputs["input_ids"].shape[1], model.config.max_position_embeddings)
    # `generate` is typed for any model and any output.
    output = cast(Any, model).generate(**moved, max_new_tokens=limit, num_beams=1, do_sample=False)
    return cast(Tensor, output.cpu())
