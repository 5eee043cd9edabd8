"""SynthesizerAttention: the projections, heads, padding and cache round a synthesizing function.

Shape legend: B batch, H heads, T new tokens, S keys in use (cached ones and new ones), K width of a head.
Our head_dim is the paper's d_head (d_k = d_v).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .functions import Dimensions, Span, SynthesizerOptions, build
from .functions.base import split_heads
from .kernels import attend, attention_weights
from .linear import Linear
from .logits import Logits, MixedLogits, SharedLogits
from .masks import Padding, bias_as_scores
from .packing import Packing

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
        if d_model < 1 or num_heads < 1 or (head_dim is None and d_model % num_heads):
            raise ValueError(
                f"got d_model={d_model}, num_heads={num_heads}; expected a width that the heads divide, or head_dim"
            )
        if max_length is not None and max_length < 1:
            raise ValueError(f"got max_length={max_length}; expected at least 1")
        if not 0 <= dropout < 1:
            raise ValueError(f"got dropout={dropout}; expected a probability in [0, 1)")
        head_dim = d_model // num_heads if head_dim is None else head_dim
        if head_dim < 1:
            raise ValueError(f"got head_dim={head_dim}; expected at least 1")
        dims = Dimensions(num_heads, head_dim, max_length, bias)
        self.d_model, self.num_heads, self.head_dim = d_model, num_heads, head_dim
        self.synthesizer, self.dropout, self.layer_idx = synthesizer, dropout, layer_idx
        self.function = build(synthesizer, dims, synthesizer_options, device, dtype)
        # One projection for the values (its first rows) and for what the function wants of the input.
        width = dims.inner_dim + self.function.projected
        self.in_proj = Linear(d_model, width, bias=bias, device=device, dtype=dtype)
        self.out_proj = Linear(dims.inner_dim, d_model, bias=bias, device=device, dtype=dtype)
        self._reset_projections()

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

    def _reset_projections(self) -> None:
        # Blocks of d_model → H·K features each, so that fusing them does not change their initialisation.
        # A weight that came from a checkpoint is marked by transformers; its slices are not, and would be overwritten.
        if not getattr(self.in_proj.weight, "_is_hf_initialized", False):
            for rows in self.in_proj.weight.split(self.inner_dim):
                nn.init.xavier_uniform_(rows)
        nn.init.xavier_uniform_(self.out_proj.weight)
        for linear in (self.in_proj, self.out_proj):
            if linear.bias is not None:
                nn.init.zeros_(linear.bias)

    def reset_parameters(self) -> None:
        """Initialise all parameters, and R of fixed random, anew."""
        self._reset_projections()
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
        padding = self._padding(attention_mask, x.shape[0], x.shape[1])
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
        padding = self._padding(attention_mask, x.shape[0], columns)
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
            attn_bias, is_causal = _hide_later(slots, values, attn_bias), False
        if attn_bias is not None:
            attn_bias = bias_as_scores(attn_bias, x.shape[0], self.num_heads, rows, columns)
        logits = self._logits(inputs, keys, span, attn_bias)
        y, weights = self._attend(logits, values, mask, is_causal, columns - rows, need_weights)
        y = self._project_out(y)
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
                attn_bias = self._align_bias(attn_bias, padding)
        logits = self._logits(inputs, key, Span(length, length), attn_bias)
        mask = None
        if padding is not None and not is_causal:
            # Causal rows of an aligned batch see no padding; padded rows become zeros anyway.
            mask = padding.aligned.mask
        y, weights = self._attend(logits, value, mask, is_causal, 0, need_weights, packing is not None)
        if padding is None:
            y = self._project_out(y)
            return (y, weights) if need_weights else y
        y = padding.restore(self._project_out(y)) if packing is None else self._project_packed(y, packing)
        if not need_weights:
            return y
        return y, padding.restore(padding.restore(weights, dim=2), dim=3)

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

    def _align_bias(self, bias: Tensor, padding: Padding) -> Tensor:
        bias = bias.expand(padding.mask.shape[0], -1, -1, -1)
        return padding.align(padding.align(bias, dim=2), dim=3)

    def _project(
        self, x: Tensor, value: Tensor | None, packing: Packing | None = None, widen: bool = False
    ) -> tuple[Tensor, Sequence[Tensor]]:
        """The values (B, H, T, K) and what the function wants of x, (B, T, width) for each of its widths.

        With a packing all are aligned, and zero at padding. `widen` adds a constant feature to each head where there
        are enough tokens for the copies of the weights to be small beside those that it spares.
        """
        if not self.function.projected:
            return self._project_values(x if value is None else value, packing), ()
        if packing is not None:
            x, value = packing.pack(x), None if value is None else packing.pack(value)
        weight, bias, inner = self.in_proj.weight, self.in_proj.bias, self.inner_dim
        if value is None and widen and x.shape[:-1].numel() >= self.d_model:
            both = self._project_widened(x)
            inner = both.shape[-1] // 2
            both = both if packing is None else packing.pad_aligned(both)
            values, hidden = both.split(inner, dim=-1)
            return split_heads(values, self.num_heads), [hidden]
        if value is None:
            both = self.in_proj(x)
        else:
            values = F.linear(value, weight[:inner], None if bias is None else bias[:inner])
            projected = F.linear(x, weight[inner:], None if bias is None else bias[inner:])
            both = torch.cat([values, projected], dim=-1)
        both = both if packing is None else packing.pad_aligned(both)
        # All parts in one go: the backward of each split is a copy.
        values, *inputs = both.split([inner, *self.function.widths], dim=-1)
        return split_heads(values, self.num_heads), inputs

    def _project_values(self, x: Tensor, packing: Packing | None) -> Tensor:
        """The values alone, (B, H, L, K), laid out as (H, K, B, L): the shared kernel multiplies them as they are."""
        batch, length, _ = x.shape
        weight, bias = self.in_proj.weight, self.in_proj.bias
        tokens = (x.reshape(-1, self.d_model) if packing is None else packing.pack(x)).t()
        if torch.is_autocast_enabled(x.device.type) or bias is None:
            values = weight @ tokens
            values = values if bias is None else values + bias[:, None].to(values.dtype)
        else:
            values = torch.addmm(bias[:, None], weight, tokens)
        values = values if packing is None else packing.pad_columns(values)
        return values.view(self.num_heads, self.head_dim, batch, length).permute(2, 0, 3, 1)

    def _project_packed(self, y: Tensor, packing: Packing) -> Tensor:
        """The output projection of the real tokens of an aligned (B, L, H·K), in the input's slots, zeros between."""
        # The shared kernel writes feature by feature.
        by_feature = y.stride(1) == 1 and y.shape[-1] > 1
        tokens = packing.pack_columns(y.permute(2, 0, 1)).t() if by_feature else packing.pack_aligned(y)
        return packing.pad(self._project_out(tokens))

    def _project_out(self, y: Tensor) -> Tensor:
        """(…, H·K), or with a constant feature (…, H·(K + 1)), to (…, d_model)."""
        if y.shape[-1] == self.inner_dim:
            projected: Tensor = self.out_proj(y)
            return projected
        weight = F.pad(self.out_proj.weight.unflatten(1, (self.num_heads, self.head_dim)), (0, 1)).flatten(1)
        return F.linear(y, weight, self.out_proj.bias)

    def _project_widened(self, x: Tensor) -> Tensor:
        """Values and input of the function, each with a constant feature in every head: (…, 2·H·(K + 1))."""
        heads = (2, self.num_heads, self.head_dim)
        weight = F.pad(self.in_proj.weight.unflatten(0, heads), (0, 0, 0, 1)).flatten(0, 2)
        bias = weight.new_zeros(heads) if self.in_proj.bias is None else self.in_proj.bias.unflatten(0, heads)
        bias = torch.stack([F.pad(bias[0], (0, 1)), F.pad(bias[1], (0, 1), value=1.0)]).flatten()
        return F.linear(x, weight, bias)

    def _packing(self, padding: Padding) -> Packing | None:
        """How to project real tokens only, where that pays."""
        packing = padding.packing
        if packing is not None and not self.function.projected and packing.slots < SHORT_COLUMNS:
            return None
        return packing

    @staticmethod
    def _padding(mask: Tensor | Padding | None, batch: int, length: int) -> Padding | None:
        """The padding of the batch; None where no token is known to be masked."""
        if isinstance(mask, Tensor):
            mask = Padding.from_mask(mask, batch=batch, length=length)
        elif mask is not None and tuple(mask.mask.shape) != (batch, length):
            raise ValueError(f"got a Padding of shape {tuple(mask.mask.shape)}; expected {(batch, length)}")
        return None if mask is None or mask.full else mask

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
        with torch.no_grad():
            query, key, value = weight.chunk(3)
            layer.in_proj.weight.copy_(torch.cat([value, query, key]))
            layer.out_proj.weight.copy_(mha.out_proj.weight)
            if mha.in_proj_bias is not None:
                query, key, value = mha.in_proj_bias.chunk(3)
                layer.in_proj.bias.copy_(torch.cat([value, query, key]))
                layer.out_proj.bias.copy_(mha.out_proj.bias)
        layer.train(mha.training)
        return layer


def _hide_later(slots: Tensor, values: Tensor, attn_bias: Tensor | None) -> Tensor:
    """A bias that hides from the tokens at `slots` (T,) what stands after them in (B, H, S, K), and the given one."""
    later = torch.arange(values.shape[-2], device=values.device) > slots[:, None]
    hidden = values.new_zeros(later.shape).masked_fill(later, -torch.inf)
    return hidden if attn_bias is None else attn_bias + hidden
