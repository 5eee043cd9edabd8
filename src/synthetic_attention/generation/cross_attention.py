"""A decoding step of cross-attention.

Shape legend: B sources, M beams, N = B · M rows, H heads, S source tokens, K width of a head.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..kernels.matmul import is_plain
from ..layout import read_mask
from ..models.blocks import CrossAttention
from .attention import Slots, prepare, prepare_sum, softmax


class Source:
    """What the decoder attends to: the encoder's output (B, S, d_model), and its mask (B, S), 1/True at real tokens."""

    def __init__(self, states: Tensor, mask: Tensor | None, heads: int) -> None:
        self.states = states
        # (B · H, 1, S), −inf at padding, and (B, 1, 1, 1), 0 at sources without a token: attention to them is zeros.
        self.hidden: Tensor | None = None
        self.is_real: Tensor | None = None
        real = None if mask is None else read_mask(mask, *states.shape[:2])[0]
        if real is None:
            return
        some = real.any(1, keepdim=True)
        hidden = torch.zeros(real.shape, dtype=states.dtype, device=states.device)
        hidden = hidden.masked_fill(~real & some, -torch.inf)
        self.hidden = hidden[:, None].expand(-1, heads, -1).flatten(0, 1)[:, None]
        self.is_real = some[..., None, None].to(states.dtype)


class CrossAttentionStep:
    """A step of attention to the encoder: keys and values once for each source, beams as rows of one product."""

    def __init__(self, layer: CrossAttention, source: Source, slots: Slots) -> None:
        self.heads, self.hidden, self.slots = layer.num_heads, source.hidden, slots
        keys, values = (
            module(source.states).unflatten(2, (self.heads, -1)).transpose(1, 2)
            for module in (layer.k_proj, layer.v_proj)
        )
        values = values if source.is_real is None else values * source.is_real
        # (B · H, K, S), with the scale of the logits, and (B · H, S, K).
        self.keys, self.values = (keys * layer.head_dim**-0.5).mT.flatten(0, 1), values.flatten(0, 1)
        self.is_folded = self._can_fold(layer)
        if self.is_folded:
            self._fold(layer)
        else:
            rows = slots.sources * slots.beams
            self.project, self.add_projected = prepare(layer.q_proj, rows), prepare_sum(layer.out_proj, rows)

    def _can_fold(self, layer: CrossAttention) -> bool:
        """Whether a step with folded projections computes the same, and not more: for one short source."""
        if not is_plain(layer.q_proj) or not is_plain(layer.out_proj) or self.keys.shape[0] != self.heads:
            return False
        is_exact = self.keys.dtype in (torch.float32, torch.float64)
        return is_exact and self.heads * self.keys.shape[2] <= layer.out_proj.out_features

    def _fold(self, layer: CrossAttention) -> None:
        """Make the projections of queries and outputs part of the keys and values of one source.

        (x Wqᵀ + bq) Kᵀ = x (Wqᵀ Kᵀ) + bq Kᵀ, and A V Woᵀ + bo = A (V Woᵀ + bo / H), as each row of weights sums to 1.
        The keys become (d_model, H · S), their bias (H · S,), and the values (H · S, d_model).
        """
        query, out, keys = layer.q_proj, layer.out_proj, self.keys
        bias = keys.new_zeros(1) if self.hidden is None else self.hidden
        if query.bias is not None:
            bias = bias + query.bias.view(self.heads, 1, -1) @ keys
        self.key_bias = bias.expand(self.heads, 1, keys.shape[2]).flatten()
        weight = query.weight.view(self.heads, -1, query.weight.shape[1])
        self.keys = (weight.mT @ keys).transpose(0, 1).flatten(1)
        values = self.values @ out.weight.t().view(self.heads, -1, len(out.weight))
        self.values = (values if out.bias is None else values + out.bias / self.heads).flatten(0, 1)

    def __call__(self, total: Tensor, x: Tensor) -> Tensor:
        """total + attention(x), all (N, d_model)."""
        if self.is_folded:
            scores = torch.addmm(self.key_bias, x, self.keys).view(len(x), self.heads, -1)
            return torch.addmm(total, softmax(scores).flatten(1), self.values)
        query, slots = self.project(x), self.slots
        if slots.beams == 1:
            query = query.reshape(slots.sources * self.heads, 1, -1)
        else:
            query = query.view(slots.sources, slots.beams, self.heads, -1).transpose(1, 2).flatten(0, 1)
        scores = torch.bmm(query, self.keys) if self.hidden is None else torch.baddbmm(self.hidden, query, self.keys)
        return self.add_projected(total, slots.join_heads(torch.bmm(softmax(scores), self.values), self.heads))

    def keep(self, sources: Tensor) -> None:
        """Drop all sources but these."""
        states: Any = (self.keys, self.values, self.hidden)
        self.keys, self.values, self.hidden = (
            None if x is None else x.unflatten(0, (-1, self.heads)).index_select(0, sources).flatten(0, 1)
            for x in states
        )
