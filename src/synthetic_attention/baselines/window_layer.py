"""Layers that sum the tokens of a window round each token: the convolutions and local dense attention.

A window is centred, or ends with its token where the layer is causal.

Shape legend: B batch, H heads, T tokens, S slots, C tokens in a window, K width of a head.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from ..attention import KeyValueCache
from ..masks import Padding
from ..synthesizers.base import split_heads
from .base import Baseline
from .windows import place_weights, window_sum

__all__ = ["WindowLayer"]


class WindowLayer(Baseline):
    """A weighted sum of values over a window; a subclass makes the values and the weights.

    Args:
        kernel_size: C, tokens in a window.
        arguments, named: of `Baseline`.

    Attributes:
        only_inside: whether weights are shared out among the tokens that there are, so that which these are matters.
    """

    only_inside: ClassVar[bool] = False

    def __init__(self, kernel_size: int, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.kernel_size = kernel_size

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, kernel_size={self.kernel_size}"

    def _shares(self, logits: Sequence[Tensor], inside: Tensor | None) -> Tensor:
        """The weights of the windows, before dropout: (B, H, T, C), or (H, C) for all alike.

        Args:
            logits: (B, T, H·C), what `_read` gave beside the values; nothing where weights ignore the input.
            inside: (B or 1, T, C), True where a window has a token; None where `only_inside` is not set.
        """
        raise TypeError(f"{type(self).__name__} does not define _shares()")

    def _before(self, is_causal: bool) -> int:
        """How many tokens of a window are before its own. Of an even number, one more is after it than before."""
        return self.kernel_size - 1 if is_causal else (self.kernel_size - 1) // 2

    def _sum(
        self, read: Sequence[Tensor], mask: Tensor | None, is_causal: bool, need_weights: bool
    ) -> tuple[Tensor, Tensor | None]:
        values, *logits = read
        before, length = self._before(is_causal), values.shape[1]
        slots, inside = None, None
        if need_weights or self.only_inside:
            steps = torch.arange(self.kernel_size, device=values.device) - before
            slots = torch.arange(length, device=values.device)[:, None] + steps
            inside = ((slots >= 0) & (slots < length))[None]
            if mask is not None:
                inside = inside & mask[:, slots.clamp(0, length - 1)]
        shares = self._shares(logits, inside)
        padded = F.pad(split_heads(values, self.num_heads), (0, 0, before, self.kernel_size - 1 - before))
        y = window_sum(F.dropout(shares, self.dropout, self.training), padded)
        if not need_weights or slots is None or inside is None:
            return y, None
        matrix = place_weights(_each(shares, length), torch.where(inside, slots, -1), length)
        return y, matrix.expand(values.shape[0], -1, -1, -1)

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
        read = self._read(x)
        rows, new = x.shape[1], split_heads(read[0], self.num_heads)
        _, values = cache.update(new[..., :0], new, self.layer_idx)
        columns = values.shape[2]
        padding = Padding.of_batch(attention_mask, x.shape[0], columns)
        own: Tensor | None = getattr(cache, "slots", None)
        if padding is not None and columns == rows and own is None:
            # A first call over padded prompts: rows that are aligned have their windows side by side.
            mask = padding.aligned.mask
            y, weights = self._sum([padding.align(part) * mask[..., None] for part in read], mask, True, need_weights)
            weights = None if weights is None else padding.restore_pairs(weights)
            return padding.restore(self.out_proj(y.transpose(1, 2).flatten(2))), weights
        slots = self._window_slots(values, slice(-rows, None) if own is None else own, padding)
        shares = self._shares(read[1:], slots >= 0)
        dropped = F.dropout(shares, self.dropout, self.training)
        if padding is None and own is None:
            reached = values[:, :, max(0, columns - rows - self.kernel_size + 1) :]
            y = window_sum(dropped, F.pad(reached, (0, 0, rows + self.kernel_size - 1 - reached.shape[2], 0)))
        else:
            y = _gathered_sum(_each(dropped, rows), values, slots)
        y = self.out_proj(y.transpose(1, 2).flatten(2))
        matrix = None
        if need_weights:
            matrix = place_weights(_each(shares, rows), slots, columns).expand(x.shape[0], -1, -1, -1)
        if padding is not None:
            real = padding.mask[:, slice(-rows, None) if own is None else own]
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
    batch, heads, _, features = values.shape
    where = slots.clamp_min(0).expand(batch, -1, -1)
    picked = where.flatten(1)[:, :, None, None].expand(-1, -1, heads, features)
    taken = values.transpose(1, 2).gather(1, picked).unflatten(1, where.shape[1:]).permute(0, 3, 1, 2, 4)
    weights = weights.masked_fill((slots < 0)[:, None], 0)
    return (weights[..., None, :] @ taken).squeeze(-2)
