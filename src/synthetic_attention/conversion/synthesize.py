"""Another synthesizer for a trained model: layer by layer, with the weights of its dot-product attention."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar, cast

from torch import nn

from ..models import SynthesizerPreTrainedModel
from ..models.modeling import SynthesizerStack
from ..synthesizers import SynthesizerOptions, has_logits

_M = TypeVar("_M", bound=SynthesizerPreTrainedModel)
# The order of the heads in each layer of a model with one stack, or by side.
Heads = Sequence[Sequence[int]] | Mapping[str, Sequence[Sequence[int]]]
_ATTENTION = ".self_attn."


def synthesize(
    model: _M,
    synthesizer: str | list[str] | dict[str, Any],
    heads: Heads | None = None,
    *,
    synthesizer_options: SynthesizerOptions | None = None,
) -> _M:
    """A new model with another synthesizer in its self-attention, and the weights of `model`, which stays as it is.

    Queries and keys are copied for heads with vanilla only. In a mixture with vanilla the other logits start as zeros,
    so the new model computes what `model` does. The parameters of other functions are drawn as in a new model.

    Args:
        model: a model with `vanilla` in all layers.
        synthesizer: as in `SynthesizerConfig`: a name, a list with one per layer, or {"encoder": …, "decoder": …}.
        heads: for each layer its heads (from 0) in the order that they get in the new model: with "random:1/vanilla:3",
            [2, 0, 1, 3] replaces head 2. A list of these, or {"encoder": …, "decoder": …}; by default as they are.
        synthesizer_options: options by function; by default those in the configuration.

    Raises:
        ValueError: a model with other layers; a synthesizer that is not known, does not fit or is a baseline; heads
            that are no permutations, or another order where all layers share T5's relative position bias.
    """
    changed: dict[str, Any] = {"synthesizer": synthesizer}
    if synthesizer_options is not None:
        changed["synthesizer_options"] = {name: dict(options) for name, options in synthesizer_options.items()}
    config = type(model.config).from_dict(model.config.to_dict() | changed)
    for stack in stacks_of(model):
        for number, block in enumerate(cast(Any, stack.layers), start=1):
            if (name := block.self_attn.synthesizer) != "vanilla":
                raise ValueError(
                    f"got {name!r} in layer {number} of the {stack.side}; expected a model with vanilla in all layers"
                )
    orders = _orders(model, heads)
    for side in orders:
        if unfit := [name for name in config.synthesizers(cast(Any, side)) if not has_logits(name)]:
            raise ValueError(
                f"got {unfit[0]!r}; expected functions, mixtures or groups of heads: a baseline has no heads"
            )
    new = type(model)(config)
    kept = {name: tensor for name, tensor in model.state_dict().items() if _ATTENTION not in name}
    new.load_state_dict(kept, strict=False)
    for old_stack, new_stack in zip(stacks_of(model), stacks_of(new), strict=True):
        for old, other, order in zip(old_stack.layers, new_stack.layers, orders[old_stack.side], strict=True):
            modules = cast(Any, old).self_attn.named_modules()
            parts = [(name, module, part) for name, module in modules for part in ("weight", "bias")]
            weights = {f"{name}.{part}": getattr(module, part, None) for name, module, part in parts}
            cast(Any, other).self_attn.load_vanilla(weights, order)
    if model.can_generate():
        new.generation_config = copy.deepcopy(model.generation_config)
    return cast(Any, new).to(device=model.device, dtype=model.dtype).train(model.training)


def stacks_of(model: nn.Module) -> list[SynthesizerStack]:
    """The stacks of a model, the encoder first."""
    return [module for module in model.modules() if isinstance(module, SynthesizerStack)]


def _orders(model: SynthesizerPreTrainedModel, heads: Heads | None) -> dict[str, list[list[int]]]:
    """For each side and layer the order of the heads."""
    count, orders = model.config.num_heads, dict[str, list[list[int]]]()
    for stack in stacks_of(model):
        mine: Any = heads.get(stack.side) if isinstance(heads, Mapping) else heads
        order = [[*range(count)]] * len(stack.layers) if mine is None else [list(map(int, each)) for each in mine]
        if len(order) != len(stack.layers) or any(sorted(each) != [*range(count)] for each in order):
            raise ValueError(
                f"got heads {mine!r} for the {len(stack.layers)} layers of the {stack.side}; expected for each a "
                f"permutation of 0 … {count - 1}"
            )
        if stack.relative_attention_bias is not None and any(each != sorted(each) for each in order):
            raise ValueError(
                f"got heads {mine!r} with relative positions; expected the heads as they are, since all layers share "
                "one bias; groups of heads may come in any order: vanilla:2/random:1/vanilla:1"
            )
        unit = model.config.group_size
        if any(each[i] // unit != each[i - i % unit] // unit for each in order for i in range(count)):
            raise ValueError(f"got heads {mine!r}; expected the {unit} heads that share a value one after the other")
        orders[stack.side] = order
    return orders
