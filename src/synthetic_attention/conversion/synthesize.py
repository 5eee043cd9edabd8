"""Another synthesizer for a trained model: layer by layer, with the weights of its dot-product attention.

Shape legend: H heads, K width of a head.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, nn

from ..attention import SynthesizerAttention
from ..models import SynthesizerPreTrainedModel
from ..models.modeling import SynthesizerStack
from ..synthesizers import SynthesizerOptions, has_logits

_M = TypeVar("_M", bound=SynthesizerPreTrainedModel)
# For each side the order of the heads in each layer.
Orders = Mapping[str, Sequence[Sequence[int]]]
_ATTENTION = ".self_attn."


def synthesize(
    model: _M,
    synthesizer: str | list[str] | dict[str, Any],
    orders: Orders | None = None,
    *,
    synthesizer_options: SynthesizerOptions | None = None,
) -> _M:
    """A new model with another synthesizer in its self-attention, and the weights of `model`, which stays as it is.

    Queries and keys are copied for heads with vanilla only. In a mixture with vanilla the other logits start as zeros,
    so the new model computes what `model` does. The parameters of other functions are drawn as in a new model.

    Args:
        model: a model with `vanilla` in all layers.
        synthesizer: as in `SynthesizerConfig`: a name, a list with one per layer, or {"encoder": …, "decoder": …}.
        orders: by side ("encoder", "decoder") and layer the heads (from 0) in the order that they get in the new model:
            with "random:1/vanilla:3", [2, 0, 1, 3] replaces head 2. By default, and where all layers share T5's
            relative position bias, as they are. Heads that share a value stay together.
        synthesizer_options: options by function; by default those in the configuration.

    Raises:
        ValueError: a model with other layers; a synthesizer that is not known, does not fit or is a baseline.
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
        if unfit := [name for name in config.synthesizers(stack.side) if not has_logits(name)]:
            raise ValueError(
                f"got {unfit[0]!r}; expected functions, mixtures or groups of heads: a baseline has no heads"
            )
    new = type(model)(config)
    kept = {name: tensor for name, tensor in model.state_dict().items() if _ATTENTION not in name}
    new.load_state_dict(kept, strict=False)
    for old_stack, new_stack in zip(stacks_of(model), stacks_of(new), strict=True):
        order = orders[old_stack.side] if orders else [[*range(model.config.num_heads)]] * len(old_stack.layers)
        for old, other, mine in zip(old_stack.layers, new_stack.layers, order, strict=True):
            _copy_attention(cast(Any, old).self_attn, cast(Any, other).self_attn, mine)
    if model.can_generate():
        new.generation_config = copy.deepcopy(model.generation_config)
    return cast(Any, new).to(device=model.device, dtype=model.dtype).train(model.training)


def stacks_of(model: nn.Module) -> list[SynthesizerStack]:
    """The stacks of a model, the encoder first."""
    return [module for module in model.modules() if isinstance(module, SynthesizerStack)]


def _copy_attention(old: SynthesizerAttention, new: SynthesizerAttention, order: Sequence[int]) -> None:
    heads, width = old.num_heads, old.head_dim
    vanilla: Any = old.function
    projections = vanilla.q_proj, vanilla.k_proj, old.v_proj
    for part in ("weight", "bias"):
        inputs: Tensor | None = None
        if getattr(old.v_proj, part) is not None:
            # Heads that share a value stay together.
            shared = [head // old.group_size for head in order[:: old.group_size]]
            orders = order, shared, shared
            given = [getattr(each, part).unflatten(0, (-1, width)) for each in projections]
            inputs = torch.cat([each[order] for each, order in zip(given, orders, strict=True)]).flatten(0, 1)
        output = getattr(old.out_proj, part)
        if part == "weight":
            output = output.unflatten(1, (heads, width))[:, order].flatten(1)
        new.load_part(part, inputs, output)
    new.load_norms(old.function)
