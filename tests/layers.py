"""Synthesizing functions and layers for tests. A new function is one more name in FUNCTIONS."""

import torch

from synthetic_attention import SynthesizerAttention

FUNCTIONS = [
    "vanilla",
    "dense",
    "random",
    "fixed_random",
    "factorized_dense",
    "factorized_random",
    "relative_random",
]
MIXTURES = [f"{name}+vanilla" for name in FUNCTIONS if name != "vanilla"] + [
    "random+dense",
    "random+factorized_dense",
    "factorized_random+dense",
    "dense+factorized_dense",
    "random+factorized_random",
    "random+dense+vanilla",
]
# By the number of heads that they have in the contract suite.
GROUPS = {
    "random:3/vanilla:1": 4,
    "dense/factorized_random/vanilla": 3,
    "random+vanilla:2/dense:2": 4,
}


def drawn_layer(d_model: int, num_heads: int, synthesizer: str, max_length: int) -> SynthesizerAttention:
    """A layer in float64, the same each time, of whose parameters none is near zero."""
    torch.manual_seed(0)
    layer = SynthesizerAttention(d_model, num_heads, synthesizer, max_length).double()
    for parameter in layer.parameters():
        parameter.data.normal_()
    return layer
