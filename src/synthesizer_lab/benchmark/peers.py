"""The input of attention layers, and the layers of PyTorch and Hugging Face that ours are compared with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import T5Config
from transformers.models.t5.modeling_t5 import T5Attention

from ..errors import UserError
from .harness import Contender, Inputs

MASKS = ("full", "causal", "padded")
PEERS = ("mha", "sdpa", "t5")


@dataclass(frozen=True)
class Case:
    """The input of a layer: x (batch, length, width), with one of the masks of `MASKS`.

    Raises:
        UserError: sizes that do not fit, or an unknown mask.
    """

    batch: int
    length: int
    mask: str = "full"
    width: int = 512
    heads: int = 8
    dtype: torch.dtype = torch.float32
    device: str = "cpu"

    def __post_init__(self) -> None:
        if self.mask not in MASKS:
            raise UserError(f"got mask {self.mask!r}; expected one of: {', '.join(MASKS)}")
        if self.batch < 1 or self.length < 2:
            raise UserError(f"got {self.batch} sequences of length {self.length}; expected at least 1 of length 2")
        if self.width % self.heads:
            raise UserError(f"got width {self.width} and {self.heads} heads; expected heads that divide the width")

    @property
    def is_causal(self) -> bool:
        return self.mask == "causal"

    def inputs(self) -> Inputs:
        """Random inputs; padded sequences have between L/2 and L real tokens."""
        x = torch.randn(self.batch, self.length, self.width, dtype=self.dtype, device=self.device)
        mask = None
        if self.mask == "padded":
            lengths = torch.linspace(self.length // 2, self.length, self.batch).long()
            mask = (torch.arange(self.length) < lengths[:, None]).to(self.device)
        return x.requires_grad_(), mask, torch.randn_like(x)


def build_peer(case: Case, name: str) -> Contender:
    """A layer by its name in `PEERS`."""
    hidden = None
    if case.is_causal:
        # (L, L), True at the keys that a row must not see.
        hidden = torch.ones(case.length, case.length, dtype=torch.bool, device=case.device).triu(1)
    build = {"mha": _multihead, "sdpa": _sdpa, "t5": _t5}[name]
    with torch.device(case.device):
        peer = build(case, hidden)
    peer.module.to(case.dtype)
    return peer


def _multihead(case: Case, hidden: Tensor | None) -> Contender:
    mha = nn.MultiheadAttention(case.width, case.heads, batch_first=True)

    def call(x: Tensor, mask: Tensor | None) -> Tensor:
        padding = None if mask is None else ~mask
        return mha(x, x, x, need_weights=False, key_padding_mask=padding, attn_mask=hidden, is_causal=case.is_causal)[0]

    return Contender("mha", mha, call)


def _sdpa(case: Case, hidden: Tensor | None) -> Contender:
    """Projections around PyTorch's kernels: one on a CPU, three on a GPU, whichever is faster."""
    parts = 1 if case.device == "cpu" else 3
    inputs = nn.ModuleList(nn.Linear(case.width, 3 * case.width // parts) for _ in range(parts))
    out = nn.Linear(case.width, case.width)

    def call(x: Tensor, mask: Tensor | None) -> Tensor:
        projected = [part for project in inputs for part in project(x).chunk(3 // parts, -1)]
        q, k, v = (part.unflatten(-1, (case.heads, -1)).transpose(1, 2) for part in projected)
        allowed = None if mask is None else mask[:, None, None, :]
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=allowed, is_causal=case.is_causal)
        return out(y.transpose(1, 2).flatten(2))

    return Contender("sdpa", nn.ModuleDict({"inputs": inputs, "out": out}), call)


def _t5(case: Case, hidden: Tensor | None) -> Contender:
    """Hugging Face's T5 attention, without biases and relative positions; it builds whole matrices of weights."""
    config: Any = T5Config(
        d_model=case.width, d_kv=case.width // case.heads, num_heads=case.heads, dropout_rate=0.0, is_decoder=False
    )
    config._attn_implementation = "eager"
    layer = T5Attention(config, has_relative_attention_bias=False, layer_idx=0)

    def call(x: Tensor, mask: Tensor | None) -> Tensor:
        left_out = hidden if mask is None else ~mask[:, None, None, :]
        if left_out is None:
            return layer(x, mask=None)[0]
        return layer(x, mask=x.new_zeros(left_out.shape).masked_fill_(left_out, torch.finfo(x.dtype).min))[0]

    return Contender("t5", layer, call)
