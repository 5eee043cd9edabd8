"""Layers for tests."""

import torch

from synthetic_attention import SynthesizerAttention


def drawn_layer(d_model: int, num_heads: int, synthesizer: str, max_length: int) -> SynthesizerAttention:
    """A layer in float64, the same each time, of whose parameters none is near zero."""
    torch.manual_seed(0)
    layer = SynthesizerAttention(d_model, num_heads, synthesizer, max_length).double()
    for parameter in layer.parameters():
        parameter.data.normal_()
    return layer
