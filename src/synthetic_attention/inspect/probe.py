"""Look into a model: its attention weights for an input, its mixtures' gates, the logits that ignore the input.

Nothing here knows a task, or which of the models it is: a stack of layers is found by its class, attention weights by
the names that Hugging Face gives them.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from transformers import set_seed

from ..attention import SynthesizerAttention
from ..models.blocks import SynthesizerBlock
from ..models.stacks import SynthesizerStack
from ..self_attention import SelfAttention
from ..synthesizers import Span, SynthesizingFunction
from ..synthesizers.mixture import Mixture

if TYPE_CHECKING:
    from transformers import PreTrainedModel

__all__ = [
    "CROSS",
    "AttentionLayer",
    "Descent",
    "attention_weights",
    "descends",
    "descent",
    "initial_model",
    "layers",
    "relative_biases",
]

Array = np.ndarray[Any, np.dtype[Any]]
CROSS = "cross"
# What two independent draws do not reach: a share of equal weights, and a correlation in standard deviations.
_COMMON, _DEVIATIONS = 0.01, 6.0


@dataclass(frozen=True, eq=False)
class AttentionLayer:
    """The self-attention of one layer.

    Attributes:
        stack: "encoder" or "decoder".
        number: counted from 1.
        module: its layer.
        is_causal: whether a row sees only itself and what is before it.
    """

    stack: str
    number: int
    module: SelfAttention
    is_causal: bool

    @property
    def functions(self) -> dict[str, SynthesizingFunction]:
        """What its logits are made of, by name; a function that comes twice is called "random (2)" the second time.

        Nothing in a baseline, which has no logits of that kind.
        """
        if not isinstance(self.module, SynthesizerAttention):
            return {}
        function = self.module.function
        parts = list(function.parts) if isinstance(function, Mixture) else [function]
        found: dict[str, SynthesizingFunction] = {}
        for part in cast(list[SynthesizingFunction], parts):
            again = sum(other.name == part.name for other in found.values())
            found[f"{part.name} ({again + 1})" if again else part.name] = part
        return found

    def gates(self) -> Array | None:
        """α (components, H or 1), in the order of `functions`; None where nothing is mixed, or by a plain sum."""
        function = self.module.function if isinstance(self.module, SynthesizerAttention) else None
        weights = function.weights() if isinstance(function, Mixture) else None
        return None if weights is None else _array(weights)

    def tables(self, length: int) -> dict[str, Array]:
        """R (H, length, length) of each function whose logits ignore the input: R, or R₁R₂ᵀ."""
        return {
            name: _array(function((), Span(length, length), None).dense(length))
            for name, function in self.functions.items()
            if not function.projected
        }


def layers(model: nn.Module) -> list[AttentionLayer]:
    """The self-attention layers of a model, those of the encoder first."""
    return list(_layers(model))


def _layers(model: nn.Module) -> Iterator[AttentionLayer]:
    stacks = [module for module in model.modules() if isinstance(module, SynthesizerStack)]
    for stack in sorted(stacks, key=lambda stack: stack.side, reverse=True):
        for number, block in enumerate(stack.layers, start=1):
            assert isinstance(block, SynthesizerBlock)
            yield AttentionLayer(stack.side, number, block.self_attention, block.is_causal)


@torch.inference_mode()
def relative_biases(model: nn.Module) -> dict[str, tuple[Array, Array]]:
    """The biases of relative positions that are added to the logits, by stack; nothing where there are none.

    Returns:
        The distances (D,), key minus query, as far as the biases tell them apart, and the biases (H, D).
    """
    found = {}
    for stack in (module for module in model.modules() if isinstance(module, SynthesizerStack)):
        if (bias := stack.relative_bias) is not None:
            device, far = bias.weight.device, bias.max_distance
            keys = torch.arange(2 * far + 1 if bias.bidirectional else far + 1, device=device)
            biases = bias(torch.tensor([far], device=device), keys)
            found[stack.side] = (_array(keys - far), _array(biases[:, 0]))
    return dict(sorted(found.items(), reverse=True))


@torch.inference_mode()
def attention_weights(model: PreTrainedModel, inputs: Mapping[str, Tensor]) -> dict[str, list[Array]]:
    """The attention weights of each layer for one example.

    Args:
        inputs: arguments of the model, for a batch of one without padding.

    Returns:
        By stack ("encoder", "decoder", and "cross" for cross-attention), the weights (H, T, S) of each layer.
    """
    output = model(**{name: value.to(model.device) for name, value in inputs.items()}, output_attentions=True)
    if getattr(output, "attentions", None) is not None:
        found = {layers(model)[0].stack: output.attentions}
    else:
        found = {
            "encoder": output.encoder_attentions,
            "decoder": output.decoder_attentions,
            CROSS: output.cross_attentions,
        }
    return {name: [_array(weights[0]) for weights in of_layers] for name, of_layers in found.items()}


def initial_model(model: PreTrainedModel, seed: int) -> PreTrainedModel:
    """The model as a run with `seed` started from: built again from the configuration, after the same seed."""
    config = copy.deepcopy(model.config)
    # Of a model that was loaded, this is where its weights came from.
    config._name_or_path = ""
    set_seed(seed)
    return type(model)(config)


@dataclass(frozen=True)
class Descent:
    """Whether a trained model started from another, by the functions whose logits ignore the input.

    Attributes:
        unchanged: share of their weights that are to the last bit the same. All of `fixed_random` are; of the others
            those of positions that no training sequence reached.
        correlation: of the trained ones, before and after.
        certain: whether what is never trained is the same, and of the rest a part is too, or it correlates by more
            than chance. Training adds to the initial weights; two independent draws of n weights have none in common
            and correlate by about 1/√n.
    """

    unchanged: float
    correlation: float | None
    certain: bool


def descent(before: nn.Module, after: nn.Module) -> Descent | None:
    """Whether `after` started as `before`, which is of the same configuration; None where all logits see the input."""
    frozen: list[tuple[Tensor, Tensor]] = []
    trained: list[tuple[Tensor, Tensor]] = []
    for one, other in zip(layers(before), layers(after), strict=True):
        for name, function in one.functions.items():
            if function.projected:
                continue
            found = other.functions[name].state_dict()
            for key, old in function.state_dict(keep_vars=True).items():
                new = found[key]
                (trained if isinstance(old, nn.Parameter) else frozen).append((old.detach().cpu(), new.cpu()))
    if not frozen + trained:
        return None
    return _compare(frozen, trained)


def descends(before: nn.Module, after: nn.Module) -> bool:
    """Whether `after` started as `before`, of the same configuration, judged by all that is drawn at random."""
    ends, trained = after.state_dict(), []
    for name, old in before.named_parameters():
        # The scales of norms are ones at the start of any model, and padding and gates are zeros.
        drawn = old.detach().cpu() != 0
        if old.dim() > 1 and bool(drawn.any()):
            trained.append((old.detach().cpu()[drawn], ends[name].cpu()[drawn]))
    return _compare([], trained).certain


def _compare(frozen: list[tuple[Tensor, Tensor]], trained: list[tuple[Tensor, Tensor]]) -> Descent:
    unchanged, same = _equal_share(frozen + trained), all(torch.equal(old, new) for old, new in frozen)
    if not trained:
        return Descent(unchanged, None, same)
    old, new = (torch.cat([pair[side].flatten().double() for pair in trained]) for side in (0, 1))
    correlation = float(old @ new / (old.norm() * new.norm()))
    descended = _equal_share(trained) > _COMMON or correlation * len(old) ** 0.5 > _DEVIATIONS
    return Descent(unchanged, correlation, same and descended)


def _equal_share(pairs: list[tuple[Tensor, Tensor]]) -> float:
    return sum(int((old == new).sum()) for old, new in pairs) / sum(old.numel() for old, _ in pairs)


def _array(values: Tensor) -> Array:
    return values.detach().float().cpu().numpy()
