"""Attention layers and encoders: ours, and those of PyTorch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from synthetic_attention.attention import SynthesizerAttention
from synthetic_attention.layout import TokenLayout
from synthetic_attention.models import SynthesizerConfig
from synthetic_attention.models.modeling import SynthesizerStack

from ..errors import UserError
from .harness import Contender, Inputs, measure_memory, measurement, time_turns

MASKS = ("full", "causal", "padded")
ENCODER_VARIANTS = ("random", "fixed_random", "factorized_random", "dense", "factorized_dense")
VARIANTS = (*ENCODER_VARIANTS, "random+vanilla", "dense+vanilla", "vanilla")
_TORCH_ENCODER = "nn.TransformerEncoder"


@dataclass(frozen=True)
class Case:
    """The input of a layer: x (batch, length, width), with one of the masks of `MASKS`.

    Attributes:
        layers: number of layers of an encoder; 0 for an attention layer alone.

    Raises:
        UserError: sizes that do not fit, or an unknown mask.
    """

    batch: int
    length: int
    mask: str = "full"
    width: int = 512
    heads: int = 8
    layers: int = 0
    dtype: torch.dtype = torch.float32
    device: str = "cpu"

    def __post_init__(self) -> None:
        if self.mask not in MASKS:
            raise UserError(f"got mask {self.mask!r}; expected one of: {', '.join(MASKS)}")
        if self.batch < 1 or self.length < 2:
            raise UserError(f"got {self.batch} sequences of length {self.length}; expected at least 1 of length 2")
        if self.width % self.heads:
            raise UserError(f"got width {self.width} and {self.heads} heads; expected heads that divide the width")

    def inputs(self) -> Inputs:
        """Random inputs; padded sequences have between L/2 and L real tokens."""
        x = torch.randn(self.batch, self.length, self.width, dtype=self.dtype, device=self.device)
        mask = None
        if self.mask == "padded":
            lengths = torch.linspace(self.length // 2, self.length, self.batch).long()
            mask = (torch.arange(self.length) < lengths[:, None]).to(self.device)
        return x.requires_grad_(), mask, torch.randn_like(x)


def measure(case: Case, variants: Sequence[str], repeats: int, training: bool = True) -> list[dict[str, Any]]:
    """Time PyTorch's and our layers or encoders in turns, and count the bytes of each.

    The first is the baseline: of layers `mha` on a CPU and `sdpa` on a GPU, of encoders `vanilla`.
    """
    peers = ["mha", "sdpa"] if case.device == "cpu" else ["sdpa", "mha"]
    if case.layers:
        peers = ["vanilla", _TORCH_ENCODER]
    torch.manual_seed(0)
    inputs, found = case.inputs(), []
    layers = {name: build(case, name) for name in dict.fromkeys([*peers, *variants])}
    for layer in layers.values():
        layer.module.train(training)
    turns = {name: partial(layer.step, inputs, training) for name, layer in layers.items()}
    times = time_turns(turns, repeats, device=case.device)
    for name, layer in layers.items():
        milliseconds, ratio = times[name]
        peak, kept = measure_memory(layer, inputs, training)
        size = sum(p.numel() for p in layer.module.parameters())
        figures = {"milliseconds": milliseconds, "ratio": ratio, "peak": peak, "kept": kept, "parameters": size}
        found.append(measurement(case, name, training, **figures))
    return found


def build(case: Case, name: str) -> Contender:
    """A layer or encoder of PyTorch, or ours with this function or mixture."""
    if case.layers:
        make = _torch_encoder if name == _TORCH_ENCODER else partial(_encoder, name)
    else:
        make = {"mha": _multihead, "sdpa": _sdpa}.get(name) or partial(_attention, name)
    with torch.device(case.device):
        contender = make(case)
    contender.module.to(case.dtype)
    return contender


def _attention(name: str, case: Case) -> Contender:
    layer = SynthesizerAttention(case.width, case.heads, name, case.length, dtype=case.dtype)
    return Contender(layer, partial(layer, is_causal=case.mask == "causal"))


def _multihead(case: Case) -> Contender:
    mha, is_causal = nn.MultiheadAttention(case.width, case.heads, batch_first=True), case.mask == "causal"
    # (L, L), True at the keys that a row must not see.
    hidden = torch.ones(case.length, case.length, dtype=torch.bool).triu(1) if is_causal else None

    def call(x: Tensor, mask: Tensor | None) -> Tensor:
        padding = None if mask is None else ~mask
        return mha(x, x, x, need_weights=False, key_padding_mask=padding, attn_mask=hidden, is_causal=is_causal)[0]

    return Contender(mha, call)


def _sdpa(case: Case) -> Contender:
    """Projections around PyTorch's kernels: one on a CPU, three on a GPU, whichever is faster."""
    parts = 1 if case.device == "cpu" else 3
    inputs = nn.ModuleList(nn.Linear(case.width, 3 * case.width // parts) for _ in range(parts))
    out = nn.Linear(case.width, case.width)

    def call(x: Tensor, mask: Tensor | None) -> Tensor:
        projected = [part for project in inputs for part in project(x).chunk(3 // parts, -1)]
        q, k, v = (part.unflatten(-1, (case.heads, -1)).transpose(1, 2) for part in projected)
        allowed = None if mask is None else mask[:, None, None, :]
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=allowed, is_causal=case.mask == "causal")
        return out(y.transpose(1, 2).flatten(2))

    return Contender(nn.ModuleDict({"inputs": inputs, "out": out}), call)


def _encoder(name: str, case: Case) -> Contender:
    config = SynthesizerConfig(
        vocab_size=3,
        d_model=case.width,
        num_heads=case.heads,
        d_ff=4 * case.width,
        num_layers=case.layers,
        synthesizer=name,
        max_position_embeddings=case.length,
        dropout_rate=0.0,
    )
    encoder = SynthesizerStack(config, "encoder")
    return Contender(encoder, lambda x, mask: encoder(x, TokenLayout.of(mask, x))[0])


def _torch_encoder(case: Case) -> Contender:
    """Pre-norm, as ours."""
    layer = nn.TransformerEncoderLayer(
        case.width, case.heads, 4 * case.width, dropout=0.0, batch_first=True, norm_first=True
    )
    # PyTorch supports nested tensors only without norm_first.
    encoder = nn.TransformerEncoder(layer, case.layers, nn.LayerNorm(case.width), enable_nested_tensor=False)
    return Contender(encoder, lambda x, mask: encoder(x, src_key_padding_mask=None if mask is None else ~mask))
