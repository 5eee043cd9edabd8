"""The layers of self-attention in a model, and what they compute over a text."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from synthetic_attention.attention import SelfAttention
from synthetic_attention.conversion.synthesize import stacks_of
from synthetic_attention.models.blocks import SynthesizerBlock
from synthetic_attention.models.loss import IGNORED
from synthetic_attention.models.modeling import SynthesizerModel
from synthetic_attention.models.positions import RelativePositionBias

# Keyword arguments of a model, padded on the right.
Batch = Mapping[str, Tensor]


class AttentionLayer(NamedTuple):
    """The self-attention of one layer; `number` counts from 1 in its stack, "encoder" or "decoder"."""

    stack: str
    number: int
    module: SelfAttention
    is_causal: bool
    bias: RelativePositionBias | None


def attention_layers(model: nn.Module) -> list[AttentionLayer]:
    """The self-attention layers of a model, those of the encoder first."""
    return [
        AttentionLayer(stack.side, number, block.self_attn, block.is_causal, stack.relative_attention_bias)
        for stack in stacks_of(model)
        for number, block in enumerate(cast(Iterable[SynthesizerBlock], stack.layers), start=1)
    ]


def run(model: Any, batch: Batch, need_weights: bool = False) -> Any:
    """The output of a model for a batch; with labels and a head, the loss is the sum over them."""
    inputs: dict[str, Any] = {name: tensor.to(model.device) for name, tensor in batch.items()}
    if isinstance(model, SynthesizerModel):
        inputs.pop("labels", None)
    if "labels" in inputs:
        inputs["num_items_in_batch"] = 1
        if model.config.is_encoder_decoder:
            # Nothing depends on padding at the end of a causal stack; with a mask its rows are zeros.
            inputs["decoder_attention_mask"] = (inputs["labels"] != IGNORED).long()
    return model(**inputs, output_attentions=need_weights)


def mean_loss(model: Any, batches: Iterable[Batch], need_weights: bool = False) -> float:
    """The loss per label, in nats; per number of a regression; NaN without labels.

    Without a head, the labels are a last hidden state (B, T, d_model), and the loss is the mean squared error.
    """
    total, count = 0.0, 0
    with torch.no_grad():
        for batch in batches:
            labels, output = batch["labels"], run(model, batch, need_weights)
            if isinstance(model, SynthesizerModel):
                errors = (output.last_hidden_state - labels)[batch["attention_mask"].bool()].square()
                total, count = total + float(errors.sum()), count + errors.numel()
                continue
            total += float(output.loss)
            count += labels.numel() if labels.is_floating_point() else int((labels != IGNORED).sum())
    return total / count if count else math.nan


@contextmanager
def hooked(layers: Sequence[AttentionLayer], visit: Callable[[int, Sequence[Any], Any], Any]) -> Iterator[None]:
    """Call `visit` with the index, arguments and output of each layer that runs; what it returns is the output."""
    with ExitStack() as hooks:
        for index, layer in enumerate(layers):
            hooks.enter_context(
                layer.module.register_forward_hook(lambda _, args, y, index=index: visit(index, args, y))
            )
        yield


def real_rows(args: Sequence[Any]) -> Tensor:
    """(B, T) bool, the real tokens in the arguments of a layer of self-attention."""
    x, layout = args[:2]
    if layout.mask is None:
        return torch.ones(x.shape[:2], dtype=torch.bool, device=x.device)
    return cast(Tensor, layout.mask)
