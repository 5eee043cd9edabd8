"""Which heads of a model to replace, and the model with these replaced.

Shape legend: B batch, H heads, T queries (rows), S keys (columns), K width of a head.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any, NamedTuple, cast

import torch
from tqdm import tqdm  # type: ignore[import-untyped]

from synthetic_attention.conversion.synthesize import synthesize
from synthetic_attention.logits import shared_product
from synthetic_attention.models import SynthesizerPreTrainedModel

from ..attention.layers import AttentionLayer, Batch, attention_layers, hooked, mean_loss
from ..errors import UserError

# A share of all heads, or shares by stack: "encoder" and "decoder".
Budget = float | Mapping[str, float]
_ALL = "all"
# A round replaces at most 1 / _ROUNDS of the budget, at least one head or layer; it measures all that are left.
_ROUNDS = 4


class Head(NamedTuple):
    """A head of self-attention: the number of its layer over both stacks, and its own, from 0."""

    layer: int
    head: int


def choose_heads(
    model: SynthesizerPreTrainedModel, fitted: SynthesizerPreTrainedModel, batches: Sequence[Batch], budget: Budget
) -> tuple[list[Head], dict[Head, float]]:
    """Heads of `model` to replace by those of `fitted`, and by how much each head alone raises the loss.

    A round measures the loss with each candidate replaced that is left, besides those chosen so far, and chooses those
    that raise it least for each of their heads. Equal losses are ordered by layer and head.

    Candidates are single heads (or those that share a value), but all heads of a layer in a causal stack: as long as a
    layer has one vanilla head, it projects queries and caches keys, and generation gets no faster.

    Args:
        budget: the share of the heads to replace, of all or by stack, rounded to whole heads; never more.

    Raises:
        UserError: see `allowed_heads`.
    """
    layers, room = attention_layers(model), allowed_heads(model, budget)
    most, chosen, left = math.ceil(sum(room.values()) / _ROUNDS), list[Head](), list[tuple[Head, ...]]()
    for index, layer in enumerate(layers):
        count = layer.module.num_heads
        unit = count if layer.is_causal else layer.module.group_size
        left += [tuple(Head(index, first + n) for n in range(unit)) for first in range(0, count, unit)]
    before = current = mean_loss(model, batches)

    @functools.cache
    def loss_with(*heads: Head) -> float:
        return _loss_with(model, fitted, heads, batches)

    def space(heads: Sequence[Head]) -> bool:
        return len(heads) <= room.get(_place(layers[heads[0].layer], budget), 0)

    alone = {head: loss_with(head) for heads in left for head in heads}
    with tqdm(total=sum(room.values()), desc="choosing heads", unit="head", disable=None, leave=False) as bar:
        while left := [heads for heads in left if space(heads)]:
            rises = {heads: (loss_with(*chosen, *heads) - current) / len(heads) for heads in left}
            end = len(chosen) + most
            for position, heads in enumerate(sorted(left, key=lambda heads: (rises[heads], heads))):
                if position and len(chosen) + len(heads) > end:
                    break
                if space(heads):
                    room[_place(layers[heads[0].layer], budget)] -= len(heads)
                    left.remove(heads)
                    chosen.extend(heads)
                    bar.update(len(heads))
            current = loss_with(*chosen)
    return chosen, {head: loss - before for head, loss in alone.items()}


def allowed_heads(model: SynthesizerPreTrainedModel, budget: Budget) -> dict[str, int]:
    """How many heads a budget allows to replace: by stack, or with one number "all"; half a head counts as one.

    Raises:
        UserError: a share for a stack that the model lacks, or too small for any candidate.
    """
    layers, room = attention_layers(model), dict[str, int]()
    for name, share in budget.items() if isinstance(budget, Mapping) else [(_ALL, budget)]:
        mine = [layer for layer in layers if _place(layer, budget) == name]
        if not mine:
            stacks = ", ".join(dict.fromkeys(layer.stack for layer in layers))
            raise UserError(f"got --budget for {name!r}; expected one number, or shares of: {stacks}")
        count = sum(layer.module.num_heads for layer in mine)
        room[name] = math.floor(share * count + 0.5)
        module, is_decoder = mine[0].module, all(layer.is_causal for layer in mine)
        least = module.num_heads if is_decoder else module.group_size
        if share and room[name] < least:
            raise UserError(
                f"got --budget {budget}, {room[name]} of {count} heads ({name}); expected enough for {least}: a "
                "decoder's heads are replaced a layer at a time, and those that share a value together"
            )
    return room


def _place(layer: AttentionLayer, budget: Budget) -> str:
    """The part of the budget that a layer belongs to."""
    return layer.stack if isinstance(budget, Mapping) else _ALL


@torch.no_grad()
def _loss_with(model: Any, other: Any, heads: Iterable[Head], batches: Iterable[Batch]) -> float:
    """The mean loss of `model` with the attention weights of `other` in some heads; infinite if not a number."""
    layers, others = attention_layers(model), attention_layers(other)
    chosen: list[list[int]] = [[] for _ in layers]
    for head in heads:
        chosen[head.layer].append(head.head)

    def visit(index: int, args: Sequence[Any], output: Any) -> Any:
        mine, layer, (y, weights) = chosen[index], layers[index].module, output
        if mine:
            changed = cast(Any, others[index].module)(*args, need_weights=True)[1]
            replaced = torch.zeros_like(weights)
            replaced[:, mine] = (changed - weights)[:, mine]
            values = layer.v_proj(args[0]).unflatten(-1, (-1, layer.head_dim)).transpose(1, 2)
            y = y + shared_product(replaced, values).transpose(1, 2).flatten(2) @ layer.out_proj.weight.T
        return y, weights[:0]

    with hooked(layers, visit):
        loss = mean_loss(model, batches, need_weights=True)
    return math.inf if math.isnan(loss) else loss


@torch.no_grad()
def replace_heads(
    model: SynthesizerPreTrainedModel, fitted: SynthesizerPreTrainedModel, name: str, heads: Sequence[Head]
) -> SynthesizerPreTrainedModel:
    """A new model: `model` with some heads of `fitted`, which has the function `name` in all.

    The replaced heads of a layer come first and are one group. Where all layers share T5's relative position bias, the
    heads stay in their places, in as many groups as that takes.
    """
    layers = attention_layers(model)
    names: dict[str, list[str]] = {layer.stack: [] for layer in layers}
    orders: dict[str, list[list[int]]] = {layer.stack: [] for layer in layers}
    for index, layer in enumerate(layers):
        replaced = {head.head for head in heads if head.layer == index}
        order = [*range(layer.module.num_heads)]
        if layer.bias is None:
            order.sort(key=lambda head: head not in replaced)
        functions = groupby(name if head in replaced else "vanilla" for head in order)
        groups = [(function, len([*group])) for function, group in functions]
        names[layer.stack].append("/".join(f"{function}:{count}" for function, count in groups))
        if len(groups) == 1:
            names[layer.stack][-1] = groups[0][0]
        orders[layer.stack].append(order)
    synthesizer: Any = names if model.config.is_encoder_decoder else names[layers[0].stack]
    if len(different := {each for mine in names.values() for each in mine}) == 1:
        (synthesizer,) = different
    new = synthesize(model, synthesizer, orders, synthesizer_options={})
    for layer, other in zip(attention_layers(new), attention_layers(fitted), strict=True):
        order = orders[layer.stack][layer.number - 1]
        for places, function in cast(Any, layer.module).function.groups():
            if function.name == name:
                _copy_heads(cast(Any, other.module).function, function, order[places])
    return new


def _copy_heads(old: Any, new: Any, heads: Sequence[int]) -> None:
    """Copy the parameters of some heads. Projections have K rows for each head, other tensors one entry."""
    for part, target in new.named_parameters():
        source = old.get_parameter(part)
        if "proj." in part:
            source = source.unflatten(0, (-1, target.shape[0] // len(heads)))
        target.copy_(source[list(heads)].reshape(target.shape))
