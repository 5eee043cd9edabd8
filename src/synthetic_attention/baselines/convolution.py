"""Lightweight and dynamic convolutions (Wu et al., "Pay Less Attention with Lightweight and Dynamic Convolutions",
arXiv 1901.10430).

The input goes through a gated linear unit, X′ = (X W₁ + b₁) ∘ σ(X W₂ + b₂). Its features are split into heads, and each
head sums X′ over a window of C tokens round each token, with weights that are a softmax over the window: parameters of
the head (lightweight), or made from the token in the middle (dynamic). So they are a random and a dense Synthesizer of
relative positions within a window, but for two things: the gate, and that weights which fall outside of the sequence
are lost, where attention would share them out among the tokens that there are.

Shape legend: B batch, H heads, T tokens, C tokens in a window, K width of a head.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..linear import Linear
from ..synthesizers.base import Options, empty, split_heads, whole
from .base import register
from .window_layer import WindowLayer

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
        sizes = self.kernel_size if isinstance(self.kernel_size, list | tuple) else [self.kernel_size]
        if not sizes:
            raise ValueError("got kernel_size=[]; expected a whole number of at least 1, or a list with one per layer")
        for size in sizes:
            whole(size, "kernel_size", "a convolution")

    def of_layer(self, layer_idx: int | None) -> int:
        """C of one layer, counted from 0; of a layer by itself the last one."""
        if isinstance(self.kernel_size, int):
            return self.kernel_size
        last = len(self.kernel_size) - 1
        return self.kernel_size[last if layer_idx is None else min(layer_idx, last)]


class _Convolution(WindowLayer):
    """What the two have in common.

    Args:
        dropout: probability with which weights are dropped in training; where all tokens share the weights, they share
            what is dropped.
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
        layer_idx: int | None = None,
        **arguments: Any,
    ) -> None:
        size = (options or ConvolutionOptions()).of_layer(layer_idx)
        super().__init__(size, 2, d_model, num_heads, layer_idx=layer_idx, **arguments)

    def _gated(self, x: Tensor) -> Tensor:
        return F.glu(self.in_proj(x))


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

    def _read(self, x: Tensor) -> Sequence[Tensor]:
        return [self._gated(x)]

    def _shares(self, logits: Sequence[Tensor], inside: Tensor | None) -> Tensor:
        return torch.softmax(self.kernel, dim=-1)


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

    def _read(self, x: Tensor) -> Sequence[Tensor]:
        gated = self._gated(x)
        return [gated, self.kernel_proj(gated)]

    def _shares(self, logits: Sequence[Tensor], inside: Tensor | None) -> Tensor:
        return torch.softmax(split_heads(logits[0], self.num_heads), dim=-1)
