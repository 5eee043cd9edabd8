"""What the attention of a trained model depends on, and its loss without one of its functions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

from synthetic_attention.attention import SynthesizerAttention
from synthetic_attention.logits import MixedLogits
from synthetic_attention.synthesizers import SynthesizingFunction

from ..inspect.collect import AttentionLayer, Explanation, attention_layers
from .calibrate import Batch, fit
from .choose import mean_loss, measure_heads

__all__ = ["explain"]

_KINDS = ("random", "dense")


@torch.no_grad()
def explain(model: Any, batches: Sequence[Batch]) -> Explanation:
    """What each head depends on, and the loss without each function: in one layer, and in all of a stack.

    For the shares of position and of the own token, functions are fitted on every second batch and measured on the
    others. A function is left out of the logits: in a mixture the others keep their α, else the attention is uniform.
    """
    layers, heads = attention_layers(model), list[list[dict[str, float]]]()
    if len(batches) > 1 and all(isinstance(layer.module, SynthesizerAttention) for layer in layers):
        fitted = [_untrained(model, name) for name in _KINDS]
        fit(model, fitted, _KINDS, batches[::2])
        for costs in measure_heads(model, dict(zip(_KINDS, fitted, strict=True)), batches[1::2]):
            shares = {f"explained_by_{name}": costs.explained(name).tolist() for name in _KINDS}
            heads.append([dict(zip(shares, values, strict=True)) for values in zip(*shares.values(), strict=True)])
    before, removed = mean_loss(model, batches), list[Mapping[str, Any]]()
    for stack, number, name, parts in _parts(layers):
        with ExitStack() as context:
            for function, index in parts:
                context.enter_context(_without(function, index, model.device))
            increase = mean_loss(model, batches) - before
        removed.append({"stack": stack, "layer": number, "function": name, "loss_increase": increase})
    return Explanation(heads, before, removed)


def _untrained(model: Any, name: str) -> Any:
    """A model with a function in all layers, and the other weights of `model`."""
    config = type(model.config).from_dict({**model.config.to_dict(), "synthesizer": name, "synthesizer_options": {}})
    new = type(model)(config)
    new.load_state_dict(
        {key: value for key, value in model.state_dict().items() if ".self_attn." not in key}, strict=False
    )
    return new.to(device=model.device, dtype=model.dtype).eval()


def _parts(
    layers: Sequence[AttentionLayer],
) -> Iterator[tuple[str, int | None, str, list[tuple[SynthesizingFunction, int]]]]:
    """Stack, layer (None for all), name, and of each layer what `AttentionLayer.components` has for it."""
    together: dict[tuple[str, str], list[tuple[SynthesizingFunction, int]]] = {}
    for layer in layers:
        for name, part in layer.components().items():
            together.setdefault((layer.stack, name), []).append(part)
            yield layer.stack, layer.number, name, [part]
    for (stack, name), parts in together.items():
        yield stack, None, name, parts


@contextmanager
def _without(function: SynthesizingFunction, index: int, device: torch.device) -> Iterator[None]:
    """A mixture with α = 0 for one of its functions; another function with α = 0 for itself."""
    weights, forward = function.weights(), function.forward
    alpha = torch.ones(len(function.components), 1, device=device) if weights is None else weights.clone()
    alpha[index] = 0
    # They hide methods of the class.
    if len(alpha) > 1:
        hidden: dict[str, Any] = {"weights": lambda: alpha}
    else:
        hidden = {"forward": lambda *arguments: MixedLogits([forward(*arguments)], alpha)}
    vars(function).update(hidden)
    try:
        yield
    finally:
        for name in hidden:
            del vars(function)[name]
