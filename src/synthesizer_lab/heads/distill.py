"""Training of the new parameters of a converted model alone, against the layers that it was made from."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from tqdm import tqdm  # type: ignore[import-untyped]

from synthetic_attention.models import SynthesizerPreTrainedModel

from ..attention.layers import AttentionLayer, Batch, attention_layers, hooked, real_rows, run


def new_parameters(layer: AttentionLayer) -> list[nn.Parameter]:
    """The parameters of the synthesizing functions in a layer, but vanilla's, that are trained."""
    functions = [part for _, group in cast(Any, layer.module).function.groups() for part in group.components]
    return [each for part in functions if part.name != "vanilla" for each in part.parameters() if each.requires_grad]


def distill(
    model: SynthesizerPreTrainedModel,
    original: SynthesizerPreTrainedModel,
    batches: Iterable[Batch],
    steps: int,
    *,
    learning_rate: float = 1e-2,
) -> None:
    """Train the new parameters of `model` in place; all others stay as they are.

    Each layer gets the inputs of the same layer of `original`, and its squared error is that of the layer's output,
    relative to the squared output. So layers do not depend on each other. AdamW, with a rate that falls linearly to 0.

    Args:
        batches: repeated as often as needed.
        steps: number of updates, each with one batch.
    """
    layers, new = attention_layers(original), attention_layers(model)
    trained = [new_parameters(layer) for layer in new]
    optimizer = torch.optim.AdamW([*itertools.chain(*trained)], lr=learning_rate, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, steps)

    def visit(number: int, args: Sequence[Any], output: Tensor) -> None:
        if not trained[number]:
            return
        with torch.enable_grad():
            rows = real_rows(args)[..., None]
            difference = (cast(Any, new[number].module)(*args) - output) * rows
            error = difference.square().sum() / (output * rows).square().sum().clamp_min(1e-12)
            error.backward(inputs=trained[number])

    with hooked(layers, visit):
        repeated = itertools.islice(itertools.cycle(batches), steps)
        for batch in tqdm(repeated, total=steps, desc="distilling", unit="step", disable=None, leave=False):
            with torch.no_grad():
                run(original, batch)
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()
