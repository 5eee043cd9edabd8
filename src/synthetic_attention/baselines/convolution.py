"""Lightweight and dynamic convolutions (Wu et al., "Pay Less Attention with Lightweight and Dynamic Convolutions",
arXiv 1901.10430).

The input goes through a gated linear unit, X′ = (X W₁ + b₁) ∘ σ(X W₂ + b₂). Its features are split into heads, and each
head sums X′ over a window of C tokens round each token, with weights that are a softmax over the window: parameters of
the head (lightweight), or made from the token in the middle (dynamic). So they are a random and a dense Synthesizer of
relative positions within a window, but for two things: the gate, and that weights which fall outside of the sequence
are lost, where attention would share them out among the tokens that there are.

A window is centred, or ends with its token where the layer is causal.

Shape legend: B batch, H heads, T tokens, S slots, C tokens in a window, K width of a head.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..attention import KeyValueCache
from ..functions.base import Options, empty, split_heads, whole
from ..linear import Linear
from ..masks import Padding
from .base import Baseline, register
from .windows import place_weights, window_sum

__all__ = ["DynamicConvolution", "LightweightConvolution"]


@dataclass(frozen=True, kw_only=True)
class ConvolutionOptions(Options):
    """Options of the convolutions.

    Attributes:
        kernel_size: C, tokens in a window; a list has one for each layer, the last of them for all layers after it.
            The paper's encoder of seven layers has 3, 7, 15, 31, 31, 31, 31.
    """

    kernel_size: int | Sequence[int] = (3, 7, 15, 31)

    def __post_init__(self) -> None:
        sizes = [self.kernel_size] if isinstance(self.kernel_size, int) else self.kernel_size
        if isinstance(sizes, str) or not isinstance(sizes, Sequence) or not sizes:
            raise ValueError(f"got kernel_size={self.kernel_size!r}; expected a number, or a list with one per layer")
        for size in sizes:
            whole(size, "kernel_size", "a convolution")

    def of_layer(self, layer_idx: int | None) -> int:
        """C of one layer, counted from 0; of a layer by itself the last one."""
        if isinstance(self.kernel_size, int):
            return self.kernel_size
        last = len(self.kernel_size) - 1
        return self.kernel_size[last if layer_idx is None else min(layer_idx, last)]


class _Convolution(Baseline):
    """What the two have in common; a subclass makes the weights.

    Args:
        dropout: probability with which weights are dropped in training.
        options: `kernel_size`.
        max_length: not needed.
    """

    Options = ConvolutionOptions

    def __init__(
        self,
        d_model: int,
        num_heads: int,
        max_length: int | None = None,
        *,
        options: ConvolutionOptions | None = None,
        head_dim: int | None = None,
        bias: bool = True,
        dropout: float = 0.0,
        layer_idx: int | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(
            2,
            d_model,
            num_heads,
            head_dim=head_dim,
            bias=bias,
            dropout=dropout,
            layer_idx=layer_idx,
            device=device,
            dtype=dtype,
        )
        self.kernel_size = (options or ConvolutionOptions()).of_layer(layer_idx)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, kernel_size={self.kernel_size}"

    def _weights(self, gated: Tensor) -> Tensor:
        """The weights of the windows round tokens (B, T, H·K): (B, H, T, C), or (H, C) for all alike."""
        raise TypeError(f"{type(self).__name__} does not define _weights()")

    def _dropped(self, logits: Tensor) -> Tensor:
        return F.dropout(torch.softmax(logits, dim=-1), self.dropout, self.training)

    def _before(self, is_causal: bool) -> int:
        """How many tokens of a window are before its own. Of an even number, one more is after it than before."""
        return self.kernel_size - 1 if is_causal else (self.kernel_size - 1) // 2

    def _sum(self, x: Tensor, mask: Tensor | None, is_causal: bool, need_weights: bool) -> tuple[Tensor, Tensor | None]:
        gated = F.glu(self.in_proj(x))
        if mask is not None:
            gated = gated * mask[..., None]
        weights, before, length = self._weights(gated), self._before(is_causal), x.shape[1]
        padded = F.pad(split_heads(gated, self.num_heads), (0, 0, before, self.kernel_size - 1 - before))
        y = self._project(window_sum(weights, padded))
        if not need_weights:
            return y, None
        tokens = torch.arange(length, device=x.device)
        slots = tokens[:, None] + torch.arange(self.kernel_size, device=x.device) - before
        slots = torch.where(slots < length, slots, -1).clamp_min(-1)[None]
        return y, place_weights(_each(weights, length), slots, length).expand(x.shape[0], -1, -1, -1)

    def _project(self, y: Tensor) -> Tensor:
        projected: Tensor = self.out_proj(y.transpose(1, 2).flatten(2))
        return projected

    def _forward_cached(
        self,
        x: Tensor,
        attention_mask: Tensor | Padding | None,
        is_causal: bool,
        need_weights: bool,
        cache: KeyValueCache,
    ) -> tuple[Tensor, Tensor | None]:
        if self.layer_idx is None or not is_causal:
            raise ValueError(
                f"got a cache with layer_idx={self.layer_idx}, is_causal={is_causal}; expected the number of the "
                "layer, and True"
            )
        gated, rows = F.glu(self.in_proj(x)), x.shape[1]
        new = split_heads(gated, self.num_heads)
        _, values = cache.update(new[..., :0], new, self.layer_idx)
        columns = values.shape[2]
        padding = Padding.of_batch(attention_mask, x.shape[0], columns)
        own: Tensor | slice | None = getattr(cache, "slots", None)
        own = slice(columns - rows, None) if own is None else own
        slots = self._window_slots(values, own, padding)
        weights = self._weights(gated)
        if padding is None and isinstance(own, slice):
            reached = values[:, :, max(0, columns - rows - self.kernel_size + 1) :]
            y = window_sum(weights, F.pad(reached, (0, 0, rows + self.kernel_size - 1 - reached.shape[2], 0)))
        else:
            y = _gathered_sum(_each(weights, rows), values, slots)
        y = self._project(y)
        matrix = place_weights(_each(weights, rows), slots, columns) if need_weights else None
        if matrix is not None:
            matrix = matrix.expand(x.shape[0], -1, -1, -1)
        if padding is not None:
            real = padding.mask[:, own]
            y = y.masked_fill(~real[..., None], 0)
            matrix = None if matrix is None else matrix.masked_fill(~real[:, None, :, None], 0)
        return y, matrix

    def _window_slots(self, values: Tensor, own: Tensor | slice, padding: Padding | None) -> Tensor:
        """(B or 1, T, C): the slots of the tokens in the window of each new one; −1 where there are none."""
        steps = torch.arange(1 - self.kernel_size, 1, device=values.device)
        if padding is None:
            slots = torch.arange(values.shape[2], device=values.device)[own]
            return (slots[:, None] + steps).clamp_min(-1)[None]
        positions = padding.positions[:, own, None] + steps
        if padding.index is None:
            return positions.clamp_min(-1)
        slots = padding.index.gather(1, positions.clamp_min(0).flatten(1)).view_as(positions)
        return torch.where(positions < 0, -1, slots)


def _each(weights: Tensor, rows: int) -> Tensor:
    """(B or 1, H, T, C), the weights of each token."""
    return weights if weights.dim() == 4 else weights[None, :, None].expand(-1, -1, rows, -1)


def _gathered_sum(weights: Tensor, values: Tensor, slots: Tensor) -> Tensor:
    """(B, H, T, K): the values (B, H, S, K) at slots (B or 1, T, C), summed with weights (B or 1, H, T, C)."""
    batch, _, _, features = values.shape
    where = slots.clamp_min(0).expand(batch, -1, -1)
    taken = values.transpose(1, 2).gather(
        1, where.flatten(1)[:, :, None, None].expand(-1, -1, values.shape[1], features)
    )
    taken = taken.unflatten(1, where.shape[1:]).permute(0, 3, 1, 2, 4)
    weights = weights.masked_fill((slots < 0)[:, None], 0)
    return (weights[..., None, :] @ taken).squeeze(-2)


@register("lightweight_conv")
class LightweightConvolution(_Convolution):
    """A lightweight convolution: C weights in each head, the same for every token of every example.

    3·d² + H·C parameters where vanilla attention has 4·d².
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        place = {"device": self.out_proj.weight.device, "dtype": self.out_proj.weight.dtype}
        self.kernel = empty(self.num_heads, self.kernel_size, **cast(Any, place))
        self._reset_kernel()

    def _reset_kernel(self) -> None:
        # Glorot's, as of the authors' (H, 1, C).
        bound = (6 / (self.kernel_size * (self.num_heads + 1))) ** 0.5
        nn.init.uniform_(self.kernel, -bound, bound)

    def reset_parameters(self) -> None:
        super().reset_parameters()
        self._reset_kernel()

    @property
    def weight_parameters(self) -> int:
        return self.kernel.numel()

    def _weights(self, gated: Tensor) -> Tensor:
        return self._dropped(self.kernel)


@register("dynamic_conv")
class DynamicConvolution(_Convolution):
    """A dynamic convolution: each token makes the C weights of its window, softmax(W X′_t) in each head.

    3·d² + d·H·C parameters where vanilla attention has 4·d².
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        inner, place = self.out_proj.in_features, self.out_proj.weight
        self.kernel_proj = Linear(
            inner, self.num_heads * self.kernel_size, bias=False, device=place.device, dtype=place.dtype
        )
        nn.init.xavier_uniform_(self.kernel_proj.weight)

    def reset_parameters(self) -> None:
        super().reset_parameters()
        nn.init.xavier_uniform_(self.kernel_proj.weight)

    @property
    def weight_parameters(self) -> int:
        return self.kernel_proj.weight.numel()

    def _weights(self, gated: Tensor) -> Tensor:
        return self._dropped(split_heads(self.kernel_proj(gated), self.num_heads))
