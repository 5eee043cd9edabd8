"""SynthesizerAttention: the projections, heads, padding and cache round a synthesizing function.

Shape legend: B batch, H heads, T new tokens, S keys in use (cached ones and new ones), K width of a head.
Our head_dim is the paper's d_head (d_k = d_v).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from .kernels import attend, attention_weights
from .linear import Linear, is_plain
from .logits import Logits, MixedLogits, SharedLogits
from .masks import Padding, bias_as_scores, hide_later
from .packing import Packing
from .projections import (
    head_width,
    project,
    project_out,
    project_packed,
    project_values,
    project_widened,
    reset_projections,
)
from .synthesizers import Dimensions, Span, SynthesizerOptions, UnknownSynthesizerError, build

__all__ = ["KeyValueCache", "SynthesizerAttention"]


# Values laid out feature by feature are packed in runs of a row's length: shorter ones take longer than they save.
SHORT_COLUMNS = 128


class KeyValueCache(Protocol):
    """A decoding cache, as Hugging Face's are.

    One that hands out slots which are not filled yet has an attribute `slots`, (T,): where the new tokens stand.
    """

    def update(self, key_states: Tensor, value_states: Tensor, layer_idx: int) -> tuple[Tensor, Tensor]: ...


class SynthesizerAttention(nn.Module):
    """Multi-head attention Y = softmax(S(X)) G(X) W_O whose logits S(X) a synthesizing function makes.

    Args:
        d_model: width of the input and output.
        num_heads: H.
        synthesizer: `vanilla`, `dense`, `random`, `fixed_random`, `factorized_dense`, `factorized_random`, or several
            joined by "+" (a mixture, on the logits).
        max_length: the longest sequence; required by all functions but vanilla.
        head_dim: width of a head; by default d_model / num_heads.
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
        bias: bool = True,
        dropout: float = 0.0,
        synthesizer_options: SynthesizerOptions | None = None,
        layer_idx: int | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if max_length is not None and max_length < 1:
            raise ValueError(f"got max_length={max_length}; expected at least 1")
        head_dim = head_width(d_model, num_heads, head_dim, dropout)
        dims = Dimensions(num_heads, head_dim, max_length, bias)
        self.d_model, self.num_heads, self.head_dim = d_model, num_heads, head_dim
        self.synthesizer, self.dropout, self.layer_idx = synthesizer, dropout, layer_idx
        try:
            self.function = build(synthesizer, dims, synthesizer_options, device, dtype)
        except UnknownSynthesizerError as error:
            hint = "what stands in the place of the whole layer, like a convolution, is named in SynthesizerConfig"
            raise ValueError(f"{error}; {hint}") from None
        # One projection for the values (its first rows) and for what the function wants of the input.
        width = dims.inner_dim + self.function.projected
        self.in_proj = Linear(d_model, width, bias=bias, device=device, dtype=dtype)
        self.out_proj = Linear(dims.inner_dim, d_model, bias=bias, device=device, dtype=dtype)
        reset_projections(self.in_proj, self.out_proj)

    @property
    def max_length(self) -> int | None:
        """The longest sequence the layer takes; None for vanilla, which has no maximum."""
        return self.function.max_length

    @property
    def caches_keys(self) -> bool:
        """Whether decoding has to keep keys beside the values."""
        return self.function.caches_keys

    @property
    def inner_dim(self) -> int:
        return self.num_heads * self.head_dim

    def reset_parameters(self) -> None:
        """Initialise all parameters, and R of fixed random, anew."""
        reset_projections(self.in_proj, self.out_proj)
        self.function.reset_parameters()

    def extra_repr(self) -> str:
        return f"{self.synthesizer!r}, d_model={self.d_model}, num_heads={self.num_heads}, max_length={self.max_length}"

    def forward(
        self,
        x: Tensor,
        attention_mask: Tensor | Padding | None = None,
        attn_bias: Tensor | None = None,
        is_causal: bool = False,
        *,
        value: Tensor | None = None,
        need_weights: bool = False,
        cache: KeyValueCache | None = None,
    ) -> Any:
        """Attend.

        Args:
            x: (B, T, d_model), or (T, d_model) for one sequence; the logits come from it.
            attention_mask: (B, S), 1/True at real tokens, padded left, right or with holes. Positions are logical: a
                padded row gives what it gives alone. S = T without a cache, else it counts the cached slots too.
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
            mask = (
                attention_mask[None]
                if isinstance(attention_mask, Tensor) and attention_mask.dim() == 1
                else attention_mask
            )
            result = self(x[None], mask, attn_bias, is_causal, value=given, need_weights=need_weights, cache=cache)
            return (result[0][0], result[1][0]) if need_weights else result[0]
        self._check_input(x, value)
        if cache is not None:
            return self._forward_cached(x, attention_mask, attn_bias, is_causal, value, need_weights, cache)
        self._check_length(x.shape[1])
        padding = Padding.of_batch(attention_mask, x.shape[0], x.shape[1])
        packing = None if padding is None else self._packing(padding)
        if padding is not None and packing is None:
            x = padding.align(x)
            value = None if value is None else padding.align(value)
        widen = self.function.constant_feature and x.device.type == "cpu"
        value_BHSK, inputs = self._project(x, value, packing, widen)
        key = self.function.keys(inputs)
        return self._attend_aligned(inputs, key, value_BHSK, padding, packing, attn_bias, is_causal, need_weights)

    def _forward_cached(
        self,
        x: Tensor,
        attention_mask: Tensor | Padding | None,
        attn_bias: Tensor | None,
        is_causal: bool,
        value: Tensor | None,
        need_weights: bool,
        cache: KeyValueCache,
    ) -> Any:
        if self.layer_idx is None:
            raise ValueError("got a cache in a layer without layer_idx; expected SynthesizerAttention(…, layer_idx=n)")
        rows = x.shape[1]
        value_new, inputs = self._project(x, value)
        key_new = self.function.keys(inputs)
        if key_new is None:
            key_new = value_new[..., :0]
        key, values = cache.update(key_new, value_new, self.layer_idx)
        columns = values.shape[-2]
        self._check_length(columns)
        padding = Padding.of_batch(attention_mask, x.shape[0], columns)
        keys = key if self.caches_keys else None
        slots: Tensor | None = getattr(cache, "slots", None)
        if columns == rows and padding is not None and slots is None:
            # A first call over padded prompts: align, so that the shared forms stay shared.
            inputs = [padding.align(part) for part in inputs]
            keys = None if keys is None else padding.align(keys, dim=2)
            aligned = padding.align(values, dim=2)
            return self._attend_aligned(inputs, keys, aligned, padding, None, attn_bias, is_causal, need_weights)
        new, mask, span = slice(-rows, None) if slots is None else slots, None, Span(rows, columns, slots)
        if padding is not None:
            mask = padding.mask
            span = Span(rows, columns, padding.positions[:, new], padding.positions)
        if slots is not None:
            attn_bias, is_causal = hide_later(slots, values, attn_bias), False
        if attn_bias is not None:
            attn_bias = bias_as_scores(attn_bias, x.shape[0], self.num_heads, rows, columns)
        logits = self._logits(inputs, keys, span, attn_bias)
        y, weights = self._attend(logits, values, mask, is_causal, columns - rows, need_weights)
        y = project_out(self.out_proj, y, self.num_heads)
        real = None if padding is None else padding.mask[:, new]
        y = y if real is None else y.masked_fill(~real[..., None], 0)
        if not need_weights:
            return y
        return y, weights if real is None else weights.masked_fill(~real[:, None, :, None], 0)

    def _attend_aligned(
        self,
        inputs: Sequence[Tensor],
        key: Tensor | None,
        value: Tensor,
        padding: Padding | None,
        packing: Packing | None,
        attn_bias: Tensor | None,
        is_causal: bool,
        need_weights: bool,
    ) -> Any:
        """Attend within one aligned batch, and move the result back to the input's slots.

        With a packing, only real tokens were projected: value is zero at the others, and only they are projected back.
        """
        length = value.shape[-2]
        if attn_bias is not None:
            attn_bias = bias_as_scores(attn_bias, value.shape[0], self.num_heads, length, length)
            if padding is not None and padding.index is not None:
                attn_bias = padding.align_pairs(attn_bias)
        logits = self._logits(inputs, key, Span(length, length), attn_bias)
        mask = None
        if padding is not None and not is_causal:
            # Causal rows of an aligned batch see no padding; padded rows become zeros anyway.
            mask = padding.aligned.mask
        y, weights = self._attend(logits, value, mask, is_causal, 0, need_weights, packing is not None)
        if padding is None:
            y = project_out(self.out_proj, y, self.num_heads)
            return (y, weights) if need_weights else y
        if packing is None:
            y = padding.restore(project_out(self.out_proj, y, self.num_heads))
        else:
            y = project_packed(self.out_proj, y, packing, self.num_heads)
        if not need_weights:
            return y
        return y, padding.restore_pairs(weights)

    def _attend(
        self,
        logits: Logits,
        value: Tensor,
        mask: Tensor | None,
        is_causal: bool,
        offset: int,
        need_weights: bool,
        value_is_masked: bool = False,
    ) -> tuple[Tensor, Tensor]:
        """(B, T, H·K) that goes into the output projection, and the weights (B, H, T, S) if they are needed."""
        dropout = self.dropout if self.training else 0.0
        y = attend(logits, value, mask, is_causal, dropout, offset, value_is_masked=value_is_masked)
        y = y.transpose(1, 2).flatten(2)
        if not need_weights:
            return y, y
        weights = attention_weights(logits, mask, is_causal, offset, length=value.shape[-2])
        return y, weights.expand(value.shape[0], -1, -1, -1)

    def _logits(self, inputs: Sequence[Tensor], key: Tensor | None, span: Span, attn_bias: Tensor | None) -> Logits:
        logits = self.function(inputs, span, key)
        return logits if attn_bias is None else MixedLogits([logits, SharedLogits(attn_bias)])

    def _project(
        self, x: Tensor, value: Tensor | None, packing: Packing | None = None, widen: bool = False
    ) -> tuple[Tensor, Sequence[Tensor]]:
        """The values (B, H, T, K) and what the function wants of x, (B, T, width) for each of its widths.

        With a packing all are aligned, and zero at padding. `widen` adds a constant feature to each head where there
        are enough tokens for the copies of the weights to be small beside those that it spares.
        """
        if not self.function.projected:
            return project_values(self.in_proj, x if value is None else value, packing, self.num_heads), ()
        if widen and value is None:
            tokens = x.shape[:-1].numel() if packing is None else packing.given.shape[0]
            if tokens >= self.d_model and is_plain(self.in_proj) and is_plain(self.out_proj):
                return project_widened(self.in_proj, x, packing, self.num_heads)
        return project(self.in_proj, x, value, packing, self.num_heads, self.function.widths)

    def _packing(self, padding: Padding) -> Packing | None:
        """How to project real tokens only, where that pays."""
        packing = padding.packing
        if packing is not None and not self.function.projected and packing.slots < SHORT_COLUMNS:
            return None
        return packing

    def _check_input(self, x: Tensor, value: Tensor | None) -> None:
        if x.dim() != 3 or x.shape[-1] != self.d_model:
            raise ValueError(f"got x of shape {tuple(x.shape)}; expected (B, L, {self.d_model}) or (L, {self.d_model})")
        if value is not None and value.shape != x.shape:
            raise ValueError(f"got value of shape {tuple(value.shape)}; expected that of x, {tuple(x.shape)}")

    def _check_length(self, length: int) -> None:
        if self.max_length is not None and length > self.max_length:
            raise ValueError(
                f"got a sequence of {length} slots; expected at most max_length = {self.max_length}, up to which "
                f"{self.synthesizer!r} has parameters. Truncate or split the input, or build the layer with a larger "
                "max_length"
            )

    @classmethod
    def from_multihead_attention(cls, mha: nn.MultiheadAttention) -> SynthesizerAttention:
        """A vanilla layer with the weights of an `nn.MultiheadAttention` (self-attention); input is batch first.

        Raises:
            ValueError: the module has what this layer does not: other key or value widths, bias_kv, add_zero_attn.
        """
        if mha.in_proj_weight is None or mha.bias_k is not None or mha.add_zero_attn:
            raise ValueError(
                "got an nn.MultiheadAttention with kdim/vdim, add_bias_kv or add_zero_attn; expected one without them"
            )
        weight = mha.in_proj_weight
        layer = cls(
            mha.embed_dim,
            mha.num_heads,
            "vanilla",
            bias=mha.in_proj_bias is not None,
            dropout=mha.dropout,
            device=weight.device,
            dtype=weight.dtype,
        )

        def values_first(x: Tensor) -> Tensor:
            query, key, value = x.chunk(3)
            return torch.cat([value, query, key])

        state = {"in_proj.weight": values_first(weight), "out_proj.weight": mha.out_proj.weight}
        if mha.in_proj_bias is not None:
            state |= {"in_proj.bias": values_first(mha.in_proj_bias), "out_proj.bias": mha.out_proj.bias}
        layer.load_state_dict(state)
        layer.train(mha.training)
        return layer
