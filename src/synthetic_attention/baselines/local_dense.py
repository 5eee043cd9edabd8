"""Local dense attention (Xu et al., "Transformer-Based End-to-End Speech Recognition with Local Dense Synthesizer
Attention", ICASSP 2021): a dense Synthesizer with a weight for each of C neighbours, not for each of N
positions. So there is no maximum length, and the work is linear in the length.

Row t is softmax(W₂ relu(W₁ X_t + b₁) + b₂) over the tokens in the window around t.

Shape legend: B batch, H heads, T tokens, C tokens in a window, K width of a head.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..kernels import linear, split_heads
from ..kernels.eager import masked_softmax
from ..synthesizers import Dimensions, register, reset_map
from .window import WindowLayer


@register("local_dense")
class LocalDense(WindowLayer):
    """A dense Synthesizer within a window: W₁ (`q_proj`) is d → d, W₂ (`key`) d_head → C in each head, as in `dense`.

    d² + d·C parameters, and d + H·C of biases, besides values and output; vanilla has 2·d² + 2·d.

    Args:
        window: C, tokens in a window; 15 as in the paper.
    """

    only_inside = True

    def __init__(
        self, dims: Dimensions, dropout: float = 0.0, layer_idx: int | None = None, *, window: int = 15
    ) -> None:
        super().__init__(dims, dropout, layer_idx)
        self.kernel_size, self.q_proj = window, dims.projection()
        self.key = dims.parameter(self.num_heads, self.kernel_size, self.head_dim)
        self.key_bias = dims.parameter(self.num_heads, self.kernel_size) if dims.bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        super().reset_parameters()
        reset_map(self.key, self.key_bias)

    def _read(self, tokens: Tensor) -> Sequence[Tensor]:
        # (H, tokens, K) × (H, K, C)
        hidden = torch.relu(linear(self.q_proj, tokens)).reshape(-1, self.num_heads, self.head_dim).transpose(0, 1)
        logits = torch.bmm(hidden, self.key.mT)
        if self.key_bias is not None:
            logits = logits + self.key_bias[:, None]
        logits = logits.transpose(0, 1).reshape(*tokens.shape[:-1], self.num_heads * self.kernel_size)
        return linear(self.v_proj, tokens), logits

    def _shares(self, logits: Sequence[Tensor], inside: Tensor | None) -> Tensor:
        scores = split_heads(logits[0], self.num_heads)
        return masked_softmax(scores, None if inside is None else inside[:, None]).to(scores.dtype)
