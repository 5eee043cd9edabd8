"""SynthesizerAttention: projections, heads, padding and cache around a synthesizing function.

Shape legend: B batch, H heads, T new tokens, S keys in use (cached ones and new ones), K width of a head.
Our head_dim is the paper's d_head (d_k = d_v).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import Cache

from .kernels import attend, attention_weights, join_heads, linear, project_by_feature, split_heads, sum_values
from .layout import TokenLayout
from .logits import Logits, SharedLogits
from .synthesizers import (
    REGISTRY,
    Dimensions,
    Rotary,
    SynthesizerOptions,
    functions_of,
    has_logits,
    make_function,
    reset_projection,
    unwrap,
    validate,
)
from .validation import check_size


class SelfAttention(nn.Module):
    """Base class of `SynthesizerAttention` and the baselines: sizes, the value projection and the output projection.

    Attributes:
        synthesizer: the name of its function, mixture or baseline.
        max_length: the longest sequence; None where there is none.
        caches_keys: whether decoding has to keep keys as well as values.
    """

    synthesizer: str
    max_length: int | None = None
    caches_keys: bool = False

    def __init__(self, dims: Dimensions, dropout: float, layer_idx: int | None) -> None:
        super().__init__()
        if not isinstance(dropout, int | float) or not 0 <= dropout < 1:
            raise ValueError(f"got dropout={dropout!r}; expected a probability in [0, 1)")
        self.d_model, self.num_heads, self.head_dim = dims.d_model, dims.num_heads, dims.head_dim
        self.group_size = dims.group_size
        self.dropout, self.layer_idx = dropout, layer_idx
        self.v_proj = dims.projection(dims.key_value_heads)
        self.out_proj = nn.Linear(dims.inner_dim, dims.d_model, dims.bias, device=dims.device, dtype=dims.dtype)

    @property
    def weight_parameters(self) -> int:
        """How many parameters make the weights that the values are summed with."""
        values = ("v_proj.", "gate_proj.", "out_proj.")
        return sum(p.numel() for name, p in self.named_parameters() if not name.startswith(values))

    def extend(self, max_length: int) -> None:
        """Change the maximum length in place: what was learned is kept, new positions start as in a new layer.

        A smaller one cuts. Parameters per position become new ones, so make the optimizer afterwards. `relative_random`
        grows where its `distance` is the maximum length; layers without parameters per position stay as they are.

        Raises:
            ValueError: a length below 1.
        """
        check_size("max_length", max_length)

    def reset_parameters(self) -> None:
        """Initialise all parameters, and R of fixed random, anew."""
        inputs = [m for m in self.modules() if isinstance(m, nn.Linear) and m is not self.out_proj]
        for projection in (*inputs, self.out_proj):
            reset_projection(projection)

    def extra_repr(self) -> str:
        return f"{self.synthesizer!r}, d_model={self.d_model}, num_heads={self.num_heads}, max_length={self.max_length}"

    def one_sequence(self, x: Tensor, mask: Any, attn_bias: Tensor | None, is_causal: bool, **arguments: Any) -> Any:
        """The layer's result for one sequence (T, d_model), as a batch of one."""
        mask = mask[None] if isinstance(mask, Tensor) and mask.dim() == 1 else mask
        result = self(x[None], mask, attn_bias, is_causal, **arguments)
        return (result[0][0], result[1][0]) if isinstance(result, tuple) else result[0]

    def layout_of(self, x: Tensor, mask: Tensor | TokenLayout | None, cache: Cache | None) -> TokenLayout:
        """The layout of x, by the slots of this layer in the cache; ValueError where x, mask or cache do not fit."""
        if x.dim() != 3 or x.shape[-1] != self.d_model:
            raise ValueError(f"got x of shape {tuple(x.shape)}; expected (B, L, {self.d_model}) or (L, {self.d_model})")
        if cache is not None and self.layer_idx is None:
            raise ValueError("got a cache in a layer without layer_idx; expected the number of the layer, layer_idx=n")
        # Without a cache `layer_idx` is not read: compiled code would have a graph for each layer.
        layout = TokenLayout.of(mask, x, cache, 0 if cache is None else self.layer_idx or 0)
        # With several sentences in a row the longest one counts.
        length = layout.positions.columns
        if self.max_length is not None and length > self.max_length:
            raise ValueError(
                f"got a sequence of {length} slots; expected at most max_length = {self.max_length}, up to which "
                f"{self.synthesizer!r} has parameters. Truncate or split the input, or raise the maximum with "
                "extend(LENGTH)"
            )
        return layout


class SynthesizerAttention(SelfAttention):
    """Multi-head attention Y = softmax(S(X)) G(X) W_O whose logits S(X) a synthesizing function makes.

    Args:
        d_model: width of the input and output.
        num_heads: H.
        synthesizer: a synthesizing function by name, e.g. `vanilla`, `dense`, `random`, or several joined by "+" (a
            mixture, on the logits); or groups of heads, `random:6/vanilla:2`, each with a function or mixture.
        max_length: the longest sequence; required by all functions but vanilla, and relative_random with `distance`.
        head_dim: width of a head; by default d_model / num_heads.
        num_key_value_heads: number of values, and of keys in dot products; each is shared by as many heads in a row
            (also synthesized ones). By default one for each head. Heads of different groups share none.
        qk_norm: epsilon of an RMSNorm of each head's queries and keys in dot products; None for no norm.
        rotary: rotary positions of queries and keys in dot products.
        bias: biases, on the projections and in the functions.
        dropout: probability with which attention weights are dropped in training.
        synthesizer_options: options by function name, e.g. {"factorized_random": {"rank": 8}}, and of mixtures under
            "mixture", e.g. {"mixture": {"gate": "sum"}}.
        layer_idx: which layer of a cache this is.

    Raises:
        ValueError: an unknown function or option, or sizes that do not fit.
    """

    def __init__(
        self,
        d_model: int,
        num_heads: int,
        synthesizer: str = "random+vanilla",
        max_length: int | None = None,
        *,
        head_dim: int | None = None,
        num_key_value_heads: int | None = None,
        qk_norm: float | None = None,
        rotary: Rotary | None = None,
        bias: bool = True,
        dropout: float = 0.0,
        synthesizer_options: SynthesizerOptions | None = None,
        layer_idx: int | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        sizes: dict[str, Any] = {"head_dim": head_dim, "num_key_value_heads": num_key_value_heads}
        sizes |= {"max_length": max_length, "qk_norm": qk_norm, "rotary": rotary}
        dims = Dimensions.of(d_model, num_heads, **sizes, bias=bias, device=device, dtype=dtype)
        function = make_function(synthesizer, dims, synthesizer_options)
        super().__init__(dims, dropout, layer_idx)
        self.synthesizer, self.function = synthesizer, function
        self.max_length, self.caches_keys = function.max_length, function.key_heads > 0
        super().reset_parameters()

    def reset_parameters(self) -> None:
        super().reset_parameters()
        self.function.reset_parameters()

    def extend(self, max_length: int) -> None:
        super().extend(max_length)
        self.function.extend(max_length)
        self.max_length = self.function.max_length

    def forward(
        self,
        x: Tensor,
        attention_mask: Tensor | TokenLayout | None = None,
        attn_bias: Tensor | None = None,
        is_causal: bool = False,
        *,
        value: Tensor | None = None,
        need_weights: bool = False,
        cache: Cache | None = None,
    ) -> Any:
        """Attend.

        Args:
            x: (B, T, d_model), or (T, d_model) for one sequence; the logits come from it.
            attention_mask: (B, S), 1/True at real tokens, padded left, right or with holes; or the layout of the batch.
                Positions are logical: a padded row gives the result that it gives alone. S = T without a cache, else
                it counts the cached slots too.
            attn_bias: added to the logits, (T, S), (H, T, S) or (B or 1, H or 1, T, S), in the input's slots.
            is_causal: a token sees itself and those before it.
            value: of the shape of x; the values come from it instead.
            need_weights: return the weights too, through the whole matrix.
            cache: keeps the values (and vanilla's keys) of the tokens before x.

        Returns:
            (B, T, d_model), zeros at padded tokens; or that and the weights (B, H, T, S) with `need_weights`, zeros in
            the rows and columns of padded tokens. No B where x has none.

        Raises:
            ValueError: shapes that do not fit, or more slots than `max_length`.
        """
        if x.dim() == 2:
            given = None if value is None else value[None]
            return self.one_sequence(
                x, attention_mask, attn_bias, is_causal, value=given, need_weights=need_weights, cache=cache
            )
        layout = self.layout_of(x, attention_mask, cache)
        if value is not None and value.shape != x.shape:
            raise ValueError(f"got value of shape {tuple(value.shape)}; expected that of x, {tuple(x.shape)}")
        function, heads = unwrap(self.function), self.num_heads // self.group_size

        tokens = layout.pack(x)
        values = tokens if value is None else layout.pack(value)
        # A group of heads has features for its heads only.
        parts = (layout.pad(part) for part in function.project(tokens))
        features = [split_heads(part, part.shape[-1] // self.head_dim) for part in parts]
        if function.values_by_feature:
            value = project_by_feature(self.v_proj, values, layout, heads)
        else:
            value = split_heads(layout.pad(linear(self.v_proj, values)), heads)
        key = function.keys(features, layout.positions)
        key, value = layout.update(cache, value[:, :0] if key is None else key, value, self.layer_idx)
        logits = self._biased(self.function(features, layout.positions, key), attn_bias, layout, value.dtype)

        # Where a token before another need not be in a slot before it, `_biased` hides the later ones.
        mask, causal = layout.key_mask(is_causal), is_causal and layout.pair_mask is None
        offset = layout.positions.offset if causal else 0
        dropout = self.dropout if self.training else 0.0
        if need_weights:
            # The sum is computed from the returned tensor, so that the weights have a gradient.
            weights = attention_weights(SharedLogits(logits.dense(value.shape[-2])), mask, causal, offset)
            weights = layout.restore_pairs(weights.expand(value.shape[0], -1, -1, -1)).to(value.dtype)
            y = sum_values(logits, layout.align_pairs(weights), value, dropout)
        else:
            y = attend(logits, value, mask, causal, dropout, offset, group_size=self.group_size)
        y = layout.unpack(linear(self.out_proj, join_heads(y, layout)))
        return (y, weights) if need_weights else y

    def _biased(self, logits: Logits, attn_bias: Tensor | None, layout: TokenLayout, dtype: torch.dtype) -> Logits:
        """The logits with a bias in the slots of the input, and in a static cache with what each token must not see."""
        if attn_bias is not None:
            # A packed batch has the bias of its aligned form.
            given = layout.aligned if layout.is_packed else layout
            sizes = given.shape[0], self.num_heads, given.shape[1], given.columns
            logits = logits.plus(given.align_pairs(SharedLogits.from_bias(attn_bias, *sizes).scores))
        return logits if layout.pair_mask is None else logits.plus(layout.pair_mask.to(dtype))

    @torch.no_grad()
    def load_vanilla(self, weights: Mapping[str, Tensor | None], order: Sequence[int] | None = None) -> None:
        """Copy the weights of dot-product attention with the same sizes.

        With vanilla in a mixture, the logits of its other functions become zeros (ValueError for `fixed_random`).

        Args:
            weights: by their names in a layer of vanilla, that of `out_proj` at least; ours stay where one is missing.
            order: which of its heads each head copies; by default as they are.
        """
        order = range(self.num_heads) if order is None else order

        def copy(projection: Any, name: str, heads: Sequence[int], scale: Any = 1) -> None:
            for part in ("weight", "bias"):
                if (tensor := weights.get(f"{name}.{part}")) is not None:
                    own = tensor.unflatten(0, (-1, self.head_dim))[[*heads]].transpose(0, -1) * scale
                    getattr(projection, part).copy_(own.transpose(0, -1).flatten(0, 1))

        def shared(heads: Sequence[int]) -> list[int]:
            return [head // self.group_size for head in heads[:: self.group_size]]

        copy(self.v_proj, "v_proj", shared(order))
        output: Any = weights["out_proj.weight"]
        self.out_proj.weight.copy_(output.unflatten(1, (-1, self.head_dim))[:, [*order]].flatten(1))
        if (bias := weights.get("out_proj.bias")) is not None:
            self.out_proj.bias.copy_(bias)
        for heads, function in self.function.groups():
            parts: list[Any] = function.components
            names, alpha = [part.name for part in parts], function.weights()
            if "vanilla" not in names:
                continue
            vanilla = parts.pop(index := names.index("vanilla"))
            for other in parts:
                other.zero_logits()
            weight = vanilla.q_proj.weight.new_ones(1) if alpha is None else alpha[index]
            copy(vanilla.q_proj, "function.q_proj", order[heads], 1 / weight)
            copy(vanilla.k_proj, "function.k_proj", shared(order[heads]))
            if (norm := weights.get("function.q_norm.weight")) is not None:
                # A norm undoes factors of weights: α becomes part of it.
                vanilla.q_norm.weight.copy_(norm / weight.mean())
                vanilla.k_norm.weight.copy_(weights["function.k_norm.weight"])

    @classmethod
    def from_multihead_attention(
        cls,
        mha: nn.MultiheadAttention,
        synthesizer: str = "vanilla",
        max_length: int | None = None,
        *,
        synthesizer_options: SynthesizerOptions | None = None,
    ) -> SynthesizerAttention:
        """A layer with the weights of an `nn.MultiheadAttention` (self-attention); input is batch first.

        With vanilla, alone or in a mixture, it computes what `mha` does: the logits of the other functions start as
        zeros. Without vanilla it has only the value and output projections of `mha`.

        Raises:
            ValueError: another module; other key or value widths, bias_kv or add_zero_attn, which this layer lacks;
                `fixed_random` in a mixture with vanilla; and as the constructor does.
        """
        if not isinstance(mha, nn.MultiheadAttention):
            raise ValueError(f"got a {type(mha).__name__}; expected an nn.MultiheadAttention that is not replaced yet")
        if mha.in_proj_weight is None or mha.bias_k is not None or mha.add_zero_attn:
            raise ValueError(
                "got an nn.MultiheadAttention with kdim/vdim, add_bias_kv or add_zero_attn; expected one without them"
            )
        layer = cls(
            mha.embed_dim,
            mha.num_heads,
            synthesizer,
            max_length,
            # Either one may be None; the biases of a new layer are zeros.
            bias=mha.in_proj_bias is not None or mha.out_proj.bias is not None,
            dropout=mha.dropout,
            synthesizer_options=synthesizer_options,
            device=mha.in_proj_weight.device,
            dtype=mha.in_proj_weight.dtype,
        )
        weights: dict[str, Tensor | None] = {}
        for part in ("weight", "bias"):
            inputs = getattr(mha, f"in_proj_{part}")
            parts = (None, None, None) if inputs is None else inputs.chunk(3)
            names = "function.q_proj", "function.k_proj", "v_proj", "out_proj"
            given = zip(names, (*parts, getattr(mha.out_proj, part)), strict=True)
            weights |= {f"{name}.{part}": tensor for name, tensor in given}
        layer.load_vanilla(weights)
        return layer.train(mha.training)


def build(
    name: str,
    d_model: int,
    num_heads: int,
    max_length: int | None,
    *,
    is_causal: bool,
    options: SynthesizerOptions | None = None,
    head_dim: int | None = None,
    dropout: float = 0.0,
    layer_idx: int | None = None,
    **arguments: Any,
) -> SelfAttention:
    """Make a layer by name, with the arguments of `SynthesizerAttention`; or a baseline.

    Its options are by function or baseline. If a token may not see those after it (`is_causal`), some baselines are a
    ValueError.
    """
    if has_logits(name):
        arguments |= {"head_dim": head_dim, "dropout": dropout, "layer_idx": layer_idx, "synthesizer_options": options}
        return SynthesizerAttention(d_model, num_heads, name, max_length, **arguments)
    kind = REGISTRY[functions_of(name)[0]]
    if is_causal and not kind.can_be_causal:
        raise ValueError(
            f"got {name!r} where a token may not see those after it; expected it in an encoder only (of a model that "
            f"has a decoder too: {{encoder: {name}, decoder: vanilla}})"
        )
    validate(name, options)
    dims = Dimensions.of(d_model, num_heads, head_dim, max_length=max_length, **arguments)
    return cast(SelfAttention, kind(dims, dropout, layer_idx, **(options or {}).get(kind.name, {})))
