"""What the attention of a trained model depends on, and its loss without one of its functions."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, cast

import torch

from synthetic_attention.attention import SynthesizerAttention
from synthetic_attention.logits import MixedLogits

from ..attention.fitting import explained, fit, measure_divergences
from ..attention.layers import Batch, attention_layers, mean_loss
from ..errors import UserError
from .collect import Part, parts_of


@torch.no_grad()
def explain(model: Any, batches: Sequence[Batch]) -> dict[str, Any]:
    """ "explained": for each layer and head the shares of the KL divergence from uniform attention that position alone
    and the own token alone explain. "removed": the rise of the "loss" (nats per label) without each function.

    For the shares, functions are fitted on every second batch and measured on the others; a model with a baseline has
    none. A function is left out of one layer, or (layer None) of all layers of a stack: in a mixture the others keep
    their α, else the attention is uniform.
    """
    layers, shares = attention_layers(model), list[dict[str, Any]]()
    if len(batches) > 1 and all(isinstance(layer.module, SynthesizerAttention) for layer in layers):
        measured = measure_divergences(model, fit(model, batches[::2]), batches[1::2])
        for layer, divergences in zip(layers, measured, strict=True):
            shares.append({"stack": layer.stack, "layer": layer.number, "heads": explained(divergences)})
    parts: dict[tuple[str, int | None, str], list[Part]] = {}
    for layer in layers:
        for part in parts_of(layer):
            for number in (layer.number, None):
                parts.setdefault((layer.stack, number, part.name), []).append(part)
    before, removed = mean_loss(model, batches), list[dict[str, Any]]()
    if not math.isfinite(before):
        raise UserError(f"got a loss of {before}; expected examples with something to predict: pass a larger --sample")
    for (stack, number, name), left_out in sorted(parts.items(), key=lambda item: item[0][1] is None):
        with ExitStack() as context:
            for part in left_out:
                context.enter_context(_without(part, model.device))
            increase = mean_loss(model, batches) - before
        removed.append({"stack": stack, "layer": number, "function": name, "loss_increase": increase})
    return {"explained": shares, "loss": before, "removed": removed}


@contextmanager
def _without(part: Part, device: torch.device) -> Iterator[None]:
    """A mixture with α = 0 for one of its functions; another function with α = 0 for itself."""
    group, weights, forward = part.group, part.group.weights(), part.group.forward
    alpha = torch.ones(len(group.components), 1, device=device) if weights is None else weights.clone()
    alpha[part.place] = 0
    # It hides a method of the class.
    name, value = "weights", cast(Any, lambda: alpha)
    if len(alpha) == 1:
        name, value = "forward", lambda *arguments: MixedLogits([forward(*arguments)], alpha)
    vars(group)[name] = value
    try:
        yield
    finally:
        del vars(group)[name]
