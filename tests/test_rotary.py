"""Rotary positions, shared keys and values, and norms of queries and keys, against the equations."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from layers import FUNCTIONS, MIXTURES
from synthetic_attention import SynthesizerAttention, SynthesizerConfig
from synthetic_attention.synthesizers import Rotary

# Six heads in groups of three.
B, T, D, H, G, K, THETA, EPSILON = 2, 11, 7, 6, 2, 4, 100.0, 1e-3
SIZES = {"d_model": D, "d_kv": K, "num_heads": H, "num_key_value_heads": G, "vocab_size": 29, "d_ff": 5}
ROTARY = {"position_embedding_type": "rotary", "rope_parameters": {"rope_theta": THETA, "rope_type": "default"}}
GROUPS = ["random:3/vanilla:3", "dense+vanilla/random"]


def make(name: str, **keywords: Any) -> SynthesizerAttention:
    rotary = Rotary(SynthesizerConfig(**SIZES, **ROTARY, synthesizer="vanilla"), K)
    arguments: dict[str, Any] = {"num_key_value_heads": G, "rotary": rotary, "qk_norm": EPSILON, "layer_idx": 0}
    layer = SynthesizerAttention(D, H, name, 13, head_dim=K, dtype=torch.float64, **arguments | keywords).eval()
    for parameter in layer.parameters():
        nn.init.normal_(parameter, std=0.5)
    return layer


def rotated(x: Tensor, positions: Tensor) -> Tensor:
    """The features (i, i + K / 2) of x (…, T, K) as complex numbers, times e^(ip theta^(−2i / K))."""
    numbers = torch.complex(*x.chunk(2, dim=-1))
    angles = positions[:, None] * THETA ** (-torch.arange(0, K, 2, dtype=torch.float64) / K)
    turned = numbers * torch.polar(torch.ones_like(angles), angles)
    return torch.cat((turned.real, turned.imag), dim=-1)


def reference(layer: SynthesizerAttention, x: Tensor, positions: Tensor) -> Tensor:
    """Causal dot-product attention of one row (T, d_model), head by head."""
    vanilla: Any = layer.function
    heads = []
    for head in range(H):
        query, key = (
            rotated(rows / (rows.square().mean(-1, keepdim=True) + EPSILON).sqrt() * norm.weight, positions)
            for rows, norm in (
                (vanilla.q_proj(x)[:, head * K : (head + 1) * K], vanilla.q_norm),
                (vanilla.k_proj(x)[:, head // 3 * K : (head // 3 + 1) * K], vanilla.k_norm),
            )
        )
        scores = (query @ key.T / K**0.5).masked_fill(torch.ones(len(x), len(x)).triu(1) > 0, -torch.inf)
        heads.append(scores.softmax(-1) @ layer.v_proj(x)[:, head // 3 * K : (head // 3 + 1) * K])
    return layer.out_proj(torch.cat(heads, dim=-1))


def check_gradients(outputs: tuple[Tensor, Tensor], layer: nn.Module, tolerance: float = 1e-6) -> None:
    weights, trained = torch.randn_like(outputs[0]), [p for p in layer.parameters() if p.requires_grad]
    gradients = [torch.autograd.grad((y * weights).sum(), trained) for y in outputs]
    for got, want in zip(*gradients, strict=True):
        torch.testing.assert_close(got, want, atol=tolerance, rtol=tolerance)


def test_the_equation_and_its_gradients() -> None:
    layer, x, lengths = make("vanilla"), torch.randn(B, T, D, dtype=torch.float64), (T, 7)
    y = layer(x, torch.stack([torch.arange(T) >= T - length for length in lengths]), is_causal=True)
    rows = [reference(layer, row[-n:], torch.arange(n)) for row, n in zip(x, lengths, strict=True)]
    expected = torch.stack([nn.functional.pad(row, (0, 0, T - len(row), 0)) for row in rows])
    # Angles are computed in float32, as by transformers.
    torch.testing.assert_close(y, expected, atol=1e-6, rtol=1e-6)
    check_gradients((y, expected), layer, 1e-5)


@pytest.mark.parametrize("name", [*FUNCTIONS, *MIXTURES, *GROUPS])
def test_shared_values_are_copies(name: str) -> None:
    """As a layer with keys and values for all heads, in which those that share have the same weights."""
    layer, full = make(name), make(name, num_key_value_heads=H)
    mask = torch.rand(B, T) < 0.8
    state = {**dict(layer.named_parameters()), **dict(layer.named_buffers())}
    for key in state:
        if "k_proj" in key or "v_proj" in key:
            state[key] = state[key].unflatten(0, (-1, K)).repeat_interleave(H // G, 0).flatten(0, 1)
    x = torch.randn(B, T, D, dtype=torch.float64)
    for arguments in ({"is_causal": True}, {"is_causal": False, "need_weights": True}):
        got: Any = layer(x, mask, **arguments)
        want: Any = torch.func.functional_call(full, state, (x, mask), arguments)
        if "need_weights" in arguments:
            torch.testing.assert_close(got[1], want[1])
            got, want = got[0], want[0]
        torch.testing.assert_close(got, want)
        check_gradients((got, want), layer)


def test_configurations() -> None:
    given = {**SIZES, "position_embedding_type": "rotary", "synthesizer": "vanilla", "is_encoder_decoder": False}
    config = SynthesizerConfig(**given)
    assert config.rope_parameters == {"rope_theta": 10000.0, "rope_type": "default"}
    assert SynthesizerConfig.from_dict(config.to_dict()).to_dict() == config.to_dict()
    learned = SynthesizerConfig(**given | {"position_embedding_type": "learned"}).to_dict()
    later = SynthesizerConfig.from_dict(learned, position_embedding_type="rotary")
    assert torch.equal(Rotary(later, K).frequencies, Rotary(config, K).frequencies)
    for fields, error in (
        ({"num_key_value_heads": 4}, "num_key_value_heads=4 with num_heads=6; expected a divisor"),
        ({"synthesizer": "random:2/vanilla:4"}, r"\(2, 4\) heads where 3 heads share a value; expected multiples of 3"),
        ({"synthesizer": "local_dense"}, "'local_dense' with num_key_value_heads"),
        ({"d_kv": 5}, "rotary positions for 6 of 5 features"),
        ({"rope_parameters": {"rope_type": "dynamic", "factor": 2.0}}, "rope_type='dynamic'.*one of: default, linear"),
    ):
        with pytest.raises(ValueError, match=error):
            SynthesizerConfig(**given | fields)
