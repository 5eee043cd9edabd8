"""Attention layers and encoders: ours, and those of PyTorch and Hugging Face."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from transformers import T5Config
from transformers.models.t5.modeling_t5 import T5Attention

from ..attention import SynthesizerAttention
from ..errors import UserError
from ..layout import TokenLayout
from ..models import SynthesizerConfig
from ..models.modeling import SynthesizerStack
from .harness import Contender, Inputs, Measurement, measure_memory, time_turns

BASELINE = "mha"
MASKS = ("full", "causal", "padded")
ENCODER_VARIANTS = ("random", "fixed_random", "factorized_random", "dense", "factorized_dense")
VARIANTS = (*ENCODER_VARIANTS, "random+vanilla", "dense+vanilla", "vanilla")


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
        """Random inputs, the same for the same seed."""
        x = torch.randn(self.batch, self.length, self.width, dtype=self.dtype, device=self.device)
        mask = None
        if self.mask == "padded":
            # Lengths between L/2 and L.
            lengths = torch.linspace(self.length // 2, self.length, self.batch, device=self.device).long()
            mask = torch.arange(self.length, device=self.device) < lengths[:, None]
        return x.requires_grad_(), mask, torch.randn_like(x)


def measure_layers(
    case: Case, variants: Sequence[str], *, training: bool = True, repeats: int = 0, memory: bool = False
) -> list[Measurement]:
    """Measure the peers and our variants in `repeats` turns, after checking each variant against its reference.

    Raises:
        RuntimeError: a variant differs from its reference.
    """
    torch.manual_seed(0)
    return _measure(case, build_layers(case, variants), variants, training, repeats, memory)


def measure_encoders(
    case: Case, layers: int, variants: Sequence[str], *, training: bool = True, repeats: int = 5
) -> list[Measurement]:
    """Measure time and memory of a vanilla encoder, PyTorch's, and those of `variants`."""
    torch.manual_seed(0)
    return _measure(case, _encoders(case, layers, variants), (), training, repeats, memory=True)


def _measure(
    case: Case, contenders: Sequence[Contender], checked: Sequence[str], training: bool, repeats: int, memory: bool
) -> list[Measurement]:
    """Check the contenders of these names, time all in turns, count the bytes of each. The first is the baseline."""
    for each in contenders:
        each.module.to(case.device, case.dtype)
    differences = {each.name: check(each, case) for each in contenders if each.name in checked}
    inputs, found = case.inputs(), []
    turns = {each.name: partial(each.step, inputs, training) for each in contenders}
    times = time_turns(turns, contenders[0].name, repeats, device=case.device)
    for each in contenders:
        time, ratio = times.get(each.name, (None, None))
        peak, kept = measure_memory(each, inputs, training) if memory else (None, None)
        size = sum(p.numel() for p in each.module.parameters())
        difference = differences.get(each.name)
        found.append(Measurement(each.name, case, training, time, ratio, difference, peak, kept, size))
    return found


def build_layers(case: Case, variants: Sequence[str]) -> list[Contender]:
    """The peers, the baseline first, and our layers."""
    # True at the keys that a causal row must not see.
    ones = torch.ones(case.length, case.length, dtype=torch.bool, device=case.device)
    hidden = ones.triu(1) if case.is_causal else None
    layers = [_multihead(case, hidden), _sdpa(case), _t5(case, hidden)]
    for name in variants:
        layer = SynthesizerAttention(case.width, case.heads, name, case.length)
        layers.append(Contender(name, layer, partial(layer, is_causal=case.is_causal)))
    return layers


def _multihead(case: Case, hidden: Tensor | None) -> Contender:
    mha = nn.MultiheadAttention(case.width, case.heads, batch_first=True)

    def call(x: Tensor, mask: Tensor | None) -> Tensor:
        padding = None if mask is None else ~mask
        return mha(x, x, x, need_weights=False, key_padding_mask=padding, attn_mask=hidden, is_causal=case.is_causal)[0]

    return Contender(BASELINE, mha, call)


def _sdpa(case: Case) -> Contender:
    """Fused projections around `scaled_dot_product_attention`."""
    qkv, out = nn.Linear(case.width, 3 * case.width), nn.Linear(case.width, case.width)

    def call(x: Tensor, mask: Tensor | None) -> Tensor:
        q, k, v = qkv(x).unflatten(-1, (3, case.heads, -1)).permute(2, 0, 3, 1, 4)
        allowed = None if mask is None else mask[:, None, None, :]
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=allowed, is_causal=case.is_causal)
        return out(y.transpose(1, 2).flatten(2))

    return Contender("sdpa", nn.ModuleDict({"qkv": qkv, "out": out}), call)


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


def _encoders(case: Case, layers: int, variants: Sequence[str]) -> list[Contender]:
    """The vanilla encoder, PyTorch's, then `variants`; all pre-norm, with feed-forward layers 4 times as wide."""

    def ours(name: str) -> Contender:
        config = SynthesizerConfig(
            vocab_size=3,
            d_model=case.width,
            num_heads=case.heads,
            d_ff=4 * case.width,
            num_layers=layers,
            synthesizer=name,
            max_position_embeddings=case.length,
            dropout_rate=0.0,
        )
        encoder = SynthesizerStack(config, "encoder")
        return Contender(name, encoder, lambda x, mask: encoder(x, TokenLayout.of(mask, x))[0])

    layer = nn.TransformerEncoderLayer(
        case.width, case.heads, 4 * case.width, dropout=0.0, batch_first=True, norm_first=True
    )
    # PyTorch supports nested tensors only without norm_first.
    peer = nn.TransformerEncoder(layer, layers, nn.LayerNorm(case.width), enable_nested_tensor=False)
    torchs = Contender(
        "nn.TransformerEncoder",
        peer,
        lambda x, mask: peer(x, src_key_padding_mask=None if mask is None else ~mask),
    )
    baseline, *others = (ours(name) for name in dict.fromkeys(("vanilla", *variants)))
    return [baseline, torchs, *others]


def check(layer: Contender, case: Case) -> float:
    """The largest relative difference of output and gradients from those of whole matrices, in the Euclidean norm.

    Raises:
        RuntimeError: it is larger than rounding explains.
    """
    inputs = case.inputs()
    fast = _gradients(layer.call, layer.module, inputs)
    with sdpa_kernel(SDPBackend.MATH):
        slow = _gradients(partial(layer.module, is_causal=case.is_causal), layer.module, inputs)
    # Some gradients are only rounding errors around zero, such as that of vanilla's key bias.
    smallest = 0.01 * max(float(each.norm()) for each in slow)
    worst = max(float((a - b).norm() / b.norm().clamp_min(smallest)) for a, b in zip(fast, slow, strict=True))
    limit = 1e-3 if case.dtype == torch.float32 else 5e-2
    if not worst <= limit:
        raise RuntimeError(f"{layer.name} differs from its reference by {worst:.1e}; expected at most {limit:.0e}")
    return worst


def _gradients(call: Callable[[Tensor, Tensor | None], Tensor], module: nn.Module, inputs: Inputs) -> list[Tensor]:
    """Output and all gradients, in float32."""
    x, mask, gradient = inputs
    y = call(x, mask)
    parameters = [p for p in module.parameters() if p.requires_grad]
    return [t.float() for t in (y.detach(), *torch.autograd.grad(y, [x, *parameters], gradient))]
