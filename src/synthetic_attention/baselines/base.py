"""The base class of the baselines.

Shape legend: B batch, T new tokens, S keys in use, H heads, K width of a head.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from torch import Tensor
from transformers import Cache

from ..attention import SelfAttention
from ..kernels import join_heads, linear, split_heads
from ..layout import TokenLayout
from ..synthesizers import Dimensions

# What `_sum` returns: the sums, and the weights if they are needed.
Sum = tuple[Tensor, Tensor | None]


class Baseline(SelfAttention):
    """A layer in the place of `SynthesizerAttention`, called as it is; values cannot come from another input.

    Made by `build`. Keyword-only arguments of a subclass are its options; its `__init__` ends with `reset_parameters`.

    Attributes:
        name: its name in `synthesizer`.
        can_be_causal: whether it can keep a token from seeing those after it.
        per_position: the axes of its tensors, by name, that are as long as the maximum length.
    """

    name: ClassVar[str] = ""
    is_layer: ClassVar[bool] = True
    can_be_causal: ClassVar[bool] = True
    per_position: ClassVar[Mapping[str, tuple[int, ...]]] = {}

    def __init__(self, dims: Dimensions, dropout: float = 0.0, layer_idx: int | None = None) -> None:
        super().__init__(dims, dropout, layer_idx)
        self.synthesizer = self.name

    def forward(
        self,
        x: Tensor,
        attention_mask: Tensor | TokenLayout | None = None,
        attn_bias: Tensor | None = None,
        is_causal: bool = False,
        *,
        need_weights: bool = False,
        cache: Cache | None = None,
    ) -> Any:
        """Sum the values; arguments and results are those of `SynthesizerAttention.forward`.

        The weights of `need_weights` are without dropout, and their rows need not sum to 1.

        Raises:
            ValueError: shapes that do not fit, a bias, or a causal or cached call that the layer does not support.
        """
        if attn_bias is not None:
            raise ValueError(f"got an attn_bias for {self.name!r}; expected none: it has no logits to add it to")
        if x.dim() == 2:
            return self.one_sequence(x, attention_mask, None, is_causal, need_weights=need_weights, cache=cache)
        if cache is not None and not is_causal:
            raise ValueError(f"got a cache for {self.name!r} with is_causal=False; expected True")
        if is_causal and not self.can_be_causal:
            raise ValueError(f"got is_causal=True for {self.name!r}; expected False: it always sees all tokens")
        layout = self.layout_of(x, attention_mask, cache)
        values, *parts = (layout.pad(part) for part in self._read(layout.pack(x)))
        if (real := layout.aligned.mask) is not None and layout.real_tokens is None and not layout.has_past:
            values, *parts = (part * real[..., None] for part in (values, *parts))
        value = split_heads(values, self.num_heads)
        _, value = layout.update(cache, value[:, :0], value, self.layer_idx)
        y, weights = self._sum(value, parts, layout, is_causal, need_weights)
        if weights is not None:
            weights = layout.restore_pairs(weights).to(value.dtype)
            if not (self.training and self.dropout):
                # From the returned tensor, so that the weights have a gradient. Dropout is on parts of the weights.
                y = layout.align_pairs(weights) @ value
        y = layout.unpack(linear(self.out_proj, join_heads(y, layout)))
        return (y, weights) if need_weights else y

    def _read(self, tokens: Tensor) -> Sequence[Tensor]:
        """The projections of tokens (…, d_model), each (…, features); the values (…, H·K) come first."""
        raise NotImplementedError

    def _sum(self, value: Tensor, parts: list[Tensor], layout: TokenLayout, is_causal: bool, need_weights: bool) -> Sum:
        """The sums (B, H, T, K), and the weights (B, H, T, S) or None.

        `value` is (B, H, S, K), of an aligned batch, zeros at padding; in a decoding step in the slots of the cache.
        `parts` are the other projections of `_read`, (B, T, features) each.
        """
        raise NotImplementedError
