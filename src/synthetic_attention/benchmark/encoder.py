"""Time and memory of a whole encoder: every variant against a vanilla one, and PyTorch's own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from ..models import SynthesizerConfig
from ..models.stacks import SynthesizerStack
from .layers import Case, Layer, run_step
from .memory import measure_layer
from .timing import Quartiles, quartiles, take_turns

__all__ = ["ENCODER_BASELINE", "ENCODER_VARIANTS", "Cost", "build_encoders", "measure_encoders"]

ENCODER_BASELINE = "vanilla"
ENCODER_VARIANTS = ("random", "fixed_random", "factorized_random", "dense", "factorized_dense")
_PEER = "nn.TransformerEncoder"


@dataclass(frozen=True)
class Cost:
    """One encoder in one case.

    Attributes:
        layers: of the encoder.
        milliseconds: quartiles of a turn.
        ratio: quartiles of the baseline's time over this one's, turn by turn: how many times as fast it is.
        peak: bytes, at the highest point of a step, beyond the parameters and their gradients.
        kept: bytes that the forward leaves for the backward, its output included; 0 in inference.
        parameters: numbers in them.
    """

    case: Case
    layers: int
    training: bool
    name: str
    milliseconds: Quartiles
    ratio: Quartiles
    peak: int
    kept: int
    parameters: int


def build_encoders(case: Case, layers: int, variants: Sequence[str]) -> list[Layer]:
    """The vanilla encoder, PyTorch's, then `variants`; norms before sub-layers, feed-forward layers 4 × as wide."""
    names = dict.fromkeys((ENCODER_BASELINE, *variants))
    encoders = [Layer(name, module, partial(_call, module)) for name in names for module in [_ours(case, layers, name)]]
    inner = nn.TransformerEncoderLayer(
        case.width, case.heads, 4 * case.width, dropout=0.0, batch_first=True, norm_first=True
    )
    # A mask would become nested tensors, which norms before sub-layers exclude.
    peer = nn.TransformerEncoder(inner, layers, nn.LayerNorm(case.width), enable_nested_tensor=False)
    encoders.insert(1, Layer(_PEER, peer, partial(_call_peer, peer)))
    for encoder in encoders:
        encoder.module.to(case.device, case.dtype)
    return encoders


def _ours(case: Case, layers: int, name: str) -> SynthesizerStack:
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
    return SynthesizerStack(config, "encoder", is_causal=False, cross_attention=False)


def _call(encoder: nn.Module, x: Tensor, mask: Tensor | None) -> Tensor:
    y: Tensor = encoder(x, mask).last_hidden_state
    return y


def _call_peer(encoder: nn.Module, x: Tensor, mask: Tensor | None) -> Tensor:
    y: Tensor = encoder(x, src_key_padding_mask=None if mask is None else ~mask)
    return y


def measure_encoders(
    case: Case, layers: int, variants: Sequence[str], *, training: bool = True, repeats: int = 5
) -> list[Cost]:
    """Let all encoders take turns on embeddings (B, L, width), then count the bytes of each.

    Raises:
        ValueError: an unknown variant, or sizes that do not fit.
    """
    torch.manual_seed(0)
    encoders = build_encoders(case, layers, variants)
    x, mask, g = case.inputs()
    turns: dict[str, Callable[[], object]] = {
        encoder.name: partial(run_step, encoder, x, mask, g, training) for encoder in encoders
    }
    times = take_turns(turns, repeats, device=case.device)
    base = torch.tensor(times[ENCODER_BASELINE])
    costs = []
    for encoder in encoders:
        taken = times[encoder.name]
        memory = measure_layer(case, encoder, x, mask, g, training=training)
        costs.append(
            Cost(
                case,
                layers,
                training,
                encoder.name,
                quartiles([1e3 * second for second in taken]),
                quartiles(base / torch.tensor(taken)),
                memory.peak,
                memory.kept,
                memory.parameters,
            )
        )
    return costs
