"""Synthesizing functions and layers for tests. A new function is one more entry of FUNCTIONS."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from synthetic_attention import SynthesizerAttention, reference

HEADS = 3  # of the layers whose equations are compared


class Facts(NamedTuple):
    """What the tests have to know of a function besides its name.

    Attributes:
        logits: (function, head, x (L, d)) -> S(x) (L, L) of this head, by its equation in plain code.
        weights: (d, heads, N) -> trained parameters of the function without biases (those of the paper: Table 1).
        biases: the same for biases.
    """

    logits: Callable[[nn.Module, int, Tensor], Tensor]
    weights: Callable[[int, int, int], int]
    biases: Callable[[int, int, int], int] = lambda d, h, n: 0


def of_head(linear: nn.Linear, h: int) -> tuple[Tensor, Tensor]:
    """Weight and bias of head h, to multiply from the right."""
    return linear.weight.unflatten(0, (HEADS, -1))[h].T, linear.bias.unflatten(0, (HEADS, -1))[h]


def vanilla(f: nn.Module, h: int, x: Tensor) -> Tensor:
    (w_q, b_q), (w_k, b_k) = of_head(f.q_proj, h), of_head(f.k_proj, h)
    return reference.vanilla(x, w_q, w_k, b_q, b_k)


def dense(f: nn.Module, h: int, x: Tensor) -> Tensor:
    w_1, b_1 = of_head(f.q_proj, h)
    return reference.dense(x, w_1, f.key[h].T, b_1, f.key_bias[h])


def factorized_dense(f: nn.Module, h: int, x: Tensor) -> Tensor:
    (w_1, b_1), a = of_head(f.q_proj, h), f.factors[0]
    w_a, w_b, b_a, b_b = f.weight[h, :a].T, f.weight[h, a:].T, f.bias[h, :a], f.bias[h, a:]
    return reference.factorized_dense(x, w_1, w_a, w_b, b_1, b_a, b_b)


# The counts are compared at N = 13: factorized dense makes 4 · 4 of it.
FUNCTIONS = {
    "vanilla": Facts(vanilla, lambda d, h, n: 2 * d * d, lambda d, h, n: 2 * d),
    "dense": Facts(dense, lambda d, h, n: d * d + d * n, lambda d, h, n: d + h * n),
    "random": Facts(lambda f, h, x: reference.random(f.table[h], len(x)), lambda d, h, n: h * n * n),
    "fixed_random": Facts(lambda f, h, x: reference.random(f.table[h], len(x)), lambda d, h, n: 0),
    "factorized_dense": Facts(factorized_dense, lambda d, h, n: d * d + d * (4 + 4), lambda d, h, n: d + h * (4 + 4)),
    "factorized_random": Facts(
        lambda f, h, x: reference.factorized_random(f.row_factor[h], f.key_factor[h], len(x)),
        lambda d, h, n: h * 2 * n * 8,
    ),
    "relative_random": Facts(
        lambda f, h, x: reference.relative_random(f.offsets[h], len(x)), lambda d, h, n: h * (2 * n - 1)
    ),
}
MIXTURES = [f"{name}+vanilla" for name in FUNCTIONS if name != "vanilla"]
MIXTURES += ["random+dense", "random+factorized_dense", "factorized_random+dense", "dense+factorized_dense"]
MIXTURES += ["random+factorized_random", "random+dense+vanilla"]
# By the number of heads that they have in the contract suite.
GROUPS = {"random:3/vanilla:1": 4, "dense/factorized_random/vanilla": 3, "random+vanilla:2/dense:2": 4}


def drawn_layer(d_model: int, num_heads: int, synthesizer: str, max_length: int) -> SynthesizerAttention:
    """A layer in float64, the same each time, of whose parameters none is near zero."""
    torch.manual_seed(0)
    layer = SynthesizerAttention(d_model, num_heads, synthesizer, max_length).double()
    for parameter in layer.parameters():
        parameter.data.normal_()
    return layer
