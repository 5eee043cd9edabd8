"""The functions `random` and `dense` that come nearest to the attention of a model on a text.

A head of `random` gets the logarithm of its mean attention, one of `dense` a regression on the layer's input.

Shape legend: B batch, H heads, T queries (rows), S keys (columns), N longest sequence of the text, M maximum length,
K hidden features of `dense`, one more with a bias.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn import functional as F

from .layers import Batch, attention_layers, hooked, real_rows, run

FUNCTIONS = ("random", "dense")
# Attention below these weights counts as this much: in R, and where squared errors of logits are minimized.
_LOWEST, _LOWEST_FITTED = 1e-9, 1e-4
# The regression has a matrix for at most so many lengths of rows.
_GROUPS = 64
_RIDGE = 1e-3
_SCALINGS = 200
_SWEEPS = 50


class AttentionSums:
    """Sums over the attention weights and the inputs of a layer, which the functions are made from.

    Args:
        heads: H.
        length: N.
        features: K.
    """

    def __init__(self, heads: int, length: int, is_causal: bool, features: int) -> None:
        self.is_causal, self.length, self.stride = is_causal, length, -(-length // _GROUPS)
        double: Any = {"dtype": torch.float64}
        self.lengths = torch.zeros(length + 1, dtype=torch.long)
        self.weights = torch.zeros(heads, length, length, **double)
        self.products = torch.zeros(length // self.stride + 1, heads, features, features, **double)
        self.targets = torch.zeros(heads, length, features, **double)

    def add(self, weights: Tensor, real: Tensor, features: Tensor, bias: Tensor | None = None) -> None:
        """Add a batch.

        In the regression of log weights, minus a bias, a row counts for the columns that it sees, up to a multiple of
        the stride.

        Args:
            weights: (B, H, T, T), zeros at padded rows and columns.
            real: (B, T), the real tokens.
            features: (B, H, T, K).
            bias: (H, T, T), which is added to the logits.
        """
        size, positions = weights.shape[-1], torch.arange(weights.shape[-1], device=weights.device)
        self.lengths += real.sum(1).cpu().bincount(minlength=len(self.lengths))
        self.weights[:, :size, :size] += weights.sum(0).cpu().double()
        # (B, T): the groups of columns that a row sees.
        seen = positions.expand_as(real) + 1 if self.is_causal else real.sum(1, keepdim=True).expand_as(real)
        groups = seen.where(real, 0) // self.stride
        visible = (positions < groups[..., None] * self.stride)[:, None]
        logits = weights.clamp_min(_LOWEST_FITTED).log()
        logits = (logits if bias is None else logits - bias) * visible
        logits = (logits - logits.sum(-1, keepdim=True) / visible.sum(-1, keepdim=True).clamp_min(1)) * visible
        features = features * (groups > 0)[:, None, :, None]
        self.targets[:, :size] += torch.einsum("bhtk,bhts->hsk", features, logits).cpu().double()
        # All rows of a position (causal) or of a sequence see equally many columns.
        pattern = "bhtk,bhtl->thkl" if self.is_causal else "bhtk,bhtl->bhkl"
        products = torch.einsum(pattern, features, features).cpu().double()
        self.products.index_add_(0, groups.amax(0 if self.is_causal else 1).cpu(), products)

    def pairs(self) -> Tensor:
        """(N, N): the number of sequences in which a row sees a column."""
        longer = self.lengths.flip(0).cumsum(0).flip(0)[1:]
        positions = torch.arange(self.length)
        pairs = longer[torch.maximum(positions[:, None], positions)]
        return pairs.tril() if self.is_causal else pairs

    def ratios(self) -> Tensor:
        """(H, N, N): weights, relative to uniform ones, with which a row attends most nearly as in the text.

        Rows divided by their sum over the columns of a sequence are its weights. Where a row sees the same columns in
        all sequences, these are the mean weights. Otherwise iterations find those whose sums over the text are the
        given ones, which have the smallest KL divergence.
        """
        positions, pairs = torch.arange(self.length), self.pairs()
        seen = pairs > 0
        # Sequences of 1 … N tokens; row i is in those of more than i.
        counts = self.lengths[1:] * (positions >= positions[:, None])
        if self.is_causal:
            counts = torch.diag(pairs.diagonal())
        ratios = seen.double().expand_as(self.weights)
        for _ in range(1 if self.is_causal else _SCALINGS):
            sums = (counts / ratios.cumsum(-1).clamp_min(_LOWEST)).flip(-1).cumsum(-1).flip(-1)
            # In row i, a column before it is seen by all sequences that have the row.
            before, ratios = ratios, torch.where(seen, self.weights / sums.clamp_min(_LOWEST), 0.0)
            if torch.allclose(ratios, before, rtol=1e-4, atol=1e-8):
                break
        return ratios * seen.sum(-1, keepdim=True) / ratios.sum(-1, keepdim=True).clamp_min(_LOWEST)

    def scores(self, max_length: int) -> Tensor:
        """R (H, M, M): the log of `ratios`; positions that the text does not have get the mean at their distance."""
        ratios, pairs, cut = self.ratios(), self.pairs(), min(self.length, max_length)
        positions = torch.arange(max(self.length, max_length))
        distance = (positions - positions[:, None]).clamp(1 - self.length, self.length - 1) + self.length - 1
        # By distance, from 1 − N on; 1 where nothing is seen.
        index = distance[: self.length, : self.length].flatten()
        sums = ratios.new_zeros(len(ratios), 2 * self.length - 1).index_add_(1, index, (ratios * pairs).flatten(1))
        counts = sums.new_zeros(sums.shape[1]).index_add_(0, index, pairs.double().flatten())
        means = torch.where(counts > 0, sums / counts.clamp_min(1), 1.0)
        table = means[:, distance[:max_length, :max_length]]
        table[:, :cut, :cut] = torch.where((pairs > 0)[:cut, :cut], ratios[:, :cut, :cut], table[:, :cut, :cut])
        return table.clamp_min(_LOWEST).log()

    def regression(self) -> Tensor:
        """(H, N, K): the weights, and last the bias, with the smallest squared error of centred log attention."""
        # Column s is seen by the rows of more than s // stride groups.
        products = self.products.flip(0).cumsum(0).flip(0)[1:]
        products = products.repeat_interleave(self.stride, 0)[: self.length]
        columns, _, features, _ = products.shape
        mean = products.diagonal(dim1=-2, dim2=-1).mean(-1)
        ridge = torch.eye(features, dtype=products.dtype) * (_RIDGE * mean.clamp_min(1e-6))[..., None, None]
        fitted = torch.linalg.solve(products + ridge, self.targets[:, :columns].transpose(0, 1))
        return F.pad(fitted.transpose(0, 1), (0, 0, 0, self.length - columns))


@torch.no_grad()
def fit(model: Any, batches: Sequence[Batch]) -> dict[str, Any]:
    """For each of `FUNCTIONS` a model with it in all heads, nearest to the attention of `model`, whose weights it has.

    The hidden layer of `dense` is drawn.

    Args:
        model: a model with attention of any kind but the baselines, in eval mode; with any head, or without one.
    """
    made, layers = {name: _with_function(model, name) for name in FUNCTIONS}, attention_layers(model)
    random, dense = ([cast(Any, layer.module).function for layer in attention_layers(made[name])] for name in FUNCTIONS)
    sums = []
    for layer, function in zip(layers, dense, strict=True):
        is_target = layer.is_causal and model.config.is_encoder_decoder
        names = ("labels", "decoder_input_ids") if is_target else ("input_ids",)
        length = max(batch[name].shape[1] for batch in batches for name in names if name in batch)
        features = layer.module.head_dim + (function.q_proj.bias is not None)
        sums.append(AttentionSums(layer.module.num_heads, length, layer.is_causal, features))

    def visit(index: int, args: Sequence[Any], output: Any) -> Any:
        projection, (y, weights) = dense[index].q_proj, output
        hidden = projection(args[0]).relu().unflatten(-1, (weights.shape[1], -1)).transpose(1, 2)
        if projection.bias is not None:
            hidden = F.pad(hidden, (0, 1), value=1.0)
        sums[index].add(weights, real_rows(args), hidden, args[2])
        # The model would keep the weights of all layers.
        return y, weights[:0]

    with hooked(layers, visit):
        for batch in batches:
            run(model, batch, need_weights=True)
    for layer, found, of_position, of_token in zip(layers, sums, random, dense, strict=True):
        scores = found.scores(of_position.max_length)
        if layer.bias is not None:
            # T5's relative position bias is added to the logits of each layer.
            positions = torch.arange(of_position.max_length, device=layer.bias.weight.device)
            scores -= layer.bias(positions, positions).cpu()
        of_position.table.copy_(scores)
        fitted = F.pad(found.regression(), (0, 0, 0, of_token.max_length - found.length))
        of_token.key.copy_(fitted[..., : of_token.key.shape[-1]])
        if of_token.key_bias is not None:
            of_token.key_bias.copy_(fitted[..., -1])
    return made


@torch.no_grad()
def factorize(fitted: Any) -> Any:
    """A model with `factorized_random` in all heads, for one with `random`: the R₁R₂ᵀ nearest to R.

    R counts without what softmax ignores, a row's mean and the future, and small weights count as much as
    `_LOWEST_FITTED`. Without a future the factors are the singular vectors, else alternating least squares.
    """
    made = _with_function(fitted, "factorized_random")
    for layer, other in zip(attention_layers(fitted), attention_layers(made), strict=True):
        factors, table = cast(Any, other.module).function, cast(Any, layer.module).function.table.double()
        seen = torch.ones_like(table[0])
        seen = seen.tril() if layer.is_causal else seen
        table = table.masked_fill(seen == 0, -torch.inf)
        table = (table - table.logsumexp(-1, keepdim=True)).clamp_min(math.log(_LOWEST_FITTED)) * seen
        table = (table - table.sum(-1, keepdim=True) / seen.sum(-1, keepdim=True)) * seen
        left, values, right = torch.linalg.svd(table, full_matrices=False)
        rank = min(factors.row_factor.shape[-1], values.shape[-1])
        scale = values[:, None, :rank].sqrt()
        rows, keys = left[..., :rank] * scale, right.mT[..., :rank] * scale
        for _ in range(_SWEEPS if layer.is_causal else 0):
            rows = _least_squares(table, seen, keys)
            keys = _least_squares(table.mT, seen.T, rows)
        for factor, found in ((factors.row_factor, rows), (factors.key_factor, keys)):
            factor.copy_(F.pad(found, (0, factor.shape[-1] - rank)))
    return made


def _least_squares(table: Tensor, seen: Tensor, keys: Tensor) -> Tensor:
    """(H, T, r): the rows whose products with `keys` (H, S, r) are nearest to `table` (H, T, S) where it is seen."""
    products = torch.einsum("ts,hsk,hsl->htkl", seen, keys, keys)
    # Of all solutions of a short row the smallest.
    ridge = 1e-6 * keys.square().mean().clamp_min(1e-6) * torch.eye(keys.shape[-1], dtype=keys.dtype)
    return torch.linalg.solve(products + ridge.to(keys.device), table @ keys)


def _with_function(model: Any, name: str) -> Any:
    """A model with a new function in all layers, and the other weights of `model`."""
    config = type(model.config).from_dict({**model.config.to_dict(), "synthesizer": name, "synthesizer_options": {}})
    new = type(model)(config)
    kept = {key: value for key, value in model.state_dict().items() if ".self_attn.function." not in key}
    new.load_state_dict(kept, strict=False)
    return new.to(device=model.device, dtype=model.dtype).eval()


@torch.no_grad()
def measure_divergences(model: Any, fitted: Mapping[str, Any], batches: Iterable[Batch]) -> list[dict[str, Tensor]]:
    """For each layer KL(A ‖ A') of its heads (H,) in nats, for the attention A' of each of the `fitted` models.

    "uniform" are equal weights of all visible keys. Means over the rows with more than one visible key.
    """
    layers = attention_layers(model)
    others = {name: attention_layers(each) for name, each in fitted.items()}
    heads = model.config.num_heads
    sums = [{name: torch.zeros(heads, dtype=torch.float64) for name in ("uniform", *others)} for _ in layers]
    rows = [0] * len(layers)

    def visit(index: int, args: Sequence[Any], output: Any) -> Any:
        real, (y, weights) = real_rows(args), output
        visible = real[:, None, :] & real[:, :, None]
        keys = (visible.tril() if layers[index].is_causal else visible).sum(-1)
        counted = (keys > 1)[:, None]
        own = torch.xlogy(weights, weights).sum(-1)
        found = {"uniform": own + keys.clamp_min(1).log()[:, None]}
        for name in others:
            changed = cast(Any, others[name][index].module)(*args, need_weights=True)[1]
            found[name] = own - torch.xlogy(weights, changed.clamp_min(1e-30)).sum(-1)
        for name, values in found.items():
            sums[index][name] += (values * counted).sum((0, 2)).cpu().double()
        rows[index] += int(counted.sum())
        return y, weights[:0]

    with hooked(layers, visit):
        for batch in batches:
            run(model, batch, need_weights=True)
    return [
        {name: (value / max(count, 1)).clamp_min(0) for name, value in found.items()}
        for count, found in zip(rows, sums, strict=True)
    ]


def explained(divergences: Mapping[str, Tensor]) -> list[dict[str, float]]:
    """For each head the shares of the divergence from uniform attention that the `FUNCTIONS` explain, at most 1."""
    uniform = divergences["uniform"].clamp_min(1e-12)
    shares = {f"explained_by_{name}": (1 - divergences[name] / uniform).tolist() for name in FUNCTIONS}
    return [dict(zip(shares, values, strict=True)) for values in zip(*shares.values(), strict=True)]
