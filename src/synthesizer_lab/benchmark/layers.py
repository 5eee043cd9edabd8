"""Attention layers and encoders: ours, and those of PyTorch and Hugging Face."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn

from synthetic_attention.attention import SynthesizerAttention
from synthetic_attention.layout import TokenLayout
from synthetic_attention.models import SynthesizerConfig
from synthetic_attention.models.modeling import SynthesizerStack

from .harness import Contender, Measurement, measure_memory, time_turns
from .peers import PEERS, Case, build_peer

ENCODER_VARIANTS = ("random", "fixed_random", "factorized_random", "dense", "factorized_dense")
VARIANTS = (*ENCODER_VARIANTS, "random+vanilla", "dense+vanilla", "vanilla")
_TORCH_ENCODER = "nn.TransformerEncoder"


def measure_layers(
    case: Case,
    variants: Sequence[str],
    *,
    training: bool = True,
    repeats: int = 0,
    memory: bool = False,
) -> list[Measurement]:
    """Measure the peers and our variants in `repeats` turns. The baseline is `mha` on a CPU, `sdpa` on a GPU."""
    peers = PEERS if case.device == "cpu" else ("sdpa", "mha", "t5")
    return _measure(case, [*peers, *variants], partial(build_layer, case), training, repeats, memory)


def measure_encoders(
    case: Case, layers: int, variants: Sequence[str], *, training: bool = True, repeats: int = 5
) -> list[Measurement]:
    """Measure time and memory of a vanilla encoder, PyTorch's, and those of `variants`."""
    names = ["vanilla", _TORCH_ENCODER, *(name for name in variants if name != "vanilla")]
    return _measure(case, names, partial(_build_encoder, case, layers), training, repeats, memory=True)


def _measure(
    case: Case, names: Sequence[str], build: Callable[[str], Contender], training: bool, repeats: int, memory: bool
) -> list[Measurement]:
    """Time all in turns, and count the bytes of each. The first is the baseline."""
    torch.manual_seed(0)
    inputs, found = case.inputs(), []
    layers = {name: build(name) for name in names}
    turns = {name: partial(layer.step, inputs, training) for name, layer in layers.items()}
    times = time_turns(turns, repeats, device=case.device)
    for name, layer in layers.items():
        time, ratio = times.get(name, (None, None))
        peak, kept = measure_memory(layer, inputs, training) if memory else (None, None)
        size = sum(p.numel() for p in layer.module.parameters())
        found.append(Measurement(name, case, training, time, ratio, peak=peak, kept=kept, parameters=size))
    return found


def build_layer(case: Case, name: str) -> Contender:
    """One of `PEERS`, or our layer with this function or mixture."""
    if name in PEERS:
        return build_peer(case, name)
    layer = SynthesizerAttention(case.width, case.heads, name, case.length, device=case.device, dtype=case.dtype)
    return Contender(name, layer, partial(layer, is_causal=case.is_causal))


def _build_encoder(case: Case, layers: int, name: str) -> Contender:
    """Ours, or PyTorch's; all pre-norm, with feed-forward layers 4 times as wide."""
    sizes: dict[str, Any] = {
        "d_model": case.width,
        "num_heads": case.heads,
        "d_ff": 4 * case.width,
        "num_layers": layers,
    }
    with torch.device(case.device):
        if name == _TORCH_ENCODER:
            layer = nn.TransformerEncoderLayer(
                case.width, case.heads, 4 * case.width, dropout=0.0, batch_first=True, norm_first=True
            )
            # PyTorch supports nested tensors only without norm_first.
            peer = nn.TransformerEncoder(layer, layers, nn.LayerNorm(case.width), enable_nested_tensor=False)
            peer.to(case.dtype)
            return Contender(name, peer, lambda x, mask: peer(x, src_key_padding_mask=None if mask is None else ~mask))
        config = SynthesizerConfig(
            vocab_size=3, synthesizer=name, max_position_embeddings=case.length, dropout_rate=0.0, **sizes
        )
        encoder = SynthesizerStack(config, "encoder").to(case.dtype)
    return Contender(name, encoder, lambda x, mask: encoder(x, TokenLayout.of(mask, x))[0])
