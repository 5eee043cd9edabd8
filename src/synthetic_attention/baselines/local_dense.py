"""Local dense attention (Xu et al., "Transformer-Based End-to-End Speech Recognition with Local Dense Synthesizer
Attention", ICASSP 2021): a dense Synthesizer that writes a weight for each of C neighbours, not for each of N
positions. So there is no maximum length, and the work is linear in the length.

Row t is softmax(W₂ relu(W₁ X_t + b₁) + b₂) over the tokens of the window round t that there are.

Shape legend: B batch, H heads, T tokens, C tokens in a window, K width of a head.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor

from ..kernels.eager import masked_softmax
from ..synthesizers.base import Options, empty, reset_map, split_heads, whole
from .base import register
from .window_layer import WindowLayer

__all__ = ["LocalDense"]


@dataclass(frozen=True, kw_only=True)
class LocalDenseOptions(Options):
    """Options of `local_dense`.

    Attributes:
        window: C, tokens in a window; 15 as in the paper.
    """

    window: int = 15

    def __post_init__(self) -> None:
        whole(self.window, "window", "local_dense")


@register("local_dense")
class LocalDense(WindowLayer):
    """A dense Synthesizer within a window. W₁ is d → d, and each head has a W₂ of its own, d_head → C, as in `dense`.

    d² + d·C parameters, and d + H·C of biases, beside values and output; vanilla has 2·d² + 2·d.

    Args:
        dropout: probability with which weights are dropped in training.
        options: `window`.
        max_length: not needed.
    """

    Options = LocalDenseOptions
    only_inside = True

    def __init__(
        self,
        d_model: int,
        num_heads: int,
        max_length: int | None = None,
        *,
        options: LocalDenseOptions | None = None,
        bias: bool = True,
        **arguments: Any,
    ) -> None:
        size = (options or LocalDenseOptions()).window
        super().__init__(size, 2, d_model, num_heads, bias=bias, **arguments)
        place = cast(Any, {"device": self.out_proj.weight.device, "dtype": self.out_proj.weight.dtype})
        self.weight = empty(num_heads, size, self.head_dim, **place)
        self.bias = empty(num_heads, size, **place) if bias else None
        reset_map(self.weight, self.bias)

    def reset_parameters(self) -> None:
        super().reset_parameters()
        reset_map(self.weight, self.bias)

    @property
    def weight_parameters(self) -> int:
        rows, own = self.out_proj.in_features, self.weight.numel() + (0 if self.bias is None else self.bias.numel())
        return rows * (self.in_proj.in_features + (self.in_proj.bias is not None)) + own

    def _read(self, x: Tensor) -> Sequence[Tensor]:
        values, hidden = self.in_proj(x).chunk(2, dim=-1)
        # (H, tokens, K) × (H, K, C)
        tokens = torch.relu(hidden).reshape(-1, self.num_heads, self.head_dim).transpose(0, 1)
        logits = torch.bmm(tokens, self.weight.mT)
        if self.bias is not None:
            logits = logits + self.bias[:, None]
        return [values, logits.transpose(0, 1).reshape(*x.shape[:-1], self.num_heads * self.kernel_size)]

    def _shares(self, logits: Sequence[Tensor], inside: Tensor | None) -> Tensor:
        scores = split_heads(logits[0], self.num_heads)
        return masked_softmax(scores, None if inside is None else inside[:, None]).to(scores.dtype)
