"""Lightweight and dynamic convolutions (Wu et al., "Pay Less Attention with Lightweight and Dynamic Convolutions",
arXiv 1901.10430).

The input goes through a gated linear unit, X′ = (X W₁ + b₁) ∘ σ(X W₂ + b₂). Its features are split into heads, and each
head sums X′ over a window of C tokens round each token, with weights that are a softmax over the window: parameters of
the head (lightweight), or made from the token in the middle (dynamic). So they are a random and a dense Synthesizer of
relative positions within a window, with two differences: the gate, and that weights outside the sequence are dropped,
where attention would redistribute them to the tokens inside.

Shape legend: B batch, H heads, T tokens, C tokens in a window, K width of a head.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ..kernels import linear, split_heads
from ..synthesizers import Dimensions, register, reset_projection
from .window import WindowLayer


class _Convolution(WindowLayer):
    """Base class of the two: the gated values.

    Args:
        kernel_size: C, tokens in a window; a list has one for each layer, the last of them for all layers after it.
            The paper's encoder of seven layers has 3, 7, 15, 31, 31, 31, 31. A layer by itself has the last one.
    """

    def __init__(
        self,
        dims: Dimensions,
        dropout: float = 0.0,
        layer_idx: int | None = None,
        *,
        kernel_size: int | list[int] | tuple[int, ...] = (3, 7, 15, 31),
    ) -> None:
        super().__init__(dims, dropout, layer_idx)
        sizes = [kernel_size] if isinstance(kernel_size, int) else kernel_size
        self.kernel_size = sizes[-1 if layer_idx is None else min(layer_idx, len(sizes) - 1)]
        self.gate_proj = dims.projection()
        self._make_kernel(dims)

    def _make_kernel(self, dims: Dimensions) -> None:
        """Make the parameters of the weights, and initialise all parameters."""
        raise NotImplementedError

    def _gated(self, tokens: Tensor) -> Tensor:
        return linear(self.v_proj, tokens) * torch.sigmoid(linear(self.gate_proj, tokens))


@register("lightweight_conv")
class LightweightConvolution(_Convolution):
    """A lightweight convolution: C weights in each head, the same for every token of every example, and so the dropout
    mask. 3·d² + H·C parameters where vanilla attention has 4·d².
    """

    def _make_kernel(self, dims: Dimensions) -> None:
        self.kernel = dims.parameter(self.num_heads, self.kernel_size)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        super().reset_parameters()
        # Glorot's, as of the authors' (H, 1, C).
        bound = (6 / (self.kernel_size * (self.num_heads + 1))) ** 0.5
        nn.init.uniform_(self.kernel, -bound, bound)

    def _read(self, tokens: Tensor) -> Sequence[Tensor]:
        return [self._gated(tokens)]

    def _shares(self, logits: Sequence[Tensor], inside: Tensor | None) -> Tensor:
        return torch.softmax(self.kernel, dim=-1)


@register("dynamic_conv")
class DynamicConvolution(_Convolution):
    """A dynamic convolution: each token makes the C weights of its window, softmax(W X′_t) in each head.

    3·d² + d·H·C parameters where vanilla attention has 4·d².
    """

    def _make_kernel(self, dims: Dimensions) -> None:
        self.reset_parameters()
        weights = self.num_heads * self.kernel_size
        self.kernel_proj = nn.Linear(dims.inner_dim, weights, bias=False, device=dims.device, dtype=dims.dtype)
        reset_projection(self.kernel_proj)

    def _read(self, tokens: Tensor) -> Sequence[Tensor]:
        gated = self._gated(tokens)
        return [gated, linear(self.kernel_proj, gated)]

    def _shares(self, logits: Sequence[Tensor], inside: Tensor | None) -> Tensor:
        return torch.softmax(split_heads(logits[0], self.num_heads), dim=-1)
