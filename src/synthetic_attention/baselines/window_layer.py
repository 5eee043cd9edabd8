"""Layers that sum the tokens of a window round each token: the convolutions and local dense attention.

A window is centred, or ends with its token where the layer is causal.

Shape legend: B batch, H heads, T tokens, S slots, C tokens in a window, K width of a head.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ..attention import KeyValueCache
from ..functions.base import split_heads
from ..masks import Padding
from .base import Baseline
from .windows import place_weights, window_sum

__all__ = ["WindowLayer"]


class WindowLayer(Baseline):
    """A weighted sum of values over a window; a subclass makes the values and the weights.

    Args:
        kernel_size: C, tokens in a window.
        arguments: of `Baseline`.
    """

    def __init__(self, kernel_size: int, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.kernel_size = kernel_size

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, kernel_size={self.kernel_size}"

    def _read(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Of tokens (B, T, d_model) the values (B, T, H·K), and what their weights are made of."""
        raise TypeError(f"{type(self).__name__} does not define _read()")

    def _weights(self, source: Tensor, inside: Tensor) -> Tensor:
        """The weights of the windows: (B, H, T, C), or (H, C) for all alike.

        Args:
            source: what `_read` gave for that.
            inside: (B or 1, T, C), True where a window has a token.
        """
        raise TypeError(f"{type(self).__name__} does not define _weights()")

    def _before(self, is_causal: bool) -> int:
        """How many tokens of a window are before its own. Of an even number, one more is after it than before."""
        return self.kernel_size - 1 if is_causal else (self.kernel_size - 1) // 2

    def _sum(self, x: Tensor, mask: Tensor | None, is_causal: bool, need_weights: bool) -> tuple[Tensor, Tensor | None]:
        values, source = self._read(x)
        before, length = self._before(is_causal), x.shape[1]
        slots = torch.arange(length, device=x.device)[:, None] - before
        slots = slots + torch.arange(self.kernel_size, device=x.device)
        inside = ((slots >= 0) & (slots < length))[None]
        if mask is not None:
            values = values * mask[..., None]
            inside = inside & mask[:, slots.clamp(0, length - 1)]
        weights = self._weights(source, inside)
        padded = F.pad(split_heads(values, self.num_heads), (0, 0, before, self.kernel_size - 1 - before))
        y = self._project(window_sum(weights, padded))
        if not need_weights:
            return y, None
        matrix = place_weights(_each(weights, length), torch.where(inside, slots, -1), length)
        return y, matrix.expand(x.shape[0], -1, -1, -1)

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
        read, source = self._read(x)
        rows, new = x.shape[1], split_heads(read, self.num_heads)
        _, values = cache.update(new[..., :0], new, self.layer_idx)
        columns = values.shape[2]
        padding = Padding.of_batch(attention_mask, x.shape[0], columns)
        own: Tensor | slice | None = getattr(cache, "slots", None)
        own = slice(columns - rows, None) if own is None else own
        slots = self._window_slots(values, own, padding)
        weights = self._weights(source, slots >= 0)
        if padding is None and isinstance(own, slice):
            reached = values[:, :, max(0, columns - rows - self.kernel_size + 1) :]
            y = window_sum(weights, F.pad(reached, (0, 0, rows + self.kernel_size - 1 - reached.shape[2], 0)))
        else:
            y = _gathered_sum(_each(weights, rows), values, slots)
        y = self._project(y)
        matrix = None
        if need_weights:
            matrix = place_weights(_each(weights, rows), slots, columns).expand(x.shape[0], -1, -1, -1)
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
    batch, heads, _, features = values.shape
    where = slots.clamp_min(0).expand(batch, -1, -1)
    picked = where.flatten(1)[:, :, None, None].expand(-1, -1, heads, features)
    taken = values.transpose(1, 2).gather(1, picked).unflatten(1, where.shape[1:]).permute(0, 3, 1, 2, 4)
    weights = weights.masked_fill((slots < 0)[:, None], 0)
    return (weights[..., None, :] @ taken).squeeze(-2)
