"""The parameters of synthesized heads that come nearest to the attention of a model on text.

A head of `random` gets the logarithm of its mean attention, one of `dense` a regression on the layer's input.

Shape legend: B batch, H heads, T queries (rows), S keys (columns), N longest sequence of the text, M maximum length,
K hidden features of `dense`, one more with a bias.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import Tensor, nn

from synthetic_attention.conversion.synthesize import synthesize
from synthetic_attention.models import SynthesizerPreTrainedModel
from synthetic_attention.models.loss import IGNORED
from synthetic_attention.synthesizers import SynthesizerOptions, SynthesizingFunction

from ..errors import UserError
from ..inspect.collect import AttentionLayer, attention_layers

__all__ = ["CALIBRATED", "AttentionSums", "Batch", "calibrate", "fit", "hooked", "real_rows", "run"]

Batch = Mapping[str, Tensor]
# The functions that calibration has parameters for.
CALIBRATED = ("random", "factorized_random", "relative_random", "dense", "factorized_dense")
# Functions of hidden features of a token, by a regression.
_REGRESSED = ("dense", "factorized_dense")
# Attention below these weights counts as this much: in R, and where squared errors of logits are minimized.
_LOWEST, _LOWEST_FITTED = 1e-9, 1e-4
# The regression has a matrix for at most so many lengths of rows.
_GROUPS = 64
_RIDGE = 1e-3
_FILLS, _SCALINGS = 5, 200


def run(model: Any, batch: Batch, need_weights: bool = False) -> Any:
    """The output of a model for a batch; with labels, the loss is the sum over them."""
    inputs: dict[str, Any] = {name: tensor.to(model.device) for name, tensor in batch.items()}
    if "labels" in inputs:
        inputs["num_items_in_batch"] = 1
        if model.config.is_encoder_decoder:
            # Nothing depends on padding at the end of a causal stack; with a mask its rows are zeros.
            inputs["decoder_attention_mask"] = (inputs["labels"] != IGNORED).long()
    return model(**inputs, output_attentions=need_weights)


def real_rows(layer: AttentionLayer, args: Sequence[Any]) -> Tensor:
    """(B, T) bool, the real tokens in the arguments of a layer of self-attention. Batches are padded on the right."""
    x, layout = args[:2]
    if layout.mask is None:
        return torch.ones(x.shape[:2], dtype=torch.bool, device=x.device)
    return cast(Tensor, layout.mask)


@contextmanager
def hooked(layers: Sequence[AttentionLayer], visit: Callable[[int, Sequence[Any], Any], Any]) -> Iterator[None]:
    """Call `visit` with the number, arguments and output of each layer that runs; what it returns is the output."""

    def hook(number: int) -> Any:
        return lambda module, args, kwargs, output: visit(number, args, output)

    handles = [
        layer.module.register_forward_hook(hook(number), with_kwargs=True) for number, layer in enumerate(layers)
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


class AttentionSums:
    """Sums over the attention weights and the inputs of a layer, which its synthesized heads are made from.

    Args:
        heads: H.
        length: N.
        features: K and a bias; 0 without a regression.
    """

    def __init__(self, heads: int, length: int, is_causal: bool, features: int = 0) -> None:
        self.is_causal, self.length, self.stride = is_causal, length, -(-length // _GROUPS)
        double: Any = {"dtype": torch.float64}
        self.lengths = torch.zeros(length + 1, dtype=torch.long)
        self.weights = torch.zeros(heads, length, length, **double)
        self.products = torch.zeros(length // self.stride + 1, heads, features, features, **double)
        self.targets = torch.zeros(heads, length, features, **double)

    def add(self, weights: Tensor, real: Tensor) -> None:
        """Add attention weights (B, H, T, T), zeros at padded rows and columns; `real` (B, T) are the real tokens."""
        size = weights.shape[-1]
        self.lengths += real.sum(1).cpu().bincount(minlength=len(self.lengths))
        self.weights[:, :size, :size] += weights.sum(0).cpu().double()

    def add_rows(self, features: Tensor, weights: Tensor, real: Tensor, bias: Tensor | None) -> None:
        """Add rows to the regression of log weights (B, H, T, T), minus a `bias` (H, T, T), on features (B, H, T, K).

        Row t counts for the columns that it sees, up to a multiple of the stride.
        """
        size, positions = weights.shape[-1], torch.arange(weights.shape[-1], device=weights.device)
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

    def position_counts(self, max_length: int) -> Tensor:
        """(M,): the number of sequences that have each position, at least 1."""
        counts = self.lengths.flip(0).cumsum(0).flip(0)[1:].clamp_min(1)[:max_length]
        return nn.functional.pad(counts, (0, max_length - len(counts)), value=1)

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
            terms = counts / ratios.cumsum(-1).clamp_min(_LOWEST)
            sums = terms.flip(-1).cumsum(-1).flip(-1)
            # In row i, a column before it is seen by all sequences that have the row.
            before, ratios = ratios, torch.where(seen, self.weights / sums.clamp_min(_LOWEST), 0.0)
            if torch.allclose(ratios, before, rtol=1e-4, atol=1e-8):
                break
        return ratios * seen.sum(-1, keepdim=True) / ratios.sum(-1, keepdim=True).clamp_min(_LOWEST)

    def by_distance(self, ratios: Tensor) -> Tensor:
        """(H, 2N − 1): the mean ratio at each distance key − query, from 1 − N on; 1 where nothing is seen."""
        positions, pairs = torch.arange(self.length), self.pairs().double()
        index = (positions - positions[:, None] + self.length - 1).flatten()
        sums = ratios.new_zeros(len(ratios), 2 * self.length - 1).index_add_(1, index, (ratios * pairs).flatten(1))
        counts = sums.new_zeros(sums.shape[1]).index_add_(0, index, pairs.flatten())
        return torch.where(counts > 0, sums / counts.clamp_min(1), 1.0)

    def scores(self, max_length: int) -> Tensor:
        """R (H, M, M): the log of `ratios`; positions that the text does not have get the mean at their distance."""
        ratios, cut = self.ratios(), min(self.length, max_length)
        positions, seen = torch.arange(max_length), (self.pairs() > 0)[:cut, :cut]
        distance = (positions - positions[:, None]).clamp(1 - self.length, self.length - 1)
        table = self.by_distance(ratios)[:, distance + self.length - 1]
        table[:, :cut, :cut] = torch.where(seen, ratios[:, :cut, :cut], table[:, :cut, :cut])
        return table.clamp_min(_LOWEST).log()

    def regression(self) -> Tensor:
        """(H, N, K): the weights, and last the bias, with the smallest squared error of centred log attention."""
        # Column s is seen by the rows of more than s // stride groups.
        products = self.products.flip(0).cumsum(0).flip(0)[1:]
        products = products.repeat_interleave(self.stride, 0)[: self.length]
        columns, heads, features, _ = products.shape
        mean = products.diagonal(dim1=-2, dim2=-1).mean(-1)
        ridge = torch.eye(features, dtype=products.dtype) * (_RIDGE * mean.clamp_min(1e-6))[..., None, None]
        fitted = torch.linalg.solve(products + ridge, self.targets[:, :columns].transpose(0, 1))
        full = self.targets.new_zeros(heads, self.length, features)
        full[:, :columns] = fitted.transpose(0, 1)
        return full


@torch.no_grad()
def calibrate(
    model: SynthesizerPreTrainedModel,
    batches: Iterable[Batch],
    names: Sequence[str],
    *,
    synthesizer_options: SynthesizerOptions | None = None,
) -> list[SynthesizerPreTrainedModel]:
    """For each name a model with this function in all heads, whose parameters follow from the attention of `model`.

    Args:
        model: a model with vanilla in all layers, in eval mode.
        batches: keyword arguments of the model, padded on the right.
        names: some of `CALIBRATED`.

    Raises:
        UserError: another function, or `dense` with `share_heads`.
    """
    if unknown := [name for name in names if name not in CALIBRATED]:
        raise UserError(f"got {unknown[0]!r} to calibrate; expected one of: {', '.join(CALIBRATED)}")
    made = [synthesize(model, name, synthesizer_options=synthesizer_options) for name in names]
    fit(model, made, names, list(batches))
    return made


@torch.no_grad()
def fit(
    model: SynthesizerPreTrainedModel,
    made: Sequence[SynthesizerPreTrainedModel],
    names: Sequence[str],
    batches: Sequence[Batch],
) -> None:
    """Set the parameters of models with the functions `names` in all heads, as `calibrate` does.

    Args:
        model: a model with attention of any kind but the baselines.
        made: for each name a model of the same sizes and relative position bias.
    """
    layers = attention_layers(model)
    functions = [[cast(Any, layer.module).function for layer in attention_layers(new)] for new in made]
    if "dense" in names and any(len(each.key) != model.config.num_heads for each in functions[names.index("dense")]):
        raise UserError("got share_heads of dense; expected one W₂ for each head: calibration fits each alone")
    # Those of one function are the features of all.
    regressed = [name for name in _REGRESSED if name in names]
    first: list[Any] = functions[names.index(regressed[0])] if regressed else [None] * len(layers)
    sums = _sums(model, layers, first, batches)
    for mine, new in zip(functions, made, strict=True):
        for function, source, layer, found in zip(mine, first, attention_layers(new), sums, strict=True):
            if function.name in _REGRESSED:
                function.q_proj.load_state_dict(source.q_proj.state_dict())
            _set_parameters(function, found, _bias(layer, model.config.max_position_embeddings))


def _sums(
    model: SynthesizerPreTrainedModel,
    layers: Sequence[AttentionLayer],
    functions: Sequence[Any],
    batches: Sequence[Batch],
) -> list[AttentionSums]:
    """The sums of each layer; `functions` have the first layer that makes the features of the regression, or None."""
    sums = []
    for layer, function in zip(layers, functions, strict=True):
        both = layer.stack == "decoder" and model.config.is_encoder_decoder
        width = 0 if function is None else layer.module.head_dim + (function.q_proj.bias is not None)
        length = max(batch["labels" if both else "input_ids"].shape[1] for batch in batches)
        sums.append(AttentionSums(layer.module.num_heads, length, layer.is_causal, width))

    def visit(number: int, args: Sequence[Any], output: Any) -> Any:
        layer, function = layers[number], functions[number]
        real, (y, weights) = real_rows(layer, args), output
        sums[number].add(weights, real)
        if function is not None:
            hidden = function.q_proj(args[0]).relu().unflatten(-1, (layer.module.num_heads, -1)).transpose(1, 2)
            if function.q_proj.bias is not None:
                hidden = nn.functional.pad(hidden, (0, 1), value=1.0)
            sums[number].add_rows(hidden, weights, real, args[2])
        # The model would keep the weights of all layers.
        return y, weights[:0]

    with hooked(layers, visit):
        for batch in batches:
            run(model, batch, need_weights=True)
    return sums


def _bias(layer: AttentionLayer, length: int) -> Tensor | None:
    """T5's relative position bias (H, M, M), which is added to the logits of each layer; None without one."""
    if layer.bias is None:
        return None
    positions = torch.arange(length, device=layer.bias.weight.device)
    return layer.bias(positions, positions).cpu().double()


def _set_parameters(function: SynthesizingFunction, sums: AttentionSums, bias: Tensor | None) -> None:
    """Set the parameters of a function in all heads of a layer; `bias` (H, M, M) is added to its logits."""
    part: Any = function
    if part.name in ("random", "factorized_random"):
        scores = sums.scores(part.max_length)
        scores = scores if bias is None else scores - bias
        if part.name == "random":
            part.table.copy_(scores)
            return
        visible = torch.ones_like(scores[0], dtype=torch.bool)
        visible = visible.tril() if sums.is_causal else visible
        row, key = low_rank(scores, visible, part.row_factor.shape[-1], sums.position_counts(part.max_length))
        part.row_factor.copy_(row)
        part.key_factor.copy_(key)
    elif part.name == "relative_random":
        offsets = torch.arange(1 - part.distance, part.distance).clamp(1 - sums.length, sums.length - 1)
        # Its offsets are query − key.
        scores = sums.by_distance(sums.ratios())[:, sums.length - 1 - offsets].clamp_min(_LOWEST).log()
        if bias is not None:
            last = bias.shape[-1] - 1
            apart = torch.arange(1 - part.distance, part.distance).clamp(-last, last)
            scores -= bias[:, apart.clamp_min(0), (-apart).clamp_min(0)]
        part.offsets.copy_(scores)
    elif part.name == "dense":
        fitted, cut = sums.regression(), min(sums.length, part.max_length)
        part.key.zero_()
        part.key[:, :cut] = fitted[:, :cut, : part.key.shape[-1]]
        if part.key_bias is not None:
            part.key_bias.zero_()
            part.key_bias[:, :cut] = fitted[:, :cut, -1]
    elif part.bias is None:
        # Without biases no factor can be a constant.
        part.zero_logits()
    else:
        weights, blocks = sums.regression(), part.factors[1]
        weights = nn.functional.pad(weights, (0, 0, 0, max(0, part.a * blocks - sums.length)))[:, : part.a * blocks]
        counts = sums.position_counts(part.a * blocks).unflatten(0, (blocks, part.a)).double().mean(1)
        factors = torch.cat(outer_factors(weights.unflatten(1, (blocks, part.a)), sums.products.sum(0), counts), 1)
        part.weight.copy_(factors[..., :-1])
        part.bias.copy_(factors[..., -1])


def low_rank(scores: Tensor, visible: Tensor, rank: int, counts: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Factors (H, M, k) of the truncated SVD of scores (H, M, M), without what softmax does not see.

    Rows are centred. Entries that are not `visible` (M, M) are filled with those of the approximation. Scores far below
    the largest of their row are raised: their weights are near zero anyway. With `counts` (M,), squared errors count in
    proportion to those of their row and column.
    """
    top = scores.masked_fill(~visible, -torch.inf).amax(-1, keepdim=True)
    scores = torch.maximum(scores, top + math.log(_LOWEST_FITTED)) * visible
    scores = (scores - scores.sum(-1, keepdim=True) / visible.sum(-1, keepdim=True)) * visible
    scale = torch.ones(len(visible), dtype=scores.dtype) if counts is None else counts.to(scores.dtype).sqrt()
    scores = scores * scale[:, None] * scale
    width, rank = rank, min(rank, len(visible))
    for _ in range(1 if visible.all() else _FILLS):
        left, sizes, right = torch.linalg.svd(scores, full_matrices=False)
        root = sizes[:, None, :rank].sqrt()
        row, key = left[..., :rank] * root, right.mT[..., :rank] * root
        scores = scores.where(visible, row @ key.mT)
    row, key = (nn.functional.pad(each / scale[:, None], (0, width - rank)) for each in (row, key))
    return row, key


def outer_factors(weights: Tensor, products: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
    """Maps of features to factors, (H, a, K) and (H, b, K), whose products are nearest to linear logits.

    Of the two factors, one is constant and the other linear, so that their product is linear too: the truncated SVD
    gives the best of either kind, and each head gets the better one. (The last feature is 1.)

    Args:
        weights: (H, b, a, K) the linear maps of the features to the logits.
        products: (H, K, K) sums of products of features, by which squared errors of the maps count.
        counts: (b,) by which squared errors of a row of the logits count.
    """
    scale = products.diagonal(dim1=-2, dim2=-1).mean(-1).clamp_min(1e-6)[:, None, None]
    root = torch.linalg.cholesky(products / scale + _RIDGE * torch.eye(products.shape[-1], dtype=products.dtype))
    scaled, rows = weights @ root[:, None] * counts.sqrt()[:, None, None], counts.sqrt()[:, None]
    constants, linear, sizes = [], [], []
    # Constant blocks, or a constant in each block.
    for matrix in (scaled, scaled.transpose(1, 2)):
        left, size, right = torch.linalg.svd(matrix.flatten(2), full_matrices=False)
        root_size = size[:, :1].sqrt()
        constants.append(left[..., 0] * root_size)
        factor = (right[:, 0] * root_size).unflatten(-1, matrix.shape[2:])
        linear.append(torch.linalg.solve_triangular(root, factor, upper=False, left=False))
        sizes.append(size[:, 0])
    blocks, tiles = constants[0] / rows[:, 0], constants[1]
    is_tiled = (sizes[0] >= sizes[1])[:, None, None]
    constant = [nn.functional.pad(each[..., None], (products.shape[-1] - 1, 0)) for each in (blocks, tiles)]
    return linear[0].where(is_tiled, constant[1]), constant[0].where(is_tiled, linear[1] / rows)
