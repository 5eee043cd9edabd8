"""What replacing the heads of a model costs, and which to replace.

Shape legend: B batch, H heads, T queries (rows), S keys (columns), K width of a head.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, cast

import torch
from torch import Tensor

from synthetic_attention.conversion.synthesize import synthesize
from synthetic_attention.models import SynthesizerPreTrainedModel
from synthetic_attention.models.loss import IGNORED

from ..errors import UserError
from ..inspect.collect import AttentionLayer, attention_layers
from .calibrate import Batch, hooked, real_rows, run

__all__ = [
    *("Budget", "Choice", "Granularity", "Head", "HeadCosts", "allowed_heads", "choose_heads"),
    *("mean_loss", "measure_heads", "replace_heads"),
]

# A share of all heads, or shares by stack: "encoder" and "decoder".
Budget = float | Mapping[str, float]
Granularity = Literal["head", "layer"]
_ALL = "all"
# In so many rounds at least, each of which measures all heads that are left.
_ROUNDS = 4


class Head(NamedTuple):
    """A head of self-attention: the number of its layer over both stacks, and its own, from 0."""

    layer: int
    head: int


class Choice(NamedTuple):
    """Heads to replace, in the order of their choice; and of every head what replacing it alone adds to the loss."""

    heads: list[Head]
    increases: dict[Head, float]


@dataclass
class HeadCosts:
    """What replacing each head (H,) of a layer costs, means over the rows of a text with more than one visible key.

    Attributes:
        divergence: by function KL(A ‖ A'), of the attention A and that of the function, in nats; "uniform" for equal
            weights of all visible keys.
        error: by function the norm of the change of the layer's output if this head alone is replaced, relative to the
            norm of the output.
    """

    divergence: dict[str, Tensor] = field(default_factory=dict)
    error: dict[str, Tensor] = field(default_factory=dict)

    def explained(self, name: str) -> Tensor:
        """(H,) the share of the divergence from uniform attention that a function explains, at most 1."""
        return 1 - self.divergence[name] / self.divergence["uniform"].clamp_min(1e-12)


def mean_loss(model: Any, batches: Iterable[Batch], need_weights: bool = False) -> float:
    """The loss per label, in nats; per number of a regression; NaN without labels."""
    total, count = 0.0, 0
    with torch.no_grad():
        for batch in batches:
            labels = batch["labels"]
            total += float(run(model, batch, need_weights).loss)
            count += labels.numel() if labels.is_floating_point() else int((labels != IGNORED).sum())
    return total / count if count else math.nan


@torch.no_grad()
def measure_heads(
    model: SynthesizerPreTrainedModel, fitted: Mapping[str, SynthesizerPreTrainedModel], batches: Iterable[Batch]
) -> list[HeadCosts]:
    """What replacing each head by that of a `fitted` model costs, for each layer, by the name of the function."""
    layers = attention_layers(model)
    others = {name: attention_layers(each) for name, each in fitted.items()}
    sums: list[dict[Any, Any]] = [{} for _ in layers]

    def visit(number: int, args: Sequence[Any], output: Any) -> Any:
        real, (y, weights) = real_rows(layers[number], args), output
        visible = _visible(layers[number], real)
        rows = visible.sum(-1) > 1
        counted, found = rows[:, None].expand(weights.shape[:3]), sums[number]
        own = torch.xlogy(weights, weights).sum(-1)

        def add(key: Any, values: Tensor) -> None:
            found[key] = found.get(key, 0) + values.cpu().double()

        add("rows", rows.sum())
        add("output", (y * rows[..., None]).square().sum())
        add(("divergence", "uniform"), ((own + visible.sum(-1).clamp_min(1).log()[:, None]) * counted).sum((0, 2)))
        for name in others:
            changed = cast(Any, others[name][number].module)(*args, need_weights=True)[1]
            divergence = own - torch.xlogy(weights, changed.clamp_min(1e-30)).sum(-1)
            add(("divergence", name), (divergence * counted).sum((0, 2)))
            heads, norm = _changes(layers[number], args[0], changed - weights), _output_products(layers[number])
            add(("error", name), torch.einsum("bhtk,hkl,bhtl,bt->h", heads, norm, heads, rows.to(heads.dtype)))
        return y, weights[:0]

    with hooked(layers, visit):
        for batch in batches:
            run(model, batch, need_weights=True)
    costs = []
    for found in sums:
        each = HeadCosts()
        for key, value in found.items():
            if key[0] == "divergence":
                each.divergence[key[1]] = (value / found["rows"].clamp_min(1)).clamp_min(0)
            elif key[0] == "error":
                each.error[key[1]] = (value / found["output"].clamp_min(1e-30)).clamp_min(0).sqrt()
        costs.append(each)
    return costs


def _visible(layer: AttentionLayer, real: Tensor) -> Tensor:
    """(B, T, S) bool: the keys that each row sees; none of a padded row."""
    visible = real[:, None, :] & real[:, :, None]
    return visible.tril() if layer.is_causal else visible


def _changes(layer: AttentionLayer, x: Tensor, weights: Tensor) -> Tensor:
    """weights (B, H, T, S) times the values of x (B, S, d_model): (B, H, T, K)."""
    values: Tensor = layer.module.v_proj(x)
    return weights @ values.unflatten(-1, (layer.module.num_heads, -1)).transpose(1, 2)


def _output_products(layer: AttentionLayer) -> Tensor:
    """(H, K, K): z·product·z is the squared norm of what a head's z adds to the output."""
    weight = layer.module.out_proj.weight.unflatten(1, (layer.module.num_heads, -1))
    return torch.einsum("dhk,dhl->hkl", weight, weight)


@torch.no_grad()
def _loss_with(
    model: SynthesizerPreTrainedModel,
    other: SynthesizerPreTrainedModel,
    heads: Iterable[Head],
    batches: Iterable[Batch],
) -> float:
    """The mean loss of `model` with the attention weights of `other` in some heads; infinite if not a number."""
    layers, others = attention_layers(model), attention_layers(other)
    chosen: list[list[int]] = [[] for _ in layers]
    for head in heads:
        chosen[head.layer].append(head.head)

    def visit(number: int, args: Sequence[Any], output: Any) -> Any:
        mine, (y, weights) = chosen[number], output
        if mine:
            changed = cast(Any, others[number].module)(*args, need_weights=True)[1]
            replaced = torch.zeros_like(weights)
            replaced[:, mine] = (changed - weights)[:, mine]
            joined = _changes(layers[number], args[0], replaced).transpose(1, 2).flatten(2)
            y = y + joined @ layers[number].module.out_proj.weight.T
        return y, weights[:0]

    with hooked(layers, visit):
        loss = mean_loss(model, batches, need_weights=True)
    return math.inf if math.isnan(loss) else loss


def choose_heads(
    model: SynthesizerPreTrainedModel,
    fitted: SynthesizerPreTrainedModel,
    batches: Sequence[Batch],
    *,
    budget: Budget | None = None,
    max_loss_increase: float | None = None,
    granularity: Granularity | None = None,
    progress: Callable[[int], object] = lambda replaced: None,
) -> Choice:
    """Heads of `model` to replace by those of `fitted`, chosen greedily.

    A round measures the loss with each candidate replaced that is left, besides those chosen so far, and chooses those
    that raise it least for each of their heads. Equal losses are ordered by layer and head.

    Args:
        budget: the share of the heads to replace, of all or by stack, rounded to whole heads; never more.
        max_loss_increase: how much larger the mean loss on `batches` may get, instead of `budget`.
        granularity: candidates are single heads, or all heads of a layer. By default layers of a causal stack: as long
            as a layer has one vanilla head, it projects queries and caches keys, and generation gets no faster.
        progress: called with the number of heads chosen so far.

    Raises:
        UserError: see `allowed_heads`.
    """
    left = _candidates(model, granularity)
    room, chosen = allowed_heads(model, budget, granularity), list[Head]()
    most = sum(room.values())
    stacks = [layer.stack if isinstance(budget, Mapping) else _ALL for layer in attention_layers(model)]

    def loss_with(heads: Sequence[Head]) -> float:
        return _loss_with(model, fitted, [*chosen, *heads], batches)

    before = current = mean_loss(model, batches)
    alone = {head: loss_with([head]) for heads in left for head in heads}
    choice = Choice(chosen, {head: loss - before for head, loss in alone.items()})
    limit = math.inf if max_loss_increase is None else before + max_loss_increase
    while left := [heads for heads in left if len(heads) <= room[stacks[heads[0].layer]]]:
        losses = {heads: alone[heads[0]] if len(heads) == 1 and not chosen else loss_with(heads) for heads in left}
        # A layer may cost too much where a single head of another one does not.
        left = [heads for heads in left if losses[heads] <= limit]
        left.sort(key=lambda heads: ((losses[heads] - current) / len(heads), heads))
        taken = _first(left, -(-most // _ROUNDS), room, stacks)
        # Fewer at once where together they cost too much.
        while len(taken) > 1 and max_loss_increase is not None and loss_with([*itertools.chain(*taken)]) > limit:
            taken = taken[: len(taken) // 2]
        for heads in taken:
            room[stacks[heads[0].layer]] -= len(heads)
            left.remove(heads)
            chosen.extend(heads)
        current = loss_with([])
        progress(len(chosen))
    return choice


def _candidates(model: SynthesizerPreTrainedModel, granularity: Granularity | None) -> list[tuple[Head, ...]]:
    """The heads that are replaced together."""
    found: list[tuple[Head, ...]] = []
    for number, layer in enumerate(attention_layers(model)):
        heads = [Head(number, head) for head in range(layer.module.num_heads)]
        whole = layer.is_causal if granularity is None else granularity == "layer"
        found += [tuple(heads)] if whole else [(head,) for head in heads]
    return found


def _first(
    candidates: Sequence[tuple[Head, ...]], count: int, room: Mapping[str, int], stacks: Sequence[str]
) -> list[tuple[Head, ...]]:
    """The first candidates that have together up to `count` heads, at least one of them, and fit into `room`."""
    found, rest = list[tuple[Head, ...]](), dict(room)
    for heads in candidates:
        stack = stacks[heads[0].layer]
        if found and sum(map(len, found)) + len(heads) > count:
            break
        if len(heads) <= rest[stack]:
            rest[stack] -= len(heads)
            found.append(heads)
    return found


def allowed_heads(
    model: SynthesizerPreTrainedModel, budget: Budget | None, granularity: Granularity | None = None
) -> dict[str, int]:
    """How many heads a budget allows to replace: by stack, or with one number "all"; half a head counts as one.

    Raises:
        UserError: a share that is not in 0 … 1 or for a stack that the model lacks, or too small for any candidate.
    """
    heads: dict[str, int] = {}
    for layer in attention_layers(model):
        heads[layer.stack] = heads.get(layer.stack, 0) + layer.module.num_heads
    if isinstance(budget, Mapping):
        if unknown := [name for name in budget if name not in heads]:
            raise UserError(f"got --budget for {unknown[0]!r}; expected one number, or shares of: {', '.join(heads)}")
        shares = {stack: budget.get(stack, 0.0) for stack in heads}
    else:
        shares, heads = {_ALL: 1.0 if budget is None else budget}, {_ALL: sum(heads.values())}
    room = {stack: math.floor(share * heads[stack] + 0.5) for stack, share in shares.items()}
    layers, candidates = attention_layers(model), _candidates(model, granularity)
    sizes = {name: [len(c) for c in candidates if name in (_ALL, layers[c[0].layer].stack)] for name in room}
    for stack, share in shares.items():
        if share and room[stack] < (least := min(sizes[stack])):
            enough = "one head" if least == 1 else f"the {least} heads of a layer, or --granularity head"
            raise UserError(
                f"got --budget {budget}, {room[stack]} of {heads[stack]} heads ({stack}); expected enough for {enough}"
            )
    return room


@torch.no_grad()
def replace_heads(
    model: SynthesizerPreTrainedModel, fitted: SynthesizerPreTrainedModel, name: str, heads: Iterable[Head]
) -> SynthesizerPreTrainedModel:
    """A new model: `model` with some heads of `fitted`, which has the function `name` in all.

    The replaced heads of a layer come first and are one group. Where all layers share T5's relative position bias, the
    heads stay in their places, in as many groups as that takes.
    """
    layers, others = attention_layers(model), attention_layers(fitted)
    names: dict[str, list[str]] = {layer.stack: [] for layer in layers}
    orders: dict[str, list[list[int]]] = {layer.stack: [] for layer in layers}
    for number, layer in enumerate(layers):
        replaced = {head.head for head in heads if head.layer == number}
        order = [*range(layer.module.num_heads)]
        if layer.bias is None:
            order.sort(key=lambda head: head not in replaced)
        names[layer.stack].append(_groups([name if head in replaced else "vanilla" for head in order]))
        orders[layer.stack].append(order)
    synthesizer: Any = names if model.config.is_encoder_decoder else names[layers[0].stack]
    if len(different := {each for mine in names.values() for each in mine}) == 1:
        (synthesizer,) = different
    new = synthesize(model, synthesizer, orders, synthesizer_options=fitted.config.synthesizer_options)
    for layer, other in zip(attention_layers(new), others, strict=True):
        order = orders[layer.stack][layer.number - 1]
        for places, function in cast(Any, layer.module).function.groups():
            if function.name == name:
                _copy_heads(cast(Any, other.module).function, function, order[places])
    return new


def _groups(functions: Sequence[str]) -> str:
    """The synthesizer of a layer with these functions in its heads."""
    runs: list[tuple[str, int]] = []
    for name in functions:
        runs = [*runs[:-1], (name, runs[-1][1] + 1)] if runs and runs[-1][0] == name else [*runs, (name, 1)]
    return runs[0][0] if len(runs) == 1 else "/".join(f"{name}:{count}" for name, count in runs)


def _copy_heads(old: Any, new: Any, heads: Sequence[int]) -> None:
    """Copy the parameters of some heads. Projections have K rows for each head, other tensors one entry."""
    for part, target in new.named_parameters():
        source = old.get_parameter(part)
        if "proj." in part:
            source = source.unflatten(0, (-1, target.shape[0] // len(heads)))
        target.copy_(source[list(heads)].reshape(target.shape))
