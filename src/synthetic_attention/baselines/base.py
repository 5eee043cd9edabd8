"""What the baselines share, and the registry of them.

Shape legend: B batch, T new tokens, S keys in use, H heads.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from ..attention import KeyValueCache
from ..linear import Linear
from ..masks import Padding
from ..projections import head_width, project_packed, reset_projections
from ..synthesizers.base import Options, registrar

__all__ = ["BASELINES", "Baseline", "register"]


class Baseline(nn.Module):
    """A layer in the place of `SynthesizerAttention`, made and called as it is, but for two arguments: its options are
    an object, `options`, and values do not come from another input.

    Args:
        projected: how many times H·K features it wants of its input.
        d_model, num_heads, head_dim, bias, dropout, layer_idx, device, dtype: as for `SynthesizerAttention`.

    Attributes:
        name: its name in `synthesizer`.
        can_be_causal: whether it can keep a token from seeing those after it.
        has_shares: whether its weights are shares of the tokens: none is negative.
        needs_max_length: whether it has parameters up to a maximum length.
        caches_keys: whether decoding has to keep keys beside the values.
        max_length: the longest sequence; None where there is none.
    """

    name: ClassVar[str] = ""
    Options: ClassVar[type[Options]] = Options
    can_be_causal: ClassVar[bool] = True
    has_shares: ClassVar[bool] = True
    needs_max_length: ClassVar[bool] = False
    caches_keys: ClassVar[bool] = False
    max_length: int | None = None

    def __init__(
        self,
        projected: int,
        d_model: int,
        num_heads: int,
        *,
        head_dim: int | None = None,
        bias: bool = True,
        dropout: float = 0.0,
        layer_idx: int | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.head_dim = head_width(d_model, num_heads, head_dim, dropout)
        self.d_model, self.num_heads, self.dropout, self.layer_idx = d_model, num_heads, dropout, layer_idx
        inner = num_heads * self.head_dim
        self.in_proj = Linear(d_model, projected * inner, bias=bias, device=device, dtype=dtype)
        self.out_proj = Linear(inner, d_model, bias=bias, device=device, dtype=dtype)
        reset_projections(self.in_proj, self.out_proj)

    @property
    def synthesizer(self) -> str:
        """Its name, where a `SynthesizerAttention` has that of its function."""
        return self.name

    @property
    def weight_parameters(self) -> int:
        """How many parameters make the weights that tokens are summed with."""
        raise TypeError(f"{type(self).__name__} does not define weight_parameters")

    def reset_parameters(self) -> None:
        """Initialise all parameters anew."""
        reset_projections(self.in_proj, self.out_proj)

    def extra_repr(self) -> str:
        return f"d_model={self.d_model}, num_heads={self.num_heads}"

    def forward(
        self,
        x: Tensor,
        attention_mask: Tensor | Padding | None = None,
        attn_bias: Tensor | None = None,
        is_causal: bool = False,
        *,
        need_weights: bool = False,
        cache: KeyValueCache | None = None,
    ) -> Any:
        """(B, T, d_model) to the same, or (T, d_model) for one sequence.

        Args:
            attention_mask: (B, S), 1/True at real tokens, padded left, right or with holes; positions are logical.
            is_causal: a token sees itself and those before it.
            need_weights: return the weights (B, H, T, S) too, with which the values are summed, without dropout.
                Their rows need not sum to 1.
            cache: keeps the values of the tokens before x.

        Returns:
            (B, T, d_model), zeros at padded tokens; or that and the weights with `need_weights`.

        Raises:
            ValueError: shapes that do not fit, a bias, or what the layer cannot do.
        """
        if attn_bias is not None:
            raise ValueError(f"got an attn_bias for {self.name!r}; expected none: it has no logits to add it to")
        if x.dim() == 2:
            mask = attention_mask
            if isinstance(mask, Tensor) and mask.dim() == 1:
                mask = mask[None]
            result = self(x[None], mask, None, is_causal, need_weights=need_weights, cache=cache)
            return (result[0][0], result[1][0]) if need_weights else result[0]
        if x.dim() != 3 or x.shape[-1] != self.d_model:
            raise ValueError(f"got x of shape {tuple(x.shape)}; expected (B, L, {self.d_model}) or (L, {self.d_model})")
        if cache is not None:
            y, weights = self._forward_cached(x, attention_mask, is_causal, need_weights, cache)
        else:
            y, weights = self._forward_aligned(x, attention_mask, is_causal, need_weights)
        return (y, weights) if need_weights else y

    def _forward_aligned(
        self, x: Tensor, attention_mask: Tensor | Padding | None, is_causal: bool, need_weights: bool
    ) -> tuple[Tensor, Tensor | None]:
        """Align the batch, sum, and move the result back to the input's slots. Only real tokens are projected."""
        padding = Padding.of_batch(attention_mask, x.shape[0], x.shape[1])
        packing = None if padding is None else padding.packing
        if padding is None:
            read, mask = self._read(x), None
        elif packing is None:
            mask = padding.aligned.mask
            read = [part * mask[..., None] for part in self._read(padding.align(x))]
        else:
            read, mask = [packing.pad_aligned(part) for part in self._read(packing.pack(x))], padding.aligned.mask
        y, weights = self._sum(read, mask, is_causal, need_weights)
        y = y.transpose(1, 2).flatten(2)
        if padding is None:
            return self.out_proj(y), weights
        y = padding.restore(self.out_proj(y)) if packing is None else project_packed(self.out_proj, y, packing)
        return y, None if weights is None else padding.restore_pairs(weights)

    def _read(self, x: Tensor) -> Sequence[Tensor]:
        """What is projected of tokens (…, d_model), each (…, features); the values (…, H·K) come first."""
        raise TypeError(f"{type(self).__name__} does not define _read()")

    def _sum(
        self, read: Sequence[Tensor], mask: Tensor | None, is_causal: bool, need_weights: bool
    ) -> tuple[Tensor, Tensor | None]:
        """The sums (B, H, L, K) over an aligned batch, and the weights (B, H, L, L) if they are needed.

        Args:
            read: what `_read` gave, (B, L, features) each, zeros at padding.
            mask: (B, L), True at real tokens; None where all are.
        """
        raise TypeError(f"{type(self).__name__} does not define _sum()")

    def _forward_cached(
        self,
        x: Tensor,
        attention_mask: Tensor | Padding | None,
        is_causal: bool,
        need_weights: bool,
        cache: KeyValueCache,
    ) -> tuple[Tensor, Tensor | None]:
        raise ValueError(f"got a cache for {self.name!r}; expected none: it cannot decode")


BASELINES: dict[str, type[Baseline]] = {}


# Makes a class known in `synthesizer`.
register = registrar(BASELINES)
