"""The attention layers that are measured: ours, their slow twins, and those of PyTorch and Hugging Face."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..attention import SynthesizerAttention
from ..kernels import attention_weights
from ..synthesizers import Span

__all__ = ["BASELINE", "MASKS", "Case", "Layer", "build_layers", "check", "run_step"]

BASELINE = "mha"
MASKS = ("full", "causal", "padded")


@dataclass(frozen=True)
class Case:
    """What a layer is run on: x (B, L, width), in one of the kinds of `MASKS`."""

    batch: int
    length: int
    mask: str = "full"
    width: int = 512
    heads: int = 8
    dtype: torch.dtype = torch.float32
    device: str = "cpu"

    @property
    def is_causal(self) -> bool:
        return self.mask == "causal"

    def inputs(self) -> tuple[Tensor, Tensor | None, Tensor]:
        """x, the mask (B, L) or None, and a gradient of the output."""
        x = torch.randn(self.batch, self.length, self.width, dtype=self.dtype, device=self.device)
        mask = None
        if self.mask == "padded":
            # Spread over L/2 … L.
            lengths = torch.linspace(self.length // 2, self.length, self.batch, device=self.device).long()
            mask = torch.arange(self.length, device=self.device) < lengths[:, None]
        return x.requires_grad_(), mask, torch.randn_like(x)


@dataclass(frozen=True)
class Layer:
    """A module, and how it is called with x and a mask of real tokens."""

    name: str
    module: nn.Module
    call: Callable[[Tensor, Tensor | None], Tensor]


def build_layers(case: Case, variants: list[str], twins: bool = False) -> list[Layer]:
    """The peers, the baseline first, and our layers."""
    layers = [_multihead(case), _sdpa(case), _t5(case)]
    for name in variants:
        ours = SynthesizerAttention(case.width, case.heads, name, case.length)
        layers.append(Layer(name, ours, partial(_call, ours, case.is_causal)))
        if twins:
            layers.append(Layer(f"{name} (twin)", ours, partial(slow_twin, ours, case.is_causal)))
    for layer in layers:
        layer.module.to(case.device, case.dtype)
    return layers


def _call(layer: SynthesizerAttention, is_causal: bool, x: Tensor, mask: Tensor | None) -> Tensor:
    y: Tensor = layer(x, mask, is_causal=is_causal)
    return y


def _multihead(case: Case) -> Layer:
    mha = nn.MultiheadAttention(case.width, case.heads, batch_first=True)
    hidden = _later(case) if case.is_causal else None

    def call(x: Tensor, mask: Tensor | None) -> Tensor:
        padding = None if mask is None else ~mask
        y: Tensor = mha(
            x, x, x, need_weights=False, key_padding_mask=padding, attn_mask=hidden, is_causal=case.is_causal
        )[0]
        return y

    return Layer(BASELINE, mha, call)


def _later(case: Case) -> Tensor:
    """True where a causal row may not look."""
    return torch.ones(case.length, case.length, dtype=torch.bool, device=case.device).triu(1)


class _SdpaLayer(nn.Module):
    """Fused projections round `scaled_dot_product_attention`: what an engineer would write."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor, mask: Tensor | None, is_causal: bool) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        allowed = None if mask is None else mask[:, None, None, :]
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=allowed, is_causal=is_causal)
        projected: Tensor = self.out(y.transpose(1, 2).flatten(2))
        return projected


def _sdpa(case: Case) -> Layer:
    layer = _SdpaLayer(case.width, case.heads)
    return Layer("sdpa", layer, lambda x, mask: layer(x, mask, case.is_causal))


def _t5(case: Case) -> Layer:
    """Hugging Face's T5 attention, without biases and relative positions; it builds whole matrices of weights."""
    from transformers import T5Config
    from transformers.models.t5.modeling_t5 import T5Attention

    config: Any = T5Config(
        d_model=case.width, d_kv=case.width // case.heads, num_heads=case.heads, dropout_rate=0.0, is_decoder=False
    )
    config._attn_implementation = "eager"
    layer = T5Attention(config, has_relative_attention_bias=False, layer_idx=0)
    lowest = torch.finfo(case.dtype).min
    causal = None
    if case.is_causal:
        causal = torch.zeros(1, 1, case.length, case.length, dtype=case.dtype, device=case.device)
        causal.masked_fill_(_later(case), lowest)

    def call(x: Tensor, mask: Tensor | None) -> Tensor:
        additive = causal
        if mask is not None:
            additive = torch.zeros(mask.shape, dtype=x.dtype, device=x.device).masked_fill_(~mask, lowest)
            additive = additive[:, None, None, :]
        y: Tensor = layer(x, mask=additive)[0]
        return y

    return Layer("t5", layer, call)


def slow_twin(layer: SynthesizerAttention, is_causal: bool, x: Tensor, mask: Tensor | None) -> Tensor:
    """The layer's equation through whole matrices of weights."""
    value, inputs = layer._project(x, None)
    logits = layer.function(inputs, Span(x.shape[1], x.shape[1]), layer.function.keys(inputs))
    weights = attention_weights(logits, mask, is_causal, length=x.shape[1])
    y: Tensor = layer.out_proj((weights.to(value.dtype) @ value).transpose(1, 2).flatten(2))
    return y if mask is None else y * mask[..., None]


def run_step(layer: Layer, x: Tensor, mask: Tensor | None, g: Tensor, training: bool) -> None:
    """Forward and backward, or the forward in inference mode."""
    if not training:
        with torch.inference_mode():
            layer.call(x, mask)
        return
    layer.call(x, mask).backward(g)
    x.grad = None
    layer.module.zero_grad()


def check(layer: Layer, case: Case) -> float:
    """Compare output and gradients of one of our layers with those of its slow twin.

    Returns:
        The largest relative difference among them, in the Euclidean norm.

    Raises:
        RuntimeError: it is more than rounding explains.
    """
    ours = layer.module
    assert isinstance(ours, SynthesizerAttention)
    x, mask, g = case.inputs()
    fast = _gradients(layer.call, ours, x, mask, g)
    slow = _gradients(partial(slow_twin, ours, case.is_causal), ours, x, mask, g)
    worst = max(float((a - b).norm() / b.norm().clamp_min(1e-20)) for a, b in zip(fast, slow, strict=True))
    limit = 1e-3 if case.dtype == torch.float32 else 5e-2
    if not worst <= limit:
        raise RuntimeError(f"{layer.name} differs from its slow twin by {worst:.1e}; expected at most {limit:.0e}")
    return worst


def _gradients(
    call: Callable[[Tensor, Tensor | None], Tensor], module: nn.Module, x: Tensor, mask: Tensor | None, g: Tensor
) -> list[Tensor]:
    """Output and all gradients, in float32."""
    y = call(x, mask)
    parameters = [p for p in module.parameters() if p.requires_grad]
    return [t.float() for t in (y.detach(), *torch.autograd.grad(y, [x, *parameters], g))]
